"""Clients as tasks of a Ray cluster, a fixed number in each, whose uploads are added up there: one travels for all.

What the driver takes in is less by that number. Which clients are added up together follows from the cohort and the
number alone, so the bits are the same on any cluster, and in a single process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

from undrift.core.admit import Door
from undrift.core.check import Rejected
from undrift.core.client import up_kind
from undrift.core.drift import Spread
from undrift.core.federation import Federation
from undrift.core.records import State
from undrift.core.reduce import Partial, Reply
from undrift.core.runtime import Runtime, Task
from undrift.core.states import Kept
from undrift.core.vector import Buffers
from undrift.runtimes import raytask
from undrift.runtimes.ray import Ray
from undrift.runtimes.raytask import Arrays, tensors_of
from undrift.runtimes.serial import Serial
from undrift.runtimes.sums import SumsHere, adds_up, bundles

import ray  # isort: skip  (after what says how it is to behave)


def runtime(
    federation: Federation, workers: int | None = None, gpus: float | None = None, together: int | None = None
) -> Runtime:
    """Clients as tasks of the cluster; but one after the other in a task, which has one core and the same bits."""
    if ray.is_initialized() and ray.get_runtime_context().get_task_id() is not None:
        return Serial(federation) if together is None else SumsHere(federation, together)
    return Ray(federation, workers, gpus) if together is None else Sums(federation, together, workers, gpus)


class Sums(Ray):
    def __init__(
        self, federation: Federation, together: int, workers: int | None = None, gpus: float | None = None
    ) -> None:
        """``together``: clients whose uploads are added up in one task."""
        super().__init__(federation, workers, gpus)
        self._together = together
        self._sums = ray.remote(**self._options)(raytask.summed)

    def replies(self, task: Task) -> Iterator[Reply | Partial | Rejected]:
        if not adds_up(task):
            yield from super().replies(task)
            return
        method, cohort = task.method, task.cohort
        exchange, clients = self._exchange(task), cohort.ids.tolist()
        sent: dict[int, Any] = {}

        def submit(bundle: list[range]) -> Any:
            kept = [self._sent(clients[place], self.kept(method, clients[place]), sent) for place in bundle[0]]
            places = [(place, clients[place]) for place in bundle[0]]
            return self._sums.remote([self._setup], [exchange], places, *kept)

        def name(place: int) -> str:
            return f"client {cohort.population.name(clients[place])}, round {cohort.round}"

        door = Door(self.expecting(task))
        for _, (_, arrays, header) in self._run(submit, bundles(task, self._together), 1.0, name):
            yield self._put_together(task, door, arrays, header["found"], header["waiting"])

    def _put_together(self, task: Task, door: Door, arrays: Arrays, bare: Partial, single: list[Any]) -> Partial:
        """A sum as it was taken apart. Uploads that travelled as they are come through the door."""
        clients, waiting, rejected = task.cohort.ids.tolist(), dict[int, Reply](), dict(bare.rejected)
        for place, parts, header in single:
            found = door.admit_parts(clients[place], tensors_of(parts, self._device), header)
            if isinstance(found, Reply):
                waiting[place] = found
            else:
                rejected[clients[place]] = found.reason
        tensors = tensors_of(arrays, self._device)
        up, buffers, drift = (_part(tensors, name) for name in ("up", "buffers", "drift"))
        kind = cast(type[State], task.method.records()["client"])
        kept = {
            client: Kept.of(kind, _part(tensors, str(client)), task.cohort.round)
            for client in (bare.clients if task.kind == "update" else ())
        }
        return replace(
            bare,
            up=up_kind(task.method, task.kind)(**up) if bare.clients else None,
            buffers=Buffers.of(buffers) if buffers else None,
            drift=Spread(*bare.drift, **drift) if bare.drift else None,
            kept=kept,
            waiting=waiting,
            rejected=rejected,
        )


def _part(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    begin = prefix + "."
    return {name.removeprefix(begin): value for name, value in tensors.items() if name.startswith(begin)}
