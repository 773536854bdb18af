"""The methods: one paper, one file. A file in this folder is found by itself; nothing needs to be registered.

What several papers share is in ``parts``, where no method is looked for.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any

from undrift.core.algorithm import Algorithm
from undrift.core.errors import nearest, unknown
from undrift.core.plugins import Registry

Method = Algorithm[Any, Any, Any, Any]


@functools.cache
def algorithms() -> Registry[Method]:
    """Every method by its name on the command line; a file or a package of somebody else's by its reference."""
    found: dict[str, type[Method]] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.ispkg:
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, Algorithm)
                and value.__module__ == module.__name__
                and value.title
            ):
                found[value.name()] = value
    return Registry("algorithm", Algorithm, "undrift.algorithms", dict(sorted(found.items())))


def create(name: str, **settings: Any) -> Method:
    """A method by name: ``create("fedtrip", mu=0.4)``."""
    if name not in algorithms():
        raise unknown("algorithm", name, algorithms())
    return algorithms()[name].create(**settings)


def __getattr__(name: str) -> Any:
    for cls in algorithms().values():
        if cls.__name__ == name:
            return cls
    meant = nearest(name, algorithms())
    more = f"; did you mean {algorithms()[meant].__name__}?" if meant else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")


def __dir__() -> list[str]:
    return sorted([*globals(), *(cls.__name__ for cls in algorithms().values())])
