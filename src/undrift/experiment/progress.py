"""Where a run is, for whoever watches: after each round, and within rounds that take long."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from undrift.core.figure import HEADLINE, Figure


@dataclass(frozen=True)
class Progress:
    """Where a run is after a round."""

    label: str
    seed: int
    round: int
    rounds: int
    value: float | None  # the headline figure so far
    seconds: float  # since this process began the run
    done_here: int  # rounds played by this process
    figure: Figure = HEADLINE  # what the value is a value of
    evaluating: float = 0.0  # seconds of those above that went into evaluation
    run: str = ""  # its name

    @property
    def seconds_left(self) -> float | None:
        return self.seconds / self.done_here * (self.rounds - self.round) if self.done_here else None


@dataclass(frozen=True)
class Within:
    """Where a run is in the middle of a round."""

    label: str
    seed: int
    round: int  # the one that is being played
    rounds: int
    doing: Literal["training", "evaluating"]
    clients: int  # that have answered
    of: int
    seconds: float  # since the round, or its evaluation, began
    run: str = ""


Watcher = Callable[[Progress], None]
Glance = Callable[[Within], None]
