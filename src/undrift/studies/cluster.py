"""Whole runs of a study as tasks of a Ray cluster, leg by leg. A leg takes a run as it stands and plays some rounds.

A run travels as a ledger of its own, and what a leg brought back takes the run's place in the study's ledger at once.
So a task knows nothing but what it is given and may be repeated; whoever is killed loses a leg, never what was there.
Data are loaded here and read in place on the nodes, which need not have them. Ray itself is the runtime's matter.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import torch

from undrift.core.errors import InvalidInput
from undrift.data import Dataset
from undrift.experiment.description import Experiment
from undrift.experiment.progress import Progress
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.runtimes import on_ray
from undrift.runtimes.raytask import arrays_of, tensors_of
from undrift.studies.jobs import Done, Observer, Place, Queued, here, loaded, perform, section_of, stays

FIRST, LONGEST = 2.0, 30.0  # seconds of a leg: each may take twice as long as the one before
USUAL = 10  # clients of a round where nothing is said
TENSORS = ("x", "y", "x_test", "y_test")  # of a data set


@dataclass(frozen=True)
class Leg:
    """What a task brings back."""

    done: Done | None  # None: rounds are left
    ledger: bytes | None  # None: nothing was recorded
    progress: Progress | None


def spread_out(
    queue: Sequence[Queued], waiting: Sequence[Queued], place: Place, workers: int | None, observer: Observer
) -> Iterator[Done]:
    """Work off what waits of a queue: whole runs side by side, or one after the other with their clients side by side,
    whichever keeps more of the cluster's cores busy."""
    values = queue[0].values
    gpus = (values.get("ray_gpus") or 1.0) if str(values.get("device", "cpu")).startswith("cuda") else 0.0
    calls = on_ray(values.get("ray_address")).Calls(leg, workers or values.get("workers"), gpus)
    if stays(place) or not whole(queue, calls.workers):
        yield from here(waiting, place, observer)
        return
    with Ledger(place.ledger) as book, _Traffic(book, place, calls) as traffic:
        yield from traffic.work_off(waiting, min(workers or calls.workers, calls.workers), observer)


def whole(queue: Sequence[Queued], cores: int) -> bool:
    """Do whole runs keep as many cores busy as the clients of one? It goes by the whole queue, so that a study that was
    stopped goes on as it began."""
    clients = max(item.values.get("participate") or item.values.get("clients") or USUAL for item in queue)
    return min(cores, len(queue)) >= min(cores, clients)


# --- on the machine that has the ledger -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Out:
    """A run that is on its way: as the ledger has it, and what ends its being held."""

    item: Queued
    run: Run | None
    release: contextlib.ExitStack
    seconds: float


