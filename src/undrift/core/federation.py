"""``Federation``: the model, the clients' data and how they train. Tensors and numbers only; no files, no names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from undrift.core import rng
from undrift.core.algorithm import Method
from undrift.core.cohort import Population
from undrift.core.cost import Profile, profile
from undrift.core.eager import Augment, EagerLocal, Loss, Trainer, as_rows
from undrift.core.errors import InvalidInput
from undrift.core.states import Kept
from undrift.core.training import Training
from undrift.core.vector import Buffers, Layout, Replica, flatten, layout_of

PUBLIC, SCORING = -1, -2  # the server's own data, in the place of a client's number

ModelLike = nn.Module | Callable[[], nn.Module]


def build(model: ModelLike, seed: int) -> nn.Module:
    """The module: a copy of one, or made by a factory whose initialisation draws from the seed alone."""
    if isinstance(model, nn.Module):
        return copy.deepcopy(model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.key(seed, "model") >> 1)
        module = model()
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"model must be an nn.Module or a function that returns one, not {type(module).__name__}")
    return module


@dataclass(frozen=True, eq=False)
class Federation:
    """Who holds what, and how they train. ``indices[offsets[i]:offsets[i+1]]`` are the rows of client ``i``."""

    module: nn.Module
    loss: Loss
    x: Tensor
    y: Tensor
    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]
    training: Training
    seed: int = 0
    names: tuple[str, ...] | None = None
    augment: Augment | None = None
    public: NDArray[np.int64] | None = None  # rows the server itself may train on
    scoring: NDArray[np.int64] | None = None  # rows the server may look at

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.module, self.x[:1])

    @cached_property
    def population(self) -> Population:
        samples = np.diff(self.offsets)
        if len(samples) == 0:
            raise InvalidInput("there are no clients")
        if (samples == 0).any():
            empty = int(np.flatnonzero(samples == 0)[0])
            raise InvalidInput(f"client {self.names[empty] if self.names else empty} has no samples")
        return Population(samples, self.layout, self.names, 0 if self.public is None else len(self.public))

    @cached_property
    def profile(self) -> Profile:
        head = sum(end - begin for begin, end in self.layout.spans("head"))
        return profile(copy.deepcopy(self.module), self.x[:1], head)

    def start(self) -> tuple[Tensor, Buffers]:
        """The initial model and its buffers."""
        return flatten(self.module), Replica(self.module, None).buffers()

    def fresh(self, method: Method) -> Kept:
        """What a client keeps before its first accepted upload."""
        start, buffers = self.start()
        state = method.client_init(start, self.layout).tensors()
        return Kept(state, None if method.shares_buffers else buffers)

    def pooled(self) -> Federation:
        """One client that holds everybody's data and takes as many steps as the largest participant (``central``)."""
        steps = self.training.steps_for(int(self.population.samples.max()))
        everything = np.array([0, len(self.indices)], dtype=np.int64)
        return replace(self, offsets=everything, training=replace(self.training, steps=steps), names=("all",))

    def rows(self, client: int) -> Tensor:
        """The samples of a client, or of the server."""
        if client in (PUBLIC, SCORING):
            held = self.public if client == PUBLIC else self.scoring
            assert held is not None
            return as_rows(held)
        return as_rows(self.indices[self.offsets[client] : self.offsets[client + 1]])

    def trainer(self) -> Trainer:
        return Trainer(self.module, self.layout, self.loss, self.x, self.y, self.training, self.seed, self.augment)

    def public_local(self, trainer: Trainer, part: int, round: int) -> EagerLocal | None:
        held = self.public if part == PUBLIC else self.scoring
        return None if held is None else trainer.local(part, round, self.rows(part))
