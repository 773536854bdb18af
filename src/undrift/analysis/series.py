"""Everything that a run recorded round by round, by name: its figures, the method's own notes, and the drift."""

from __future__ import annotations

import math
from collections.abc import Iterable

from undrift.core.errors import unknown
from undrift.core.figure import GLOBAL, TEST, Figure
from undrift.ledger.history import History

Series = tuple[list[int], list[float]]  # rounds, and a value after each


def names(histories: Iterable[History]) -> list[str]:
    """What there is to look at, in the order of first appearance."""
    return list(dict.fromkeys(name for history in histories for name in _all(history)))


def series(history: History, name: str) -> Series:
    found = _all(history)
    if name not in found:
        raise unknown("series", name, found)
    return found[name]


def figure_name(figure: Figure) -> str:
    """``loss``, ``loss on training``, ``accuracy of personal on own test (mean)``."""
    model = "" if figure.model == GLOBAL else f" of {figure.model}"
    return figure.metric + model + ("" if figure.data == TEST else f" on {figure.data}")


def _all(history: History) -> dict[str, Series]:
    found = {figure_name(figure): history.curve(figure) for figure in history.figures}
    for row in history.rounds:
        drift = {f"drift {name}": value for name, value in row.drift.items()}
        for name, value in {**row.notes, **drift}.items():
            at, values = found.setdefault(name, ([], []))
            at.append(row.round)
            values.append(math.nan if value is None else float(value))
    return found
