"""A loop, in process: the reference that every other runtime is compared with."""

from __future__ import annotations

from collections.abc import Iterator

from undrift.core.client import one_thread, work
from undrift.core.federation import Federation
from undrift.core.reduce import Reply
from undrift.core.runtime import Runtime, Task


class Serial(Runtime):
    name = "serial"

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.trainer = federation.trainer()

    def replies(self, task: Task) -> Iterator[Reply]:
        with one_thread():
            for place, client in enumerate(task.cohort.ids.tolist()):
                kept = task.kept[client]
                buffers = task.buffers if task.method.shares_buffers else kept.buffers
                local = self.trainer.local(client, task.cohort.round, self.federation.rows(client), buffers)
                try:
                    yield work(task.method, task.down.row(place), kept, local, task.survey)
                except Exception as error:
                    error.add_note(
                        f"client {task.cohort.population.name(client)}, round {task.cohort.round}, "
                        f"step {local.drawn} of {local.steps}, {local.n} samples "
                        f"of shape {tuple(self.federation.x.shape[1:])}"
                    )
                    raise
