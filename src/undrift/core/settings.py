"""Settings: frozen dataclasses whose fields say their type, help text and range in one line.

The constructor, the command-line flags, the TOML keys, the documentation and the checkpoint hash of an
algorithm, a partition, a model or a training schedule all come from these fields.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, Union, dataclass_transform, get_args, get_origin, get_type_hints

from undrift.core.errors import InvalidInput, hint, unknown

LARGEST = 2**64  # whole numbers are smaller


@dataclass(frozen=True)
class Bounds:
    """The range of a number, and the reason for it."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    why: str = ""

    def holds(self, value: float) -> bool:
        above = value > self.low if self.open_low else value >= self.low
        below = value < self.high if self.open_high else value <= self.high
        return above and below and math.isfinite(value)

    def __str__(self) -> str:
        low, high = f"{self.low:g}", f"{self.high:g}"
        if self.low == -math.inf and self.high == math.inf:
            return "that is finite"
        if self.high == math.inf:
            return f"{'>' if self.open_low else '>='} {low}"
        return f"in {'(' if self.open_low else '['}{low}, {high}{')' if self.open_high else ']'}"


def positive(why: str = "") -> Bounds:
    return Bounds(0, open_low=True, why=why)


def nonnegative(why: str = "") -> Bounds:
    return Bounds(0, why=why)


def finite(why: str = "") -> Bounds:
    return Bounds(why=why)


def at_least(low: float, why: str = "") -> Bounds:
    return Bounds(low, why=why)


def between(low: float, high: float, why: str = "", *, open_low: bool = False, open_high: bool = False) -> Bounds:
    return Bounds(low, high, open_low, open_high, why)


@dataclass(frozen=True)
class Setting:
    """One field of a ``Settings`` class, as the command line and the documentation see it."""

    name: str
    type: type
    default: Any
    required: bool
    help: str
    choices: tuple[str, ...] = ()
    bounds: Bounds | None = None
    optional: bool = False
    words: tuple[str, ...] = ()  # what may stand in the place of a number, such as auto

    @property
    def allowed(self) -> str:
        """What may be given, in words: ``a number >= 0`` or ``one of prox, init``."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
        word = words.get(self.type, "a list of numbers")
        return " or ".join([f"{word} {self.bounds}" if self.bounds else word, *self.words])

    @property
    def reason(self) -> str:
        """Why there is a range, in brackets; empty where nothing has to be said."""
        return f" ({self.bounds.why})" if self.bounds and self.bounds.why else ""

    def parse(self, text: str) -> Any:
        """The value a command-line word stands for."""
        if self.optional and text.lower() == "none":
            return None
        if text.lower() in self.words:
            return text.lower()
        try:
            if self.type is bool:
                return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
            if self.type is tuple:
                return tuple(float(part) for part in text.strip().removeprefix("[").removesuffix("]").split(","))
            return self.type(text)
        except (ValueError, KeyError):
            raise InvalidInput(f"{self.name} = {text!r}: it must be {self.allowed}") from None

    def check(self, given: Any, owner: str) -> Any:
        """The value, converted where that loses nothing, or a sentence that says what is allowed."""
        value: Any = given
        if (value is None and self.optional) or (isinstance(value, str) and value in self.words):
            return value
        if isinstance(value, int) and abs(value) >= LARGEST:  # seeds, for one, would be folded onto smaller ones
            raise InvalidInput(f"{owner}: {self.name} has too many digits: whole numbers end at 2^64 - 1")
        where = f"{owner}: {self.name} = {value!r}"
        if self.type is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if self.type is tuple and isinstance(value, list):
            value = tuple(value)
        fits: bool = isinstance(value, self.type) and not (self.type is int and isinstance(value, bool))
        if not fits:
            raise InvalidInput(f"{where}: it must be {self.allowed}")
        if self.choices and value not in self.choices:
            raise InvalidInput(f"{where}: it must be {self.allowed}{hint(value, self.choices)}")
        if self.bounds and not self.bounds.holds(value):
            raise InvalidInput(f"{where}: it must be {self.allowed}{self.reason}")
        return value


def number(value: float | str) -> float:
    """A setting that a method has resolved by now: no word stands in its place any more."""
    assert not isinstance(value, str), f"{value!r} was not resolved"
    return value


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Settings:
    """Base of everything a user can set. Subclasses become frozen, keyword-only dataclasses."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        for setting in self.settings():
            value = setting.check(getattr(self, setting.name), type(self).__name__)
            object.__setattr__(self, setting.name, value)
        self.validate()

    def validate(self) -> None:
        """Refuse what single ranges cannot express. Called once, at construction."""

    @classmethod
    def settings(cls) -> tuple[Setting, ...]:
        found: Any = cls
        return _settings(found)

    @classmethod
    def create(cls, **values: Any) -> Self:
        """The constructor, with a did-you-mean for a name that is not a field."""
        names = [s.name for s in cls.settings()]
        for name in values:
            if name not in names:
                raise unknown(f"setting of {cls.__name__}", name, names or ["(it has none)"])
        missing = [s.name for s in cls.settings() if s.required and s.name not in values]
        if missing:
            raise InvalidInput(f"{cls.__name__} needs {', '.join(missing)}")
        return cls(**values)

    def values(self) -> dict[str, Any]:
        """The fields as plain values, ready for JSON and TOML."""
        return {s.name: getattr(self, s.name) for s in self.settings()}


def bare(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """A type without its annotations, and the annotations."""
    if get_origin(hint) is Annotated:
        plain, *extras = get_args(hint)
        return plain, tuple(extras)
    return hint, ()


@functools.cache
def _settings(cls: Any) -> tuple[Setting, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for field in dataclasses.fields(cls):
        hint, extras = bare(hints[field.name])
        optional = False
        words: tuple[str, ...] = ()
        if get_origin(hint) in (Union, types.UnionType):
            parts = get_args(hint)
            optional = type(None) in parts
            words = tuple(word for part in parts if get_origin(part) is Literal for word in get_args(part))
            (hint,) = (part for part in parts if part is not type(None) and get_origin(part) is not Literal)
        choices: tuple[str, ...] = ()
        if get_origin(hint) is Literal:
            choices, hint = get_args(hint), str
        hint = get_origin(hint) or hint
        found.append(
            Setting(
                name=field.name,
                type=hint,
                default=field.default,
                required=field.default is dataclasses.MISSING,
                help=next((e for e in extras if isinstance(e, str)), ""),
                choices=choices,
                bounds=next((e for e in extras if isinstance(e, Bounds)), None),
                optional=optional,
                words=words,
            )
        )
    return tuple(found)
