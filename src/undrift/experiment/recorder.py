"""Who remembers a run: memory, a ledger, and trackers beside either. Whoever plays the rounds asks none of this.

A recorder is told when a run begins, of every round, and how it ended. It says where the run left off and gives back
its history. It decides nothing about training.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from undrift.core.algorithm import Method
from undrift.core.figure import Figure
from undrift.core.loop import Snapshot
from undrift.core.records import Nothing
from undrift.core.runtime import Runtime
from undrift.core.states import Memory, States
from undrift.core.vector import Buffers
from undrift.experiment.prepare import Ready
from undrift.ledger.history import History
from undrift.ledger.rows import Entry, RoundRow, Run
from undrift.ledger.states import LedgerStates
from undrift.ledger.store import Ledger
from undrift.ledger.track import Tracker, available, tracker


class Recorder(Protocol):
    """Remembers one run."""

    @property
    def run(self) -> Run: ...

    @property
    def path(self) -> Path | None:
        """The ledger, where there is one."""

    def holding(self) -> Any:
        """A context in which nobody else may write this run."""

    def states(self, method: Method, device: str, elsewhere: bool = False) -> States:
        """Where the clients' states go; ``elsewhere``: the clients keep them themselves."""

    def resumed(self, method: Method, device: str) -> Snapshot | None:
        """Where the run left off, with all that its last round noted; None: it has not begun."""

    def best(self, method: Method, device: str) -> Snapshot | None:
        """What the round that was best on the validation data left, if it was kept."""

    def began(self, runtime: Runtime) -> None:
        """The rounds begin now, on this runtime."""

    def record(self, entry: Entry) -> None:
        """A round was played."""

    def ended(self, status: str, message: str = "") -> None:
        """The run is over: finished, stopped or failed."""

    def history(self) -> History: ...


class InMemory:
    """Remembers a run as long as the process lives."""

    path = None

    def __init__(self, prepared: Ready, name: str = "", description: Mapping[str, Any] | None = None) -> None:
        self.run = Run(0, name, "running", time.time(), dict(description or {}), prepared.facts(), "", 0)
        self._plan = prepared.plan
        self._rounds: list[RoundRow] = []
        self._metrics: list[tuple[int, Figure, float | None]] = []
        self._status = "running"
        self._best: Snapshot | None = None

    @contextmanager
    def holding(self) -> Iterator[None]:
        yield

    def states(self, method: Method, device: str, elsewhere: bool = False) -> States:
        return Memory()

    def resumed(self, method: Method, device: str) -> Snapshot | None:
        return None

    def best(self, method: Method, device: str) -> Snapshot | None:
        return self._best

    def began(self, runtime: Runtime) -> None:
        self.run.facts.update(_told(runtime))

    def record(self, entry: Entry) -> None:
        self._rounds.append(entry.row)
        self._metrics += [(entry.round, figure, value) for figure, value in entry.metrics]
        if entry.best:
            assert isinstance(entry.buffers, Buffers)
            self._best = Snapshot(entry.round, entry.server, entry.buffers)

    def ended(self, status: str, message: str = "") -> None:
        self._status = status

    def history(self) -> History:
        run, plan = self.run, self._plan
        return History(
            run.label, plan.seed, self._rounds, self._metrics, plan.rounds, self._status, run.facts, run.experiment
        )


class InLedger:
    """Remembers a run in a ledger, round by round, so that it can go on after a crash."""

    def __init__(self, ledger: Ledger, run: Run) -> None:
        self._ledger, self.run, self.path = ledger, run, ledger.path
        self._states: LedgerStates | None = None

    def holding(self) -> Any:
        return self._ledger.holding(self.run)

    def states(self, method: Method, device: str, elsewhere: bool = False) -> States:
        kind: Any = Nothing if elsewhere else method.records()["client"]
        self._states = LedgerStates(self._ledger, self.run, kind, device, rounds=elsewhere)
        return self._states

    def resumed(self, method: Method, device: str) -> Snapshot | None:
        stored = self._ledger.snapshot(self.run)
        if stored is None:
            if self.run.rounds:
                self._ledger.restart(self.run)  # a repair left its rounds, and not the states to go on from the last
            return None
        server = method.records()["server"].of(stored.server)
        notes = next(row.notes for row in self._ledger.rounds(self.run) if row.round == stored.round)
        buffers = Buffers.of(stored.buffers)
        return Snapshot(stored.round, server.to(device), buffers.to(device), notes)

    def best(self, method: Method, device: str) -> Snapshot | None:
        self._ledger.flush()
        stored = self._ledger.snapshot(self.run, best=True)
        if stored is None:
            return None
        server, buffers = method.records()["server"].of(stored.server), Buffers.of(stored.buffers)
        return Snapshot(stored.round, server.to(device), buffers.to(device))

    def began(self, runtime: Runtime) -> None:
        self._ledger.set_status(self.run, "running", facts=_told(runtime))

    def record(self, entry: Entry) -> None:
        kept = {} if self._states is None else self._states.unwritten()
        self._ledger.record(self.run, replace(entry, kept=kept))

    def ended(self, status: str, message: str = "") -> None:
        self._ledger.set_status(self.run, status, message)
        self.run = self._ledger.run(self.run.id)

    def history(self) -> History:
        return History.of(self._ledger, self.run)


class Tracked:
    """A recorder whose rounds go to a tracker too, as they happen."""

    def __init__(self, recorder: Recorder, kind: str) -> None:
        available(kind)  # said before the first round, not after it
        self._inner, self._kind = recorder, kind
        self._tracker: Tracker | None = None
        self.path = recorder.path
        self.holding, self.states, self.resumed = recorder.holding, recorder.states, recorder.resumed
        self.best = recorder.best
        self.history = recorder.history

    @property
    def run(self) -> Run:
        return self._inner.run

    def began(self, runtime: Runtime) -> None:
        self._inner.began(runtime)
        self._tracker = tracker(self._kind, self.run)

    def record(self, entry: Entry) -> None:
        self._inner.record(entry)
        if self._tracker is not None:
            self._tracker(entry)

    def ended(self, status: str, message: str = "") -> None:
        self._inner.ended(status, message)
        if self._tracker is not None:
            self._tracker.close(status)


def tracked(recorder: Recorder, kind: str | None) -> Recorder:
    """The recorder, with a tracker beside it where one is named."""
    return recorder if kind is None else Tracked(recorder, kind)


def _told(runtime: Runtime) -> dict[str, str]:
    return {"runtime": runtime.name} | ({"runtime_why": runtime.why} if runtime.why else {})
