"""Clients side by side in the threads of one process, each on one core, with a model of its own.

Nothing is started and nothing is copied, so a run begins at once and needs the memory of one process. In exchange
threads share the interpreter: when steps are short they wait for it, and processes are faster. The bits are those of
the serial runtime.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from undrift.core.client import one_thread
from undrift.core.eager import Trainer
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.reduce import Reply
from undrift.core.runtime import Mapped, Runtime, Task
from undrift.runtimes import crowd
from undrift.runtimes.crew import Crew
from undrift.runtimes.memory import keep_freed_memory
from undrift.runtimes.serial import reply


class Threads(Runtime):
    name = "threads"

    def __init__(self, federation: Federation, workers: int | None = None) -> None:
        trainers = [federation.trainer() for _ in range(crowd(workers))]
        if trainers[0].live.stochastic:
            raise InvalidInput(
                "the model has dropout, and threads share the stream that its masks are drawn from: "
                "use the runtime processes or serial"
            )
        keep_freed_memory()
        super().__init__(federation)
        self._crew = Crew(len(trainers))
        self._trainers: SimpleQueue[Trainer] = SimpleQueue()
        for trainer in trainers:
            self._trainers.put(trainer)

    def replies(self, task: Task) -> Iterator[Reply]:
        def work(place: int) -> Reply:
            trainer = self._trainers.get()
            try:
                return reply(self, trainer, task, place)
            finally:
                self._trainers.put(trainer)

        samples = task.cohort.population.samples[task.cohort.ids]
        with one_thread():
            yield from self._crew.each(work, (-samples).argsort(kind="stable").tolist())  # the longest first

    def map(self, function: Mapped, tensors: Mapping[str, Tensor], items: Sequence[Any]) -> list[dict[str, Tensor]]:
        def work(place: int) -> tuple[int, dict[str, Tensor]]:
            with torch.no_grad():
                return place, function(self.federation, tensors, items[place])

        with one_thread():
            found = dict(self._crew.each(work, range(len(items))))
        return [found[place] for place in range(len(items))]

    def close(self) -> None:
        self._crew.close()
