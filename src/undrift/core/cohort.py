"""Who takes part: the population, and the cohort of one round. Everything the server may know."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core import rng
from undrift.core.spent import Spent
from undrift.core.vector import Layout

if TYPE_CHECKING:
    from undrift.core.local import Local


@dataclass(frozen=True)
class Population:
    """All clients: how many samples each holds, what it is called, and the layout of the model they train."""

    samples: NDArray[np.int64]
    layout: Layout  # of the model they train
    names: tuple[str, ...] | None = None  # None: clients are called by their number
    public: int = 0  # samples that the server itself may train on
    steps: NDArray[np.int64] | None = None  # local steps that each is to take; None: not known

    @property
    def size(self) -> int:
        return len(self.samples)

    @cached_property
    def total(self) -> int:
        return int(self.samples.sum())

    def name(self, client: int) -> str:
        return self.names[client] if self.names else str(client)

    def sample(self, seed: int, round: int, size: int) -> NDArray[np.int64]:
        """The clients of a round: uniform, without replacement, in increasing order."""
        if size >= self.size:
            return np.arange(self.size, dtype=np.int64)
        return rng.sample(rng.key(seed, "cohort", round), self.size, size)


@dataclass(frozen=True)
class Cohort:
    """The clients of one round: those asked, and after the exchange those who answered."""

    ids: NDArray[np.int64]
    round: int
    lr: float  # the clients' learning rate in this round
    seed: int
    population: Population
    weighting: str = "samples"
    steps: Tensor = field(default_factory=lambda: torch.empty(0))  # K_i of those who answered
    cost: tuple[Spent, ...] = ()  # measured, of those who answered
    began: float = field(default_factory=time.perf_counter)  # when the round did, on that clock
    elapsed: float = 0.0  # seconds from sending to the last answer
    public: Local | None = None  # the server's own data, where the experiment has any
    scoring: Local | None = None  # public inputs that are never trained on
    notes: dict[str, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.ids)

    @property
    def layout(self) -> Layout:
        return self.population.layout

    @cached_property
    def weights(self) -> Tensor:
        """Aggregation weights, summing to 1: by samples or uniform, as the method says."""
        if self.weighting == "uniform":
            return torch.full((self.size,), 1 / max(self.size, 1), dtype=torch.float64)
        n = torch.from_numpy(self.population.samples[self.ids]).double()
        return n / n.sum()

    @property
    def portions(self) -> list[float]:
        """The same weights before they are made to sum to 1, which nobody can do until all have answered."""
        return [1.0] * self.size if self.weighting == "uniform" else self.population.samples[self.ids].tolist()

    @property
    def fraction(self) -> float:
        """The cohort's share of the population: of its clients, or of its samples where the mean is by samples."""
        if self.weighting == "uniform":
            return self.size / self.population.size
        return float(self.population.samples[self.ids].sum()) / self.population.total

    def rng(self, purpose: str) -> np.random.Generator:
        """Randomness for the server, keyed by seed, round and purpose."""
        return rng.generator(self.seed, "server", purpose, self.round)

    def note(self, name: str, value: float) -> None:
        """Report a number for the run's record."""
        self.notes[name] = float(value)

    def answered(self, ids: NDArray[np.int64], steps: Tensor, cost: tuple[Spent, ...]) -> Cohort:
        return replace(self, ids=ids, steps=steps, cost=cost, notes=self.notes)
