"""Numbers as people read them: bytes, operations, seconds, percentages. Knows nothing of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from undrift.core.figure import HEADLINE, Figure

NO_NUMBER = "n/a"


def percent(value: float, digits: int = 1) -> str:
    return NO_NUMBER if math.isnan(value) else f"{100 * value:.{digits}f} %"


def figure(what: Figure, value: float) -> str:
    """A value of a figure: a share in percent, anything else as it is."""
    return percent(value) if what.share else amount(value)


def metric(what: Figure, facts: Mapping[str, Any]) -> str:
    """What is measured; a loss says which one, as far as the run knows it."""
    name = str(facts.get("loss", "")) if what.metric == "loss" else ""
    return f"{what.metric} ({_LOSSES.get(name, name.replace('_', ' '))})" if name else what.metric


_LOSSES = {
    "mse": "mean squared error",
    "mse_loss": "mean squared error",
    "mse_onehot": "mean squared error",
    "cross_entropy": "cross-entropy",
    "squared_hinge": "half the squared hinge",
}


def spread(what: Figure, mean: float, sd: float) -> str:
    """A mean over seeds with its standard deviation, where there is one: ``90.1 ± 0.3 %``."""
    value = figure(what, mean)
    return value if math.isnan(sd) else f"{value.removesuffix(' %')} ± {figure(what, sd)}"


def target_words(value: float, what: Figure = HEADLINE) -> str:
    """A target without needless zeros: ``90 %``, ``92.5 %``; of what is no share as it is."""
    return f"{round(100 * value, 4):g} %" if what.share else f"{value:g}"


def amount(value: float) -> str:
    """Three significant figures, without an exponent where a person would not write one."""
    if not math.isfinite(value):
        return NO_NUMBER
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        digits = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
        text = f"{value:.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:.2e}"


def _scaled(value: float, step: float, units: tuple[str, ...]) -> str:
    if not math.isfinite(value):
        return NO_NUMBER
    place = 0
    while abs(value) >= step and place < len(units) - 1:
        value /= step
        place += 1
    return f"{amount(value)} {units[place]}"


def data_size(value: float) -> str:
    return _scaled(value, 1000, ("B", "kB", "MB", "GB", "TB", "PB"))


def operations(value: float) -> str:
    return _scaled(value, 1000, ("MAC", "kMAC", "MMAC", "GMAC", "TMAC", "PMAC", "EMAC"))


def duration(value: float) -> str:
    if not math.isfinite(value):
        return NO_NUMBER
    if value < 120:
        return f"{amount(value)} s"
    return f"{amount(value / 60)} min" if value < 7200 else f"{amount(value / 3600)} h"


def times(value: float) -> str:
    if math.isinf(value):
        return "∞×"
    return f"{value:.2f}×" if value < 10 else f"{amount(value)}×"


def rounds(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def count(value: float, what: str) -> str:
    """``1 round``, ``2 rounds``."""
    return f"{rounds(value)} {what}{'' if value == 1 else 's'}"


def key(name: str) -> str:
    """The name of a setting as people say it: ``batch_size`` is the batch size."""
    return _KEYS.get(name, name.replace("_", " "))


def setting(name: str, section: str = "") -> str:
    """A setting with what it is a setting of: ``method: mu``, ``training: learning rate``."""
    of = {"algorithm": "method", "train": "training"}.get(section, section)
    return of if name == "name" and of else f"{of}: {key(name)}" if of else key(name)


def value(given: Any) -> str:
    """The value of a setting."""
    if given is None:
        return "by default"
    if isinstance(given, bool):
        return "yes" if given else "no"
    if isinstance(given, list | tuple):
        return ", ".join(map(value, given))
    return f"{given:g}" if isinstance(given, float) else str(given)


_KEYS = {"lr": "learning rate", "lr_decay": "learning rate decay", "lr_every": "decay every so many rounds", "xi": "ξ"}


def note(name: str) -> str:
    """A method's own series, by its sign in the paper."""
    return _SIGNS.get(name, key(name))


_SIGNS = {
    "tau": "τ, local steps",
    "mu": "μ",
    "rho": "ρ",
    "beta": "β",
    "delta": "δ",
    "server_lr": "server's learning rate",
}


def series(words: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def cost(column: str, value: float) -> str:
    """A cost in the unit of its column."""
    if column.startswith("bytes"):
        return data_size(value)
    if column == "macs":
        return operations(value)
    return duration(value) if column == "seconds" else rounds(value)
