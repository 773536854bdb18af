"""Objects with settings, written in a line: ``name:key=value``, several with commas. It is what flags and files hold.

The name is looked up among those of a kind; which kinds there are is not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from undrift.core.errors import InvalidInput, unknown
from undrift.core.plugins import Registry, is_reference, reference_of, split
from undrift.core.settings import Settings

S = TypeVar("S", bound=Settings)


def listed(text: str) -> list[str]:
    """The parts of a list with commas; a comma within brackets belongs to its part: ``a,b=[1,2]`` is two."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def short(value: Any) -> str:
    """A setting's value as it is written on a command line and in a name."""
    if isinstance(value, tuple | list):
        return "[" + ",".join(map(short, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return str(value)


def made(text: str, known: Registry[S]) -> S:
    """The object that a line describes."""
    name, pairs = split(text)
    if name not in known:
        raise unknown(known.word, name, known)
    kind = known[name]
    settings, values = {s.name: s for s in kind.settings()}, {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.replace("-", "_")
        if not equals:
            raise InvalidInput(f"{text!r}: settings are written name:key=value")
        if key not in settings:
            raise unknown(f"setting of {name}", key, settings or ["(it has none)"])
        values[key] = settings[key].parse(value)
    return kind.create(**values)


def all_made(text: str, known: Registry[S]) -> tuple[S, ...]:
    """The objects that a list describes, in its order."""
    return tuple(made(part, known) for part in listed(text) if part)


def written(made: Settings, known: Registry[Any]) -> str:
    """An object as a line: its name or its reference, and the settings that are not as usual. One whose class is not
    known by any name is known by that of its class from now on."""
    kind = type(made)
    name = reference_of(kind, next((name for name, one in known.items() if one is kind), ""))
    if not name:
        name = kind.__name__.lower()
        if name in known and known[name].__module__ != kind.__module__:
            raise InvalidInput(f"{kind.__name__}: a {known.word} is called {name!r} already; choose another name")
        known[name] = kind
    given = [(s.name, getattr(made, s.name)) for s in made.settings() if getattr(made, s.name) != s.default]
    return ":".join([name, *(f"{key}={short(value)}" for key, value in given)])


def all_written(objects: Sequence[Settings], known: Registry[Any]) -> str:
    return ",".join(written(one, known) for one in objects)


def references(text: str) -> list[str]:
    """Which parts of a list are files or places in packages, rather than names."""
    return [name for part in listed(text) if is_reference(name := split(part)[0])]