class _Traffic:
    """Runs between the ledger and the cluster. One that is out is held here: nobody else can go on with it."""

    def __init__(self, book: Ledger, place: Place, calls: Any) -> None:
        self._book, self._place, self._calls = book, place, calls
        self._out: dict[Any, _Out] = {}
        self._data: dict[str, Any] = {}  # references, by their descriptions

    def __enter__(self) -> _Traffic:
        self._folder = tempfile.TemporaryDirectory(prefix="undrift-")
        return self

    def __exit__(self, *error: object) -> None:
        """Interrupt what is under way, and keep what it has done."""
        with self._folder:
            for ref, answer in self._calls.stop():
                self._receive(self._out.pop(ref), answer)
        for out in self._out.values():
            out.release.close()

    def work_off(self, queue: Sequence[Queued], count: int, observer: Observer) -> Iterator[Done]:
        waiting = deque((item, FIRST) for item in queue)
        while waiting or self._out:
            while waiting and len(self._out) < count:
                refused = self._send(*waiting.popleft())
                if refused is not None:
                    yield refused
            if not self._out:
                continue
            ref, answer = self._calls.answer()
            out = self._out.pop(ref)
            back = self._receive(out, answer)
            if back.progress is not None and observer.watch is not None:
                observer.watch(back.progress)
            if back.done is not None:
                yield back.done
            else:
                waiting.appendleft((out.item, min(2 * out.seconds, LONGEST)))

    def _send(self, item: Queued, seconds: float) -> Done | None:
        """Have a leg of a run played; a sentence where that cannot be."""
        release = contextlib.ExitStack()
        try:
            section, data = self._shared(item)
            run = self._known(item.name)
            if run is not None:
                release.enter_context(self._book.holding(run))
        except InvalidInput as error:
            return Done(item.name, str(error), refused=True)
        stored = None if run is None else self._packed(run)
        self._out[self._calls.call(item, stored, section, data, seconds)] = _Out(item, run, release, seconds)
        return None

    def _receive(self, out: _Out, answer: Any) -> Leg:
        """Put what a leg brought back in the place of what was there."""
        with out.release:
            try:
                if isinstance(answer, Exception):
                    raise answer
                if answer.ledger is not None:
                    self._unpack(out, answer.ledger)
            except InvalidInput as error:
                return Leg(Done(out.item.name, str(error), refused=True), None, None)
            except Exception as error:
                return Leg(Done(out.item.name, f"{type(error).__name__}: {error}"), None, None)
            back: Leg = answer
            return back

    def _shared(self, item: Queued) -> tuple[str, Any]:
        experiment = Experiment.build(item.values, item.name)
        section = section_of(experiment)
        if section not in self._data:
            self._data[section] = self._calls.share(_arrays(loaded(experiment, self._place)))
        return section, self._data[section]

    def _known(self, name: str) -> Run | None:
        return next((run for run in self._book.runs() if run.name == name), None)

    def _packed(self, run: Run) -> bytes:
        path = Path(self._folder.name) / "out.sqlite"
        with Ledger(path, create=True) as book:
            self._book.copy(run, book)
        return _taken(path)

    def _unpack(self, out: _Out, data: bytes) -> None:
        path = Path(self._folder.name) / "back.sqlite"
        path.write_bytes(data)
        with Ledger(path) as book:
            back, now = book.run(out.item.name), self._known(out.item.name)
            if (now and now.id) != (out.run and out.run.id):
                raise InvalidInput(f"run {back.name!r} was begun by another process meanwhile: its rounds are kept")
            if now is None or (now.rounds, now.status) != (back.rounds, back.status):
                book.copy(back, self._book, instead=now)
        path.unlink()


def _taken(path: Path) -> bytes:
    data = path.read_bytes()
    path.unlink()
    return data


def _arrays(data: Dataset) -> dict[str, Any]:
    """A data set as it travels: nodes read arrays where they lie."""
    found = {field.name: getattr(data, field.name) for field in fields(data)}
    return found | arrays_of({name: found[name] for name in TENSORS}) | {"content": data.content}


# --- in a worker of the cluster ---------------------------------------------------------------------------------------


class Pause(KeyboardInterrupt):
    """A leg has taken its time."""


def leg(item: Queued, stored: bytes | None, section: str, data: dict[str, Any], seconds: float) -> Leg:
    """Play rounds of a run for some seconds, and at least one. Interrupted, it brings back what it has done."""
    torch.set_num_threads(1)
    ends, last = time.monotonic() + seconds, list[Progress]()

    def watch(where: Progress) -> None:
        last[:] = [where]
        if time.monotonic() >= ends and where.round < where.rounds:
            raise Pause

    path = Path(_folder().name) / "ledger.sqlite"
    path.unlink(missing_ok=True)
    if stored is None:
        Ledger(path, create=True).close()
    else:
        path.write_bytes(stored)
    done = None
    with contextlib.suppress(KeyboardInterrupt):
        done = perform(item, Place(path, held={section: _dataset(data)}), Observer(watch=watch), workers=1)
    with Ledger(path) as book:
        recorded = bool(book.runs())
    return Leg(done, _taken(path) if recorded else None, last[0] if last else None)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """One per process, because a process keeps the lock of every ledger that it has opened."""
    return tempfile.TemporaryDirectory(prefix="undrift-")


def _dataset(arrays: dict[str, Any]) -> Dataset:
    tensors = tensors_of({name: arrays[name] for name in TENSORS}, "cpu", copy=False)
    data = Dataset(**{name: value for name, value in arrays.items() if name != "content"} | tensors)
    data.__dict__["content"] = arrays["content"]  # the hash was made where the data were loaded
    return data
