"""A loop, in process: the reference that every other runtime is compared with."""

from __future__ import annotations

from collections.abc import Iterator

from undrift.core.client import local_for, one_thread, work
from undrift.core.eager import Trainer
from undrift.core.federation import Federation
from undrift.core.reduce import Reply
from undrift.core.runtime import Runtime, Task


class Serial(Runtime):
    name = "serial"

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.trainer = federation.trainer()

    def replies(self, task: Task) -> Iterator[Reply]:
        with one_thread():
            for place in range(task.cohort.size):
                yield reply(self, self.trainer, task, place)


def reply(runtime: Runtime, trainer: Trainer, task: Task, place: int) -> Reply:
    """What the client at this place of the cohort answers; an error says whose it was."""
    cohort = task.cohort
    client = int(cohort.ids[place])
    kept = runtime.kept(task.method, client)
    local = local_for(task.method, trainer, client, cohort.round, kept, task.buffers)
    try:
        return work(task.kind, task.method, task.down.row(place), kept, local, task.stages)
    except Exception as error:
        error.add_note(
            f"client {cohort.population.name(client)}, round {cohort.round}, "
            f"step {local.drawn} of {local.steps}, {local.n} samples of shape {tuple(runtime.federation.x.shape[1:])}"
        )
        raise
