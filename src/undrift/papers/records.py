"""Measured curves, shipped beside the printed numbers: what was run once need not be run again to be looked at.

One CSV file a paper: a row per run and figure, the figure's value after each round. Tables find their runs by key.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from undrift.core.figure import Figure
from undrift.papers import Table

DIGITS = 4  # of a recorded share: a test set of 10,000 has no more


@dataclass(frozen=True)
class Trial:
    """One run behind a cell: the table's figure over rounds, and the method's own series where the table shows them."""

    seed: int
    at: tuple[int, ...]
    values: tuple[float, ...]
    series: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)


Trials = dict[tuple[str, str], tuple[Trial, ...]]  # by method and column


def recorded(table: Table) -> Trials:
    """What is shipped of a table; nothing, where nothing is."""
    found = _shipped(table.paper)
    figure = _written(table.figure)
    cells = {(m, c.name): found.get((table.key(m, c), figure), ()) for c in table.columns for m in table.methods}
    return {cell: trials for cell, trials in cells.items() if trials}


def text(table: Table, trials: Trials) -> str:
    """Trials as lines of a paper's file, without its head; one that several columns are read from, once."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    cells = {table.key(method, table.column(column)): runs for (method, column), runs in trials.items()}
    for key, runs in cells.items():
        for trial in runs:
            by_round = dict(zip(trial.at, trial.values, strict=True))
            shown = (
                f"{by_round[r]:.{DIGITS}f}" if r in by_round else "" for r in range(1, max(by_round, default=0) + 1)
            )
            writer.writerow([key, _written(table.figure), trial.seed, " ".join(shown)])
    return out.getvalue()


HEAD = "run,figure,seed,rounds\n"


@cache
def _shipped(paper: str) -> dict[tuple[str, str], tuple[Trial, ...]]:
    path = files("undrift.papers") / "recorded" / f"{paper}.csv"
    return _parsed(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else {}


def _parsed(lines: Iterable[str]) -> dict[tuple[str, str], tuple[Trial, ...]]:
    found: dict[tuple[str, str], tuple[Trial, ...]] = {}
    for row in csv.DictReader(lines):
        values = row["rounds"].split(" ")
        at = tuple(place for place, value in enumerate(values, 1) if value)
        trial = Trial(int(row["seed"]), at, tuple(float(value) for value in values if value))
        key = row["run"], row["figure"]
        found[key] = (*found.get(key, ()), trial)
    return found


def _written(figure: Figure | None) -> str:
    figure = figure or Figure()
    return f"{figure.metric} of {figure.model} on {figure.data}"
