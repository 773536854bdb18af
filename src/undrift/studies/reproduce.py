"""A table of a paper, run and put beside what is printed: three numbers a cell (printed, measured, how sure).

Runs are named by what they compute, so that tables which share experiments share runs, and whoever starts the same
table again goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.analysis.intervals import student
from undrift.core import rng
from undrift.core.errors import unknown
from undrift.experiment.description import Experiment, merge
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.papers import Column, Cut, Table, over
from undrift.papers.counted import gigaflops
from undrift.papers.records import Trial, Trials, recorded
from undrift.studies.jobs import Done, Observer, Place, Queued, work_off

DRAWS = 1000
Verdict = Literal["agrees", "differs", "table contradicts itself", "not comparable", "one seed", "not run", ""]


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
    cells: dict[tuple[str, str], Cell]
    trials: Trials
    failed: tuple[Done, ...] = ()
    cut: Cut | None = None

    def cell(self, method: str, column: Column) -> Cell:
        return self.cells[method, column.name]

    @property
    def seeds(self) -> tuple[int, ...]:
        """All that stand behind some cell."""
        return tuple(sorted({trial.seed for runs in self.trials.values() for trial in runs}))


def quickly(table: Table) -> Table:
    """The cut-down of a table: fewer rounds and columns, by which nothing is judged."""
    cut = table.quick
    fit = [column for column in table.columns if column.scene in cut.scenes] or list(table.columns)
    columns = tuple(_shortened(column, cut) for column in fit[: cut.columns])
    why = f"this is the quick cut ({cut.says})"
    return replace(table, columns=columns, incomparable=dict.fromkeys(table.methods, why))


def _shortened(column: Column, cut: Cut) -> Column:
    values = over(column.experiment, cut.experiment)
    rounds = min(cut.rounds, int(values.get("rounds", cut.rounds)))
    return replace(column, experiment=values | {"rounds": rounds}, at=None)


def chosen(table: Table, columns: Sequence[str]) -> tuple[Column, ...]:
    return tuple(table.column(name) for name in columns) if columns else table.columns


def reproduce(
    table: Table,
    place: Place,
    *,
    seeds: Sequence[int],
    columns: Sequence[str] = (),
    methods: Sequence[str] = (),
    quick: bool = False,
    workers: int | None = None,
    observer: Observer | None = None,
    plan: Mapping[str, Any] | None = None,
) -> Reproduced:
    """Run what is missing of a table, and put it together. Resumable; on all cores, or where ``plan`` says."""
    asked = chosen(table, columns)
    if quick:
        table = quickly(replace(table, columns=asked))
        asked, seeds = table.columns, seeds[: table.quick.seeds]
    queue = {item.name: item for item in _queued(table, asked, seeds, methods, plan or {})}  # columns may share runs
    failed = work_off(list(queue.values()), place, workers=workers, observer=observer)
    found = put_together(table, asked, collected(table, asked, seeds, place.ledger))
    return replace(found, failed=tuple(failed), cut=table.quick if quick else None)


def _queued(
    table: Table, columns: Iterable[Column], seeds: Iterable[int], methods: Sequence[str], plan: Mapping[str, Any]
) -> Iterable[Queued]:
    for method in methods:
        if method not in table.methods:
            raise unknown(f"method of {table.reference}", method, table.methods)
    for seed in seeds:  # seed by seed, so that a stopped study has whole tables of the first seeds
        for column in columns:
            for method in methods or table.methods:
                values = merge(merge({"runtime": "serial"}, table.experiment(method, column, seed)), plan)
                name = _name(table, method, column, seed)
                built = Experiment.build(values, f"{table.reference}, {method}")
                yield Queued(name, built.values() | {"name": name})


def _name(table: Table, method: str, column: Column, seed: int) -> str:
    return f"{table.key(method, column)}-seed{seed}"


def collected(table: Table, columns: Sequence[Column], seeds: Sequence[int], ledger: Path) -> Trials:
    """The runs of a table that a ledger holds."""
    with Ledger(ledger) as book:
        known = {run.name: run for run in book.runs()}
        found: Trials = {}
        for column in columns:
            for method in table.methods:
                names = [_name(table, method, column, seed) for seed in seeds]
                runs = [known[name] for name in names if name in known and known[name].status == "finished"]
                found[method, column.name] = tuple(_trial(table, History.of(book, run)) for run in runs)
    return found


def _trial(table: Table, history: History) -> Trial:
    at, values = history.curve(table.figure)
    notes = {name: tuple(row.notes.get(name) for row in history.rounds) for name in table.series}
    return Trial(history.seed, tuple(at), tuple(values), notes)


def from_records(table: Table, columns: Sequence[str] = ()) -> Reproduced:
    """The table as it was measured when it was recorded; columns that were not run whole are left out."""
    trials = recorded(table)
    ran = [column for column in chosen(table, columns) if all((m, column.name) in trials for m in table.methods)]
    return put_together(table, ran, trials)


def put_together(table: Table, columns: Sequence[Column], trials: Trials) -> Reproduced:
    cells = {
        (method, column.name): cell(table, method, column, trials.get((method, column.name), ()))
        for column in columns
        for method in table.methods
    }
    kept = {key: runs for key, runs in trials.items() if key in cells}
    return Reproduced(table, tuple(columns), cells, kept)


def cell(table: Table, method: str, column: Column, trials: Sequence[Trial]) -> Cell:
    """What was measured of one method in one column, and whether it agrees with what is printed."""
    printed = table.printed.get(method, {}).get(column.name)
    printed = None if printed is None or math.isnan(printed) else printed
    if table.measure in ("rounds", "gflops"):
        values, measured, error = _rounds(trials, column.target or 0.0)
        if table.measure == "gflops":
            unit = gigaflops(table.experiment(method, column, seed=1))
            values, measured, error = tuple(unit * value for value in values), unit * measured, unit * error
    else:
        values = tuple(_value(table, column, trial) for trial in trials)
        measured = float(np.mean(values)) if values else math.nan
        error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    half = student(len(values)) * error if len(values) > 1 and math.isfinite(measured) else math.nan
    found = Cell(method, column.name, printed, values, measured, half, "")
    return replace(found, verdict=_verdict(table, found))


def _verdict(table: Table, found: Cell) -> Verdict:
    printed, measured, count = found.printed, found.measured, len(found.values)
    if printed is None:
        return ""
    if (found.method, found.column) in table.contradicted:
        return "table contradicts itself"
    if not count:
        return "not run"
    if found.method in table.incomparable:
        return "not comparable"
    if math.isinf(printed) or math.isinf(measured):
        return "agrees" if math.isinf(printed) == math.isinf(measured) else "differs"
    if count < 2:
        return "one seed"
    # Both are means of a few trials with the same spread: their difference has the variance of both.
    wide = found.half * math.sqrt(1 + count / max(table.trials, 1))
    exact = {"rounds": 0.5, "gflops": 0.0005 * printed}.get(table.measure, 0.05)  # what rounding in print hides
    return "agrees" if abs(printed - measured) <= max(wide, exact) else "differs"


def _value(table: Table, column: Column, trial: Trial) -> float:
    """A single run's number; a share in percent."""
    values = np.asarray(trial.values)
    unit = 100 if table.figure is None or table.figure.share else 1
    if not len(values):
        return math.nan
    if table.measure == "best":
        return unit * float(np.nanmax(values))
    if table.measure == "last ten":
        return unit * float(np.mean(values[-10:]))
    if column.at is not None and column.at in trial.at:
        return unit * float(values[trial.at.index(column.at)])
    return unit * float(values[-1])


def _rounds(trials: Sequence[Trial], target: float) -> tuple[tuple[float, ...], float, float]:
    """Rounds to the target: each seed's own, that of the mean curve, and its standard error by a bootstrap."""
    if not trials:
        return (), math.nan, math.nan
    at = trials[0].at
    curves = np.array([trial.values for trial in trials if trial.at == at])
    own = tuple(_first(at, curve, target) for curve in curves)
    measured = _first(at, curves.mean(0), target)
    if len(curves) < 2:
        return own, measured, math.nan
    generator = rng.generator(0, "reproduce", len(curves))
    picks = generator.integers(0, len(curves), (DRAWS, len(curves)))
    drawn = np.array([_first(at, curves[pick].mean(0), target) for pick in picks])
    reached = drawn[np.isfinite(drawn)]
    wider = math.sqrt(len(curves) / (len(curves) - 1))  # a bootstrap's spread is that of the seeds there are
    return own, measured, wider * float(reached.std()) if len(reached) > DRAWS / 2 else math.nan


def _first(at: Sequence[int], curve: NDArray[Any], target: float) -> float:
    met = np.flatnonzero(curve >= target)
    return float(at[met[0]]) if len(met) else math.inf
