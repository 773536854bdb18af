"""What a sweep varies: one setting each, with listed values or a range to draw from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undrift.core.errors import InvalidInput, unknown
from undrift.core.named import listed, short
from undrift.core.settings import Setting
from undrift.experiment.description import SECTIONS, components


@dataclass(frozen=True)
class Over:
    """One setting that is varied: listed values, or a range to draw from."""

    key: str  # as the user wrote it
    section: str
    name: str
    setting: Setting
    method: str = ""  # only for this method
    values: tuple[Any, ...] = ()
    low: float = math.nan
    high: float = math.nan

    @property
    def is_range(self) -> bool:
        return not self.values

    @property
    def is_log(self) -> bool:
        """Is a range drawn evenly on a logarithmic scale? From a factor of ten on."""
        return self.low > 0 and self.high / self.low >= 10

    def draw(self, share: float) -> Any:
        """The value at a share of the way, 0 to 1."""
        if not self.is_range:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if self.is_log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        found: float = round(value) if self.setting.type is int else float(f"{value:.4g}")
        return found

    def applies(self, method: str) -> bool:
        if self.section != "algorithm":
            return True
        return self.method in ("", method) and any(
            s.name == self.name for s in components()["algorithm"].get(method, ())
        )


def parse_over(text: str, methods: Sequence[str], base: Mapping[str, Any]) -> Over:
    """``lr=0.01,0.1``, ``algorithm.mu=0.01..1``, ``fedprox.mu=0.1,1``; lists are written ``budget=[10,20],[30,40]``."""
    key, equals, given = text.partition("=")
    if not equals or not given:
        raise InvalidInput(f"{text}: what is varied is written KEY=1,2,3 or KEY=0.01..1")
    key = key.strip()
    section, method, name = _place(key, methods, base)
    setting = _setting(section, name, method, methods, base)
    where = f"to vary {text}"
    if ".." in given:
        if setting.type not in (int, float):
            raise InvalidInput(f"{where}: {name} is not a number, so it has no range: list its values")
        low, high = (_value(setting, part, where) for part in given.split("..", 1))
        if not low < high:
            raise InvalidInput(f"{where}: the range must go from a smaller to a larger number")
        return Over(key, section, name, setting, method, (), float(low), float(high))
    values = tuple(dict.fromkeys(_value(setting, part, where) for part in listed(given)))
    return Over(key, section, name, setting, method, values)


def overs(
    given: Mapping[str, Any] | Sequence[str], methods: Sequence[str], base: Mapping[str, Any]
) -> tuple[Over, ...]:
    """From texts, or from ``{"lr": [0.01, 0.1], "fedprox.mu": (0.01, 1.0)}``: a list of values, a pair is a range."""
    if isinstance(given, str) or not isinstance(given, Mapping | Sequence):
        raise InvalidInput('what is varied is given as {"lr": [0.01, 0.1]} or as ["lr=0.01,0.1"]')
    if not isinstance(given, Mapping):
        return tuple(parse_over(text, methods, base) for text in given)
    texts = []
    for key, values in given.items():
        if isinstance(values, tuple) and len(values) == 2:
            texts.append(f"{key}={values[0]}..{values[1]}")
        elif isinstance(values, Sequence) and not isinstance(values, str):
            texts.append(f"{key}={','.join(short(value) for value in values)}")
        else:
            raise InvalidInput(f"{key} = {values!r}: list the values to try, or give (low, high) for a range")
    return tuple(parse_over(text, methods, base) for text in texts)


def _place(key: str, methods: Sequence[str], base: Mapping[str, Any]) -> tuple[str, str, str]:
    """Section, method and name that a key means."""
    known = components()
    head, dot, name = key.rpartition(".")
    name = name.replace("-", "_")
    if dot:
        if head in methods:
            return "algorithm", head, name
        if head in (*SECTIONS, "plan"):
            return head, "", name
        raise unknown("section or method", head, [*SECTIONS, "plan", *methods])
    holders = [s for s in known if any(_has(known[s].get(k, ()), name) for k in _kinds(s, methods, base))]
    if not holders:
        every = {s.name for kinds in known.values() for settings in kinds.values() for s in settings}
        raise unknown("setting to vary", name, every)
    if len(holders) > 1:
        raise InvalidInput(f"{name} could mean several things: write {' or '.join(f'{h}.{name}' for h in holders)}")
    return holders[0], "", name


def _kinds(section: str, methods: Sequence[str], base: Mapping[str, Any]) -> list[str]:
    if "" in components()[section]:
        return [""]
    if section == "algorithm":
        return list(methods)
    chosen = base.get(section, {"data": "digits", "partition": "dirichlet"}.get(section, ""))
    return [chosen if isinstance(chosen, str) else str(chosen.get("name", ""))]


def _has(settings: Sequence[Setting], name: str) -> bool:
    return any(s.name == name for s in settings)


def _setting(section: str, name: str, method: str, methods: Sequence[str], base: Mapping[str, Any]) -> Setting:
    kinds = [method] if method else _kinds(section, methods, base)
    settings = [s for kind in kinds for s in components()[section].get(kind, ())]
    found = next((s for s in settings if s.name == name), None)
    if found is None or name in ("seed", "rounds"):
        raise unknown(f"setting of {section} to vary", name, {s.name for s in settings} - {"seed", "rounds"})
    return found


def _value(setting: Setting, text: str, where: str) -> Any:
    try:
        return setting.check(setting.parse(text.strip()), setting.name)
    except InvalidInput:
        raise InvalidInput(f"{where}: {setting.name} must be {setting.allowed}") from None
