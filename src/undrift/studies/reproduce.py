"""A table of a paper, run and put beside what is printed: three numbers a cell (printed, measured, how sure).

Runs are named by what they compute, so that tables which share experiments share runs, and whoever starts the same
table again goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from undrift.core import rng
from undrift.core.errors import InvalidInput
from undrift.experiment.description import Experiment, merge
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.papers import Column, Table
from undrift.studies.jobs import Done, Job, Tell, work_off

DRAWS = 1000
Verdict = Literal["agrees", "differs", "the table contradicts itself", "not comparable", "one seed", "not run", ""]


@dataclass(frozen=True)
class Cut:
    """What ``quick`` makes of a table: fewer rounds, seeds and columns, said beside every number."""

    rounds: int = 10
    seeds: int = 2
    columns: int = 2


@dataclass(frozen=True)
class Cell:
    """One method in one column."""

    method: str
    column: str
    printed: float | None  # inf: not reached; None: not printed
    values: tuple[float, ...]  # a number per seed; inf: not reached
    measured: float  # for rounds: on the mean curve over seeds; otherwise the mean of the values
    half: float  # half the width of the 95 % interval of ``measured``; NaN below two seeds
    verdict: Verdict


@dataclass(frozen=True)
class Reproduced:
    """A table with what was measured."""

    table: Table
    columns: tuple[Column, ...]
    seeds: tuple[int, ...]
    cells: dict[tuple[str, str], Cell]
    histories: dict[tuple[str, str], tuple[History, ...]]
    failed: tuple[Done, ...]
    cut: Cut | None

    def cell(self, method: str, column: Column) -> Cell:
        return self.cells[method, column.name]


def quickly(table: Table, cut: Cut) -> Table:
    """The cut-down of a table."""
    columns = tuple(_shortened(column, cut.rounds) for column in table.columns[: cut.columns])
    return replace(table, columns=columns)


def _shortened(column: Column, rounds: int) -> Column:
    values = column.experiment | {"rounds": min(rounds, int(column.experiment.get("rounds", rounds)))}
    return replace(column, experiment=values, at=None if column.at is None else min(column.at, rounds))


def reproduce(
    table: Table,
    ledger: Path,
    *,
    seeds: Sequence[int],
    columns: Sequence[str] = (),
    methods: Sequence[str] = (),
    cut: Cut | None = None,
    workers: int | None = None,
    root: str | Path | None = None,
    tell: Tell = lambda done: None,
) -> Reproduced:
    """Run what is missing of a table, and put it together. Resumable; on all cores."""
    if cut is not None:
        table, seeds = quickly(table, cut), seeds[: cut.seeds]
    chosen = tuple(table.column(name) for name in columns) if columns else table.columns
    jobs = {job.name: job for job in _jobs(table, chosen, seeds, methods)}
    failed = work_off(list(jobs.values()), ledger, workers=workers, root=root, tell=tell)
    return replace(collected(table, ledger, seeds=seeds, columns=chosen), failed=tuple(failed), cut=cut)


def _jobs(table: Table, columns: Iterable[Column], seeds: Iterable[int], methods: Sequence[str]) -> Iterable[Job]:
    unknown = set(methods) - set(table.methods)
    if unknown:
        raise InvalidInput(f"{table.reference} has no method {sorted(unknown)[0]}: {', '.join(table.methods)}")
    for seed in seeds:  # seed by seed, so that a stopped study has whole tables of the first seeds
        for column in columns:
            for method in methods or table.methods:
                yield Job(*_named(table, method, column, seed))


def _named(table: Table, method: str, column: Column, seed: int) -> tuple[str, dict[str, Any]]:
    given = table.experiment(method, column, seed)  # the name goes by what the paper says, not by our defaults
    digest = hashlib.sha256(json.dumps(given | {"seed": 0}, sort_keys=True).encode()).hexdigest()[:8]
    values = Experiment.build(merge({"runtime": "serial"}, given), f"{table.reference}, {method}").values()
    name = f"{table.paper}-{method.replace(' ', '')}-{digest}-seed{seed}"
    return name, values | {"name": name}


def collected(table: Table, ledger: Path, *, seeds: Sequence[int], columns: Sequence[Column]) -> Reproduced:
    """What a ledger holds of a table."""
    with Ledger(ledger) as book:
        known = {run.name: run for run in book.runs()}
        histories = {}
        for column in columns:
            for method in table.methods:
                names = [_named(table, method, column, seed)[0] for seed in seeds]
                runs = [known[name] for name in names if name in known and known[name].status == "finished"]
                histories[method, column.name] = tuple(History.of(book, run) for run in runs)
    cells = {
        (method, column.name): cell(table, method, column, histories[method, column.name])
        for column in columns
        for method in table.methods
    }
    return Reproduced(table, tuple(columns), tuple(seeds), cells, histories, (), None)


def cell(table: Table, method: str, column: Column, histories: Sequence[History]) -> Cell:
    """What was measured of one method in one column, and whether it agrees with what is printed."""
    printed = table.printed.get(method, {}).get(column.name)
    printed = None if printed is None or math.isnan(printed) else printed
    if table.measure == "rounds":
        values, measured, error = _rounds(histories, column.target or 0.0)
    else:
        values = tuple(_value(table, column, history) for history in histories)
        measured = float(np.mean(values)) if values else math.nan
        error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    verdict = _verdict(table, method, column, printed, len(values), measured, error)
    return Cell(method, column.name, printed, values, measured, 1.96 * error, verdict)


def _verdict(
    table: Table, method: str, column: Column, printed: float | None, count: int, measured: float, error: float
) -> Verdict:
    if printed is None:
        return ""
    if (method, column.name) in table.contradicted:
        return "the table contradicts itself"
    if not count:
        return "not run"
    if table.incomparable:
        return "not comparable"
    if math.isinf(printed) or math.isinf(measured):
        return "agrees" if math.isinf(printed) == math.isinf(measured) else "differs"
    if count < 2:
        return "one seed"
    # Both are means of a few trials with the same spread: their difference has the variance of both.
    wide = 1.96 * error * math.sqrt(1 + count / max(table.trials, 1))
    return "agrees" if abs(printed - measured) <= max(wide, 0.5 if table.measure == "rounds" else 0.05) else "differs"


def _value(table: Table, column: Column, history: History) -> float:
    """A single run's number, in percent."""
    at, values = history.curve()
    if not values:
        return math.nan
    if table.measure == "best":
        return 100 * float(np.nanmax(values))
    if table.measure == "last ten":
        return 100 * float(np.mean(values[-10:]))
    if column.at is not None and column.at in at:
        return 100 * values[at.index(column.at)]
    return 100 * values[-1]


def _rounds(histories: Sequence[History], target: float) -> tuple[tuple[float, ...], float, float]:
    """Rounds to the target: each seed's own, that of the mean curve, and its standard error by a bootstrap."""
    if not histories:
        return (), math.nan, math.nan
    at = histories[0].curve()[0]
    curves = np.array([history.curve()[1] for history in histories if history.curve()[0] == at])
    own = tuple(_first(at, curve, target) for curve in curves)
    measured = _first(at, curves.mean(0), target)
    if len(curves) < 2:
        return own, measured, math.nan
    generator = rng.generator(0, "reproduce", len(curves))
    picks = generator.integers(0, len(curves), (DRAWS, len(curves)))
    drawn = np.array([_first(at, curves[pick].mean(0), target) for pick in picks])
    reached = drawn[np.isfinite(drawn)]
    return own, measured, float(reached.std()) if len(reached) > DRAWS / 2 else math.nan


def _first(at: Sequence[int], curve: Any, target: float) -> float:
    met = np.flatnonzero(np.asarray(curve) >= target)
    return float(at[met[0]]) if len(met) else math.inf
