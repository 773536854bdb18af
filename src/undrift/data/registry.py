"""How data sets and partitions are found: a class with a name, in a file of its folder, is one of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")


def found(package: str, path: Iterable[str], kind: type[K]) -> dict[str, type[K]]:
    """The classes of this kind in the modules of a package, by name, in the order of their names.

    A class without a name of its own is something that several of them share.
    """
    classes: dict[str, type[K]] = {}
    for info in pkgutil.iter_modules(path):
        module = importlib.import_module(f"{package}.{info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, kind) and value.__module__ == module.__name__:
                name = vars(value).get("name")
                if name is not None:
                    classes[name] = value
    return dict(sorted(classes.items()))
