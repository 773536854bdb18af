"""The round loop. A run is a value, ``Snapshot``, and a function from one round's snapshot to the next."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from undrift.core.algorithm import Algorithm, Method
from undrift.core.client import Candidate, one_thread
from undrift.core.cohort import Cohort
from undrift.core.eager import Trainer
from undrift.core.errors import InvalidInput
from undrift.core.federation import PUBLIC, SCORING, Federation, Registered
from undrift.core.runtime import Exchanged, Runtime, Task
from undrift.core.spent import Spent
from undrift.core.stages import Carried, Uploads
from undrift.core.vector import Buffers


@dataclass(frozen=True)
class Snapshot:
    """All that is needed to go on, apart from what the clients keep."""

    round: int  # rounds done
    server: Any
    buffers: Buffers
    carried: Carried = field(default_factory=dict)  # by the stages that uploads pass


@dataclass(frozen=True)
class Round:
    """What one round did."""

    snapshot: Snapshot
    cohort: Cohort
    spent: Spent
    rejected: dict[int, str]
    drift: dict[str, float]
    skipped: bool
    seconds: float
    notes: dict[str, float] = field(default_factory=dict)


def resolved(method: Method, federation: Federation | Registered) -> Method:
    """The method with numbers for what it derives from how these clients train."""
    return method.resolved(federation.training, federation.layout, _steps(federation))


def fit(method: Method, federation: Federation | Registered) -> None:
    """All that a method can refuse, or warn of, before the first round."""
    method.fit(federation.training, federation.layout, _steps(federation))


def _steps(federation: Federation | Registered) -> int:
    """The largest number of local steps of any client."""
    return federation.training.steps_for(int(federation.population.samples.max()))


class Loop:
    """One method on one federation with one runtime, which also knows what the clients keep."""

    def __init__(
        self,
        federation: Federation | Registered,
        method: Method,
        runtime: Runtime,
        participate: int,
        uploads: Uploads | None = None,
    ) -> None:
        method = resolved(method, federation)
        self.uploads = uploads or Uploads()
        self.uploads.fit(method)
        self.federation, self.method, self.runtime = federation, method, runtime
        self.participate = participate
        self._start, self._buffers = federation.start()
        self._server_trainer: Trainer | None = None
        self._personal: bool | None = None
        fit(method, federation)
        method.check_start(self._start, federation.population)
        here = federation.here
        if method.needs_public and (here is None or here.public is None or here.scoring is None):
            raise InvalidInput(
                f"{method.title} needs public data on the server, to train on and to score models with, "
                "and this federation has none"
            )

    def start(self, stored: Snapshot | None = None) -> Snapshot:
        """Where it begins, or goes on: of what a stored round noted, the stages carry on what is theirs."""
        if stored is not None:
            return replace(stored, carried=self.uploads.carried(stored.carried))
        return Snapshot(0, self.method.server_init(self._start, self.federation.population), self._buffers)

    def play(self, before: Snapshot) -> Round:
        """The next round."""
        began = time.perf_counter()
        method, t = self.method, before.round + 1
        self.runtime.states.drop()  # of a round that failed in its middle
        cohort, server = self._cohort(t), before.server
        spent, first = Spent(), None
        rejected: dict[int, str] = {}
        if method.exchanges == 2:
            first = method.ask(server, cohort)
            asked = self.runtime.exchange(Task(method, first, cohort, before.buffers, "survey", uploads=self.uploads))
            rejected |= asked.rejected
            if asked.up is None:
                return self._skipped(before, replace(cohort, elapsed=asked.cohort.elapsed), rejected, began)
            server = method.surveyed(server, asked.up, asked.cohort)
            _add(spent, asked)
            cohort = self._cohort(t, asked.cohort.ids)
        down = method.broadcast(server, cohort)
        done = self.runtime.exchange(
            Task(method, down, cohort, before.buffers, first=first, uploads=self.uploads, carried=before.carried)
        )
        rejected |= done.rejected
        if done.up is None:
            return self._skipped(before, replace(cohort, elapsed=done.cohort.elapsed), rejected, began)
        _add(spent, done)
        with one_thread():
            server = method.server_update(server, done.up, done.cohort)
        self.runtime.states.commit(done.cohort.ids.tolist(), t)
        buffers = done.buffers if done.buffers is not None else before.buffers
        carried = self.uploads.learnt(before.carried, done.lengths, done.cohort.notes)
        return Round(
            snapshot=Snapshot(t, server, buffers, carried),
            cohort=done.cohort,
            spent=spent,
            rejected=rejected,
            drift=done.drift,
            skipped=False,
            seconds=time.perf_counter() - began,
            notes=done.cohort.notes | carried,
        )

    def personalises(self, snapshot: Snapshot) -> bool:
        """Does the method, with its settings, have personal models?"""
        if self._personal is None:
            method, one = self.method, self._cohort(snapshot.round + 1, np.zeros(1, dtype=np.int64))
            self._personal = type(method).personal is not Algorithm.personal and (
                method.personal(
                    method.broadcast(snapshot.server, one).row(0),
                    self.federation.fresh(method).state,
                    self.federation.layout,
                )
                is not None
            )
        return self._personal

    def judge(self, snapshot: Snapshot, clients: Sequence[int], model: Tensor | None = None) -> Exchanged:
        """A model on the clients' own test data, or, without one, each client's own model: where the clients are.

        ``up`` has a row of ``Judged`` for each of those that answered. A personal model is made of what the client
        would receive next and of what it keeps.
        """
        cohort = self._cohort(snapshot.round + 1, np.array(clients, dtype=np.int64))
        down = Candidate(model) if model is not None else self.method.broadcast(snapshot.server, cohort)
        return self.runtime.exchange(Task(self.method, down, cohort, snapshot.buffers, "evaluate"))

    def personal(self, snapshot: Snapshot, client: int) -> tuple[Tensor, Buffers] | None:
        """The personal model of a client, and the statistics that go with it; None where the method has none."""
        cohort = self._cohort(snapshot.round + 1, np.array([client], dtype=np.int64))
        down, kept = self.method.broadcast(snapshot.server, cohort).row(0), self.runtime.kept(self.method, client)
        w = self.method.personal(down, kept.state, self.federation.layout)
        return None if w is None else (w, snapshot.buffers if kept.buffers is None else kept.buffers)

    def _skipped(self, before: Snapshot, cohort: Cohort, rejected: dict[int, str], began: float) -> Round:
        """Nobody's upload counted: nothing changes but the round's number, and what the method says of such a round."""
        server = self.method.skipped(before.server, cohort)
        after = Snapshot(before.round + 1, server, before.buffers, before.carried)
        notes = cohort.notes | dict(before.carried)
        return Round(after, cohort, Spent(), rejected, {}, True, time.perf_counter() - began, notes)

    def _cohort(self, t: int, ids: Any = None) -> Cohort:
        federation = self.federation
        if ids is None:
            ids = federation.population.sample(federation.seed, t, self.participate)
        public = scoring = None
        if self.method.needs_public and federation.here is not None:
            if self._server_trainer is None:
                self._server_trainer = Trainer(federation, federation.here)
            public = federation.here.public_local(self._server_trainer, PUBLIC, t)
            scoring = federation.here.public_local(self._server_trainer, SCORING, t)
        return Cohort(
            ids=ids,
            round=t,
            lr=federation.training.lr_at(t),
            seed=federation.seed,
            population=federation.population,
            weighting=self.method.weights,
            public=public,
            scoring=scoring,
        )


def _add(spent: Spent, exchanged: Exchanged) -> None:
    for part in exchanged.cohort.cost:
        spent += part
