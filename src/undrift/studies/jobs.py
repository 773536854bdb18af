"""A queue of described runs, worked off by processes. Whoever starts the same queue again goes on where it stopped:
runs are known by their names, finished ones are left alone and unfinished ones resumed.
"""

from __future__ import annotations

import json
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from undrift import algorithms
from undrift.core.errors import InvalidInput
from undrift.data import Dataset, data_root
from undrift.experiment.description import Experiment
from undrift.experiment.prepare import completed
from undrift.experiment.progress import Glance, Watcher
from undrift.experiment.start import check_described, resume_experiment, run, start_experiment
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.runtimes import check_workers


@dataclass(frozen=True)
class Queued:
    """One run: its name in the ledger and its description, to be played up to the description's rounds."""

    name: str
    values: dict[str, Any]
    facts: dict[str, Any] = field(default_factory=dict)  # recorded beside the description


@dataclass(frozen=True)
class Done:
    """A run that was worked off; ``error`` is a sentence where it failed."""

    name: str
    error: str = ""
    refused: bool = False  # it was no accident: the method, or the data, do not allow it


@dataclass(frozen=True)
class Own:
    """A user's own objects, which have no description: such runs stay in this process."""

    data: Dataset | None = None
    model: Any = None
    loss: Any = None
    methods: Mapping[str, Any] = field(default_factory=dict)  # classes by name

    def __bool__(self) -> bool:
        return bool(self.data is not None or self.model is not None or self.loss is not None or self.methods)


@dataclass(frozen=True)
class Observer:
    """Who wants to hear of a queue: of runs that are done, of rounds, and of what happens within long rounds."""

    tell: Callable[[Done], None] = lambda done: None
    watch: Watcher | None = None
    within: Glance | None = None


@dataclass(frozen=True)
class Place:
    """Where runs are recorded, where data are, and what else they need to be performed."""

    ledger: Path
    root: str | Path | None = None
    track: str | None = None
    own: Own = field(default_factory=Own)
    held: Mapping[str, Dataset] = field(default_factory=dict)  # data sets that are there already, by `section_of`


def work_off(
    queue: Sequence[Queued], place: Place, *, workers: int | None = None, observer: Observer | None = None
) -> list[Done]:
    """Work off a queue, a few runs at a time; those that failed. A run that fails does not stop the others."""
    check_workers(workers)
    observer = observer or Observer()
    for name, count in Counter(item.name for item in queue).items():
        if count > 1:
            raise InvalidInput(f"two of the runs would have the same name, {name!r}: a method is listed twice")
    with Ledger(place.ledger, create=True) as book:
        known = {run.name: run for run in book.runs()}
        waiting = [item for item in queue if not is_done(known.get(item.name), item)]
    for item in queue:
        if item not in waiting:
            observer.tell(Done(item.name))
    if any(item.values.get("runtime") == "ray" for item in waiting):
        from undrift.studies.cluster import spread_out

        found = spread_out(queue, waiting, place, workers, observer)
    else:
        crowd = min(workers or cores(), max(1, len(waiting)))
        found = (
            here(waiting, place, observer) if crowd == 1 or stays(place) else _there(waiting, place, crowd, observer)
        )
    failed = []
    for done in found:
        observer.tell(done)
        if done.error:
            failed.append(done)
    return failed


def cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def stays(place: Place) -> bool:
    """Must runs stay in this process? A tracker's own store knows one writer; a user's own objects do not travel."""
    return place.track is not None or bool(place.own)


def is_done(run: Run | None, item: Queued) -> bool:
    return run is not None and run.status == "finished" and run.rounds >= int(item.values["rounds"])


def here(queue: Sequence[Queued], place: Place, observer: Observer) -> Iterator[Done]:
    for item in queue:
        yield perform(item, place, observer)


def _there(queue: Sequence[Queued], place: Place, count: int, observer: Observer) -> Iterator[Done]:
    from undrift.studies.crew import Crew  # not in its workers, which perform

    with Crew(count, place) as crew:
        yield from crew.work_off(queue, observer)


@cache
def _dataset(section: str, root: str | None) -> Dataset:
    """Loaded once per process, not once per run."""
    return Experiment.build({"data": json.loads(section)}).data.load(data_root(root))


def section_of(experiment: Experiment) -> str:
    """By what a data set is known among those of a queue."""
    return json.dumps(experiment.values()["data"])


def loaded(experiment: Experiment, place: Place) -> Dataset:
    section = section_of(experiment)
    return place.held.get(section) or _dataset(section, None if place.root is None else str(place.root))


def perform(item: Queued, place: Place, observer: Observer | None = None, workers: int | None = None) -> Done:
    """Begin one run or go on with it, in this process."""
    observer = observer or Observer()
    try:
        if place.own:
            _perform_own(item, place, observer)
        else:
            _perform_described(item, place, observer, workers)
    except InvalidInput as error:
        return Done(item.name, str(error), refused=True)
    except Exception as error:
        if place.own:
            raise  # it may well be in the user's own code, who wants to see where
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Done(item.name, f"{type(error).__name__}: {error} ({Path(where.filename).name}, line {where.lineno})")
    return Done(item.name)


def _perform_described(item: Queued, place: Place, observer: Observer, workers: int | None) -> None:
    experiment = replace(Experiment.build(item.values, item.name), name=item.name)
    dataset = loaded(experiment, place)
    experiment = completed(experiment, dataset)
    told: dict[str, Any] = {"watch": observer.watch, "within": observer.within, "track": place.track}
    with Ledger(place.ledger) as book:
        earlier = next((run for run in book.runs() if run.name == item.name), None)
        if earlier is None:
            start_experiment(experiment, book, dataset=dataset, extra=item.facts, workers=workers, **told)
        else:
            check_described(earlier, experiment)
            rounds = experiment.plan.rounds
            resume_experiment(earlier, book, dataset=dataset, rounds=rounds, workers=workers, **told)


def _perform_own(item: Queued, place: Place, observer: Observer) -> None:
    """With the user's own objects in the places of what the description names."""
    own, values = place.own, dict(item.values)
    section = dict(values.pop("algorithm"))
    values["train"] = {**values.get("train", {}), **section.pop("train", {})}
    method = {**algorithms.algorithms(), **own.methods}[section.pop("name")].create(**section)
    described = Experiment.build(values, item.name)
    with Ledger(place.ledger, create=True) as book:
        begun = any(run.name == item.name for run in book.runs())
    run(
        method,
        data=loaded(described, place) if own.data is None else own.data,
        partition=described.partition,
        model=described.model if own.model is None else own.model,
        loss=own.loss,
        training=described.train,
        ledger=place.ledger,
        name=item.name,
        watch=observer.watch,
        resume=begun,
        track=place.track,
        facts=item.facts,
        **described.plan.values(),
    )
