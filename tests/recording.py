"""A serial runtime that keeps what it saw, and the state of clients over a run: for tests that look inside a round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor

from undrift.core.federation import Federation
from undrift.core.reduce import Reply
from undrift.core.runtime import Task
from undrift.runtimes.serial import Serial
from worked import Played, play


class Recording(Serial):
    """Keeps the tasks and the replies."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.seen: list[tuple[Task, list[Reply]]] = []

    def replies(self, task: Task) -> Iterator[Reply]:
        answers = list(super().replies(task))
        self.seen.append((task, answers))
        yield from answers


def recorded(
    federation: Federation, name: str, rounds: int, participate: int | None = None, **settings: Any
) -> tuple[list[Played], list[tuple[Task, list[Reply]]]]:
    """The rounds of a run, and all that was exchanged."""
    runtime = Recording(federation)
    return play(federation, name, rounds, participate, lambda _: runtime, **settings), runtime.seen


def states(federation: Federation, name: str, rounds: int, participate: int | None = None, **settings: Any) -> Any:
    """The server after a run, and what every client that took part keeps."""
    played = play(federation, name, rounds, participate, **settings)
    kept = {client: held.state for result in played for client, held in result.kept.items()}
    return played[-1].snapshot.server, dict(sorted(kept.items()))


def average(federation: Federation, kept: dict[int, Any], field: str, weights: str) -> Tensor:
    """The mean of a field over all clients of the population; those without a state count as 0."""
    samples = np.asarray(federation.population.samples, dtype=float)
    share = samples / samples.sum() if weights == "samples" else np.full(len(samples), 1 / len(samples))
    rows = [float(share[client]) * getattr(state, field) for client, state in kept.items()]
    return sum(rows[1:], rows[0])
