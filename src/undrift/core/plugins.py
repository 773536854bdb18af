"""Code that does not live here: methods, models, stages and the like from a file, a package or an entry point.

A name is ours, or that of an entry point of an installed package (groups ``undrift.algorithms``, ``undrift.models``,
``undrift.data``, ``undrift.partitions``, ``undrift.stages``, ``undrift.reducers``), or a reference: ``./fedleash.py``,
``./fedleash.py:FedLeash`` or ``package.module:Name``. Only what a user names is ever imported. Knows nothing of what a
method or a data set is.
"""

from __future__ import annotations

import base64
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import re
import sys
import warnings
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar, overload

from undrift.core.errors import InvalidInput, unknown

K = TypeVar("K")
D = TypeVar("D")
PREFIX = "undrift_outside_"
_REFERENCES: dict[type, str] = {}  # what to write down so that a class is found again


def is_reference(name: object) -> bool:
    """Is it a file or a place in a package, rather than a name?"""
    if not isinstance(name, str):
        return False
    file, _, _ = name.partition(":")
    return file.endswith(".py") or re.fullmatch(r"[\w.]+:\w+", name) is not None


def split(text: str) -> tuple[str, list[str]]:
    """``name:key=value:...`` as the name or reference, and the pairs."""
    name, *rest = text.strip().split(":")
    if rest and "=" not in rest[0] and (name.endswith(".py") or is_reference(f"{name}:{rest[0]}")):
        name = f"{name}:{rest.pop(0)}"
    return name, rest


def reference_of(kind: type, name: str) -> str:
    """How a description names a class: by its name, or by the reference under which it can be found again."""
    return _REFERENCES.get(kind, name)


def digest_of(kind: type) -> str | None:
    """A hash of the file that a class from outside comes from; None for our own and for installed packages."""
    module = sys.modules.get(kind.__module__)
    if module is None or not kind.__module__.startswith(PREFIX):
        return None
    return hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()[:16]


class Registry(dict[str, type[K]], Generic[K]):
    """Classes of one kind by name: our own, those of installed packages, and whatever a reference leads to."""

    def __init__(self, word: str, kind: type[K], group: str, own: Mapping[str, type[K]]) -> None:
        super().__init__(own)
        self.word, self.kind, self.group = word, kind, group
        self._looked = False

    def _installed(self) -> None:
        """Look for entry points, once. What cannot be loaded is said, and stands in nobody's way."""
        if self._looked:
            return
        self._looked = True
        for entry in importlib.metadata.entry_points(group=self.group):
            owner = entry.dist.name if entry.dist else "a package"
            try:
                found = self._fitting(entry.load(), f"{owner}: {entry.value}")
            except Exception as error:  # whatever another package does, ours goes on
                warnings.warn(f"{self.word} {entry.name!r} of {owner} cannot be loaded: {error}", stacklevel=3)
                continue
            if entry.name in self.keys():
                warnings.warn(f"{owner} names a {self.word} {entry.name!r}, which exists already", stacklevel=3)
                continue
            _REFERENCES[found] = entry.name
            super().__setitem__(entry.name, found)

    def __contains__(self, name: object) -> bool:
        self._installed()
        return super().__contains__(name) or (is_reference(name) and self[str(name)] is not None)

    def __getitem__(self, name: str) -> type[K]:
        self._installed()
        known = super().__contains__(name)
        # Resolved each time, as "./method.py" is another file in another folder; unless there is none where we are now.
        if is_reference(name) and not (known and name.partition(":")[0].endswith(".py") and not _file(name).is_file()):
            super().__setitem__(name, self._resolved(name))
        if not super().__contains__(name):
            raise unknown(self.word, name, self)
        return super().__getitem__(name)

    @overload
    def get(self, name: str, default: None = None, /) -> type[K] | None: ...
    @overload
    def get(self, name: str, default: D, /) -> type[K] | D: ...
    def get(self, name: str, default: Any = None, /) -> Any:
        """What is known already: a name in a record is no reason to import anything."""
        self._installed()
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self._installed()
        return super().__iter__()

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        self._installed()
        return super().keys()

    def values(self) -> ValuesView[type[K]]:  # type: ignore[override]
        self._installed()
        return super().values()

    def items(self) -> ItemsView[str, type[K]]:  # type: ignore[override]
        self._installed()
        return super().items()

    def _resolved(self, reference: str) -> type[K]:
        place, _, wanted = reference.partition(":")
        if place.endswith(".py"):
            path = _file(reference)
            if not path.is_file():
                raise InvalidInput(f"{self.word} {reference!r}: there is no file {place}")
            module, stored = _imported(module_name(path), place), str(path.resolve())
        else:
            module, stored = _imported(place, place), place
        if wanted:
            if not hasattr(module, wanted):
                raise InvalidInput(f"{place}: {unknown('name', wanted, vars(module))}")
            found = self._fitting(getattr(module, wanted), f"{place}: {wanted}")
            stored = f"{stored}:{wanted}"
        else:
            found = self._only(module, place)
        _REFERENCES[found] = stored
        return found

    def _only(self, module: ModuleType, place: str) -> type[K]:
        """The one class of this kind that the file defines."""
        found = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, self.kind) and value.__module__ == module.__name__
        ]
        leaves = [one for one in found if not any(other is not one and issubclass(other, one) for other in found)]
        if not leaves:
            raise InvalidInput(f"{place}: it defines no {self.word}: a class that inherits from {self.kind.__name__}")
        if len(leaves) > 1:
            ways = " or ".join(f"{place}:{one.__name__}" for one in leaves)
            raise InvalidInput(f"{place}: it defines several: write {ways}")
        return self._fitting(leaves[0], place)

    def _fitting(self, found: Any, where: str) -> type[K]:
        if not (isinstance(found, type) and issubclass(found, self.kind)):
            raise InvalidInput(f"{where} is no {self.word}: it must inherit from {self.kind.__name__}")
        for attribute, text in (("title", found.__name__), ("name", found.__name__.lower())):
            if not getattr(found, attribute, None):
                setattr(found, attribute, text)
        return found


def _file(reference: str) -> Path:
    return Path(reference.partition(":")[0]).expanduser()


def module_name(path: Path) -> str:
    """A name under which a worker process finds the same file: the path is in it."""
    return PREFIX + base64.b32encode(str(path.resolve()).encode()).decode().rstrip("=").lower()


def _imported(name: str, place: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = f"there is no module {error.name}" if error.name else str(error)
        raise InvalidInput(f"{place}: {missing}") from None
    except InvalidInput as error:
        raise InvalidInput(f"{place}: {error}") from None
    except Exception as error:  # whatever a user's file raises, say where it came from
        line = getattr(error, "lineno", None) or _line_of(error, name)
        at = f" (line {line})" if line else ""
        raise InvalidInput(f"{place}: it cannot be imported{at}: {type(error).__name__}: {error}") from error


def _line_of(error: BaseException, name: str) -> int | None:
    """The line of the user's file at which an error arose."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


class _Finder:
    """Finds the modules that ``module_name`` names, in this process and in its workers."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if not name.startswith(PREFIX):
            return None
        text = name.removeprefix(PREFIX).upper()
        file = base64.b32decode(text + "=" * (-len(text) % 8)).decode()
        return importlib.util.spec_from_file_location(name, file)


sys.meta_path.append(_Finder)
