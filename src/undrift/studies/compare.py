"""Methods over seeds, on the same data, partition and initial model: who is better, by how much, how sure that is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from undrift import algorithms as registry
from undrift.analysis.comparison import Comparison, Row, comparison
from undrift.analysis.intervals import Spread
from undrift.analysis.verdict import Verdict, headline, verdicts
from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput
from undrift.core.figure import Figure
from undrift.core.training import Training
from undrift.data import Dataset, Partitioner, data_root
from undrift.experiment.bars import watcher
from undrift.experiment.description import Experiment, tag
from undrift.experiment.notebook import chart
from undrift.experiment.prepare import completed, refuse
from undrift.experiment.progress import Watcher
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.studies.jobs import Done, Observer, Own, Place, Queued, cores, work_off
from undrift.studies.lineup import (
    Section,
    asked,
    filled,
    line_up,
    on_common_ground,
    own_training,
    run_name,
    with_controls,
)
from undrift.studies.scene import DEFAULT_ROUNDS, Scene, scene, seeds_of
from undrift.studies.shown import Shown

DEFAULT = ("fedavg", "fedprox", "scaffold", "fedtrip")
SMALL = 64 * 2**20  # bytes of data up to which runs are put side by side even where cores are left over
FEW = 1000  # local trainings, in all runs, up to which starting processes takes longer than it saves


@dataclass(frozen=True, repr=False)
class Compared(Shown):
    """A comparison that was run: the table with its intervals, the verdicts, and all that was recorded."""

    name: str
    comparison: Comparison
    histories: tuple[History, ...]
    failed: tuple[Done, ...] = ()
    ledger: Path | None = None

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.comparison.rows

    @property
    def headline(self) -> Verdict:
        return headline(self.comparison)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return verdicts(self.comparison)

    @cached_property
    def figures(self) -> dict[str, dict[Figure, Spread]]:
        """Every figure that was evaluated, by method: its last value over the seeds."""
        return {row.label: figures(row) for row in self.rows}

    def records(self) -> list[dict[str, Any]]:
        """One record per method, numbers only."""
        return [self._record(row) for row in self.rows]

    def _record(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {"method": row.label, "seeds": len(row.group.runs)}
        for name, spread in (("final", row.final), ("best", row.best)):
            found |= {f"{name}_mean": spread.mean, f"{name}_sd": spread.sd}
        for column, cost in row.costs.items():
            found[f"{column}_to_target"] = cost.value
            if cost.ratio is not None:
                found |= {f"{column}_ratio": cost.ratio.value, f"{column}_ratio_low": cost.ratio.low}
                found[f"{column}_ratio_high"] = cost.ratio.high
        if row.gain is not None:
            found |= {"gain": row.gain.value, "gain_low": row.gain.low, "gain_high": row.gain.high}
        for figure, spread in self.figures[row.label].items():
            found[f"{figure.metric} of {figure.model} on {figure.data}"] = spread.mean
        return found | {"rejected": row.rejected, "skipped": row.skipped}

    def lines(self) -> tuple[list[list[str]], list[str]]:
        from undrift.report.table import cells, headers, ordered, sentences

        found = self.comparison
        table = [headers(found), *(cells(found, row) for row in ordered(found))]
        return table, [*sentences(found), *(f"{done.name} failed: {done.error}" for done in self.failed)]

    def _repr_html_(self) -> str:
        found = self.comparison
        first = {row.label: row.group.runs[0] for row in self.rows}
        figure, seed = found.figure, next(iter(first.values())).seed
        curves = {label: run.curve(figure) for label, run in first.items()}
        return super()._repr_html_() + chart(curves, f"{figure.words}, seed {seed}", figure.share)


def figures(row: Row) -> dict[Figure, Spread]:
    """The last value of everything that was evaluated, over the seeds of one method."""
    found: dict[Figure, list[float]] = {}
    for run in row.group.runs:
        for figure in run.figures:
            found.setdefault(figure, []).append(run.curve(figure)[1][-1])
    return {figure: Spread.of(values) for figure, values in found.items()}


def compare(
    algorithms: str | Iterable[str | Mapping[str, Any] | Method] = DEFAULT,
    *,
    seeds: int | str | Iterable[int] = (1, 2, 3),
    data: Dataset | str | Mapping[str, Any] = "digits",
    partition: Partitioner | str | Mapping[str, Any] = "dirichlet",
    model: Any = None,
    loss: Any = None,
    training: Training | None = None,
    ledger: str | Path | None = None,
    name: str = "compare",
    resume: bool = False,
    side_by_side: int | None = None,
    track: str | None = None,
    watch: Watcher | None = None,
    root: str | Path | None = None,
    **plan: Any,
) -> Compared:
    """Compare methods over seeds.

    Methods are names, ``"fedtrip:mu=1"`` with settings, or objects; ``"all"`` takes every one. Everything else is as in
    ``undrift.run``, with ``target`` for the costs to a target accuracy. Runs that are small are put side by side on the
    cores; ``side_by_side`` says how many. With ``ledger`` they are recorded there under ``name``, and ``resume=True``
    keeps what an earlier comparison of that name has done.
    """
    methods = asked(algorithms)
    where = scene(data, partition, model, loss, training, plan, methods)
    with kept(ledger) as path:
        return run_comparison(
            where,
            line_up(methods),
            seeds_of(seeds),
            name=name,
            place=Place(path, root, track, where.own),
            resume=resume,
            workers=side_by_side,
            observer=Observer(watch=watcher(watch)),
            stays=ledger is not None,
        )


def run_comparison(
    where: Scene,
    methods: Sequence[Section],
    seeds: Sequence[int],
    *,
    name: str,
    place: Place,
    resume: bool = False,
    workers: int | None = None,
    observer: Observer | None = None,
    facts: Mapping[str, Any] | None = None,
    stays: bool = True,
) -> Compared:
    """Run what is not done yet, and compare."""
    methods = with_controls(methods)
    with Ledger(place.ledger, create=True) as book:
        name = group_name([run.name for run in book.runs()], name, resume)
    queue = queued(where, methods, seeds, name, facts or {})
    if not where.own:
        workers = workers or spread(queue, place)
    failed = work_off(queue, place, workers=workers, observer=observer)
    gone = {done.name: done for done in failed}
    with Ledger(place.ledger) as book:
        runs = {run.name: run for run in book.runs()}
        histories = [History.of(book, runs[item.name]) for item in queue if item.name in runs and item.name not in gone]
    if not histories:
        raise InvalidInput(f"no run of the comparison could be made: {failed[0].error}")
    found = comparison(histories, queue[0].values.get("target"))
    return Compared(name, found, tuple(histories), tuple(failed), place.ledger if stays else None)


def queued(
    where: Scene, methods: Sequence[Section], seeds: Sequence[int], name: str, facts: Mapping[str, Any]
) -> list[Queued]:
    """The runs, method by method and seed by seed. Settings given for all go to the methods that have them."""
    shared = on_common_ground(where.values, methods)
    given = shared.pop("algorithm", {})
    classes = {**registry.algorithms(), **where.own.methods}
    told = {**facts, "comparison": name}
    found = []
    for method in methods:
        section = filled(method, given, classes[method["name"]])
        for seed in seeds:
            values = {"rounds": DEFAULT_ROUNDS, **shared, "algorithm": section, "seed": seed}
            found.append(Queued(run_name(name, tag(method), seed), values, told | own_training(method)))
    return found


def spread(queue: Sequence[Queued], place: Place) -> int | None:
    """How many of the runs to put side by side; 1 where each of them had better have all cores to itself, and None
    where they go to a cluster, whose size is not known here.

    What one of the methods refuses is refused here, before the first run.
    """
    experiments = [replace(Experiment.build(item.values, "comparison"), name=item.name) for item in queue]
    first = experiments[0]
    dataset = first.data.load(data_root(place.root))
    experiments = [completed(experiment, dataset) for experiment in experiments]
    refuse(experiments, dataset)
    plan, count = first.plan, min(cores(), len(queue))
    if plan.runtime == "ray":
        return None
    if plan.runtime in ("threads", "processes") or plan.workers is not None or plan.device != "cpu":
        return 1
    if len(queue) * plan.rounds * (plan.participate or plan.clients or 10) <= FEW:
        return 1
    held = sum(t.numel() * t.element_size() for t in (dataset.x, dataset.y, dataset.x_test, dataset.y_test))
    return count if held <= SMALL or (len(queue) >= cores() and held * count <= _free() / 4) else 1


def _free() -> float:
    """Bytes of memory that are free, as far as the system tells."""
    import os

    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 4e9


def group_name(taken: Iterable[str], name: str, resume: bool) -> str:
    """What to call a comparison: by its name, with a number where that is taken; the latest of them to resume."""
    groups = {run.split("/")[0] for run in taken if "/" in run}
    found, count = name, 1
    while found in groups:
        latest, count = found, count + 1
        found = f"{name}-{count}"
    return latest if resume and count > 1 else found


@contextmanager
def kept(ledger: str | Path | None) -> Iterator[Path]:
    """The ledger that was named, or one that is gone afterwards."""
    if ledger is not None:
        yield Path(ledger)
        return
    with tempfile.TemporaryDirectory(prefix="undrift-") as folder:
        yield Path(folder) / "ledger.sqlite"


__all__ = ["Compared", "Own", "compare", "figures", "group_name", "queued", "run_comparison"]
