"""Who holds what. ``Model``: what is trained, and how; both sides know it. ``Holding``: the rows that are here:
everybody's in a simulation, one site's at a site, none at a coordinator. Tensors and numbers only; no files, no names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from undrift.core import rng
from undrift.core.algorithm import Method
from undrift.core.cohort import Population
from undrift.core.eager import Augment, EagerLocal, Loss, Trainer, as_rows
from undrift.core.errors import InvalidInput
from undrift.core.optimisers import begun, joined, remembered
from undrift.core.profile import Profile, profile
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """What is trained, and how. ``sample`` is a batch of one input; only its shape and type matter."""

    module: nn.Module
    loss: Loss
    training: Training
    sample: Tensor
    seed: int = 0
    augment: Augment | None = None

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.module, self.sample)

    @cached_property
    def profile(self) -> Profile:
        head = sum(end - begin for begin, end in self.layout.spans("head"))
        return profile(copy.deepcopy(self.module), self.sample, head)

    def outputs(self, x: Tensor) -> Tensor:
        """What the initial model says of some inputs, after it is known that it can take them."""
        assert self.layout
        with torch.no_grad():
            found: Tensor = copy.deepcopy(self.module).eval()(x)
        return found

    def start(self) -> tuple[Tensor, Buffers]:
        """The initial model and its buffers."""
        return flatten(self.module), Replica(self.module, None).buffers()

    def fresh(self, method: Method) -> Kept:
        """What a client keeps before its first accepted upload."""
        start, buffers = self.start()
        state = method.client_init(start, self.layout).tensors()
        if self.training.keeps:
            state = joined(state, remembered(self.training), begun(self.training, start))
        return Kept(state, None if method.shares_buffers else buffers)


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples, and whose they are: ``indices[offsets[i]:offsets[i+1]]`` are the rows of the client at place ``i``."""

    x: Tensor
    y: Tensor
    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def at(self, place: int) -> Tensor:
        return as_rows(self.indices[self.offsets[place] : self.offsets[place + 1]])


@dataclass(frozen=True, eq=False, kw_only=True)
class Holding:
    """The rows that are here. ``clients``: whose they are, in their order; None: those of client 0, 1, 2, ..."""

    x: Tensor
    y: Tensor
    indices: NDArray[np.int64]
    offsets: NDArray[np.int64]
    clients: tuple[int, ...] | None = None
    test: Rows | None = None  # what clients hold to be judged on, at the same places
    public: NDArray[np.int64] | None = None  # rows the server itself may train on
    scoring: NDArray[np.int64] | None = None  # rows the server may look at

    @classmethod
    def of(
        cls, client: int, x: Tensor, y: Tensor, x_test: Tensor | None = None, y_test: Tensor | None = None
    ) -> Holding:
        """What one client holds: all of these rows."""
        whole, test = _all(len(x)), None
        if x_test is not None and y_test is not None:
            test = Rows(x_test, y_test, *_all(len(x_test)))
        return cls(x=x, y=y, indices=whole[0], offsets=whole[1], clients=(client,), test=test)

    def place(self, client: int) -> int:
        if self.clients is None:
            return client
        if client not in self.clients:
            raise InvalidInput(f"the rows of client {client} are not here")
        return self.clients.index(client)

    def rows(self, client: int) -> Tensor:
        """The samples of a client, or of the server."""
        if client in (PUBLIC, SCORING):
            held = self.public if client == PUBLIC else self.scoring
            assert held is not None
            return as_rows(held)
        place = self.place(client)
        return as_rows(self.indices[self.offsets[place] : self.offsets[place + 1]])

    def public_local(self, trainer: Trainer, part: int, round: int) -> EagerLocal | None:
        held = self.public if part == PUBLIC else self.scoring
        return None if held is None else trainer.local(part, round, self.rows(part))


def _all(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.arange(count), np.array([0, count])


@dataclass(frozen=True, eq=False, kw_only=True)
class Federation(Model, Holding):
    """A simulation: the model and everybody's rows in one place."""

    names: tuple[str, ...] | None = None
    sample: Tensor = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample", self.x[:1])

    @property
    def here(self) -> Holding:
        """What the server may use."""
        return self

    @cached_property
    def population(self) -> Population:
        return populated(self, np.diff(self.offsets), self.names, self.public)

    def trainer(self) -> Trainer:
        return Trainer(self, self)

    def pooled(self) -> Federation:
        """One client that holds everybody's data and takes as many steps as the largest participant (``central``)."""
        steps = self.training.steps_for(int(self.population.samples.max()))
        everything = np.array([0, len(self.indices)], dtype=np.int64)
        return replace(self, offsets=everything, training=replace(self.training, steps=steps), names=("all",))


@dataclass(frozen=True, eq=False, kw_only=True)
class Registered(Model):
    """What a coordinator knows: the model, and who registered with how many samples. It holds no client's rows."""

    samples: NDArray[np.int64]
    names: tuple[str, ...] | None = None
    here: Holding | None = None  # the server's own rows, where it has any

    @cached_property
    def population(self) -> Population:
        return populated(self, self.samples, self.names, None if self.here is None else self.here.public)


def populated(
    model: Model, samples: NDArray[np.int64], names: tuple[str, ...] | None, public: NDArray[np.int64] | None
) -> Population:
    """All clients, each with at least one sample."""
    if len(samples) == 0:
        raise InvalidInput("there are no clients")
    if (samples <= 0).any():
        empty = int(np.flatnonzero(samples <= 0)[0])
        raise InvalidInput(f"client {names[empty] if names else empty} has no samples")
    sizes, places = np.unique(samples, return_inverse=True)
    steps = np.array([model.training.steps_for(int(n)) for n in sizes])[places]
    return Population(samples, model.layout, names, 0 if public is None else len(public), steps)
