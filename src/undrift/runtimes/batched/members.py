"""The clients of a block: their sizes, their keys, and which samples each of them draws when."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core import rng
from undrift.core.federation import Federation
from undrift.runtimes.batched.program import Program
from undrift.runtimes.batched.stack import Losses, Slope, cross_entropy_slope, slope_of

Sizes = NDArray[np.int64]


class Members:
    """The clients of a block: their sizes and keys."""

    def __init__(self, federation: Federation, clients: NDArray[np.int64], round: int) -> None:
        training = federation.training
        self.federation, self.clients = federation, clients
        self.n: Sizes = federation.population.samples[clients]
        self.size = training.per_step or int(self.n.max())
        sizes, place = np.unique(self.n, return_inverse=True)
        self.epoch_steps: Sizes = np.array([training.batches_per_epoch(int(n)) for n in sizes])[place]
        self.steps: Sizes = np.array([training.steps_for(int(n)) for n in sizes])[place]
        self.keys = rng.keys(rng.key(federation.seed, "batches", round), clients)
        self.begins = federation.offsets[clients]
        self._orders: dict[int, NDArray[np.int64]] = {}

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Each client's order of its samples in an epoch, as rows; -1 after its last."""
        if epoch not in self._orders:
            found = np.full((len(self.n), int(self.n.max()) + self.size), -1)
            keys = rng.keys(self.keys, np.array([epoch]))
            for n in np.unique(self.n):
                rows = np.flatnonzero(self.n == n)
                found[rows, :n] = rng.permutation(keys[rows], int(n))
            self._orders[epoch] = found
        return self._orders[epoch]

    def places(self, cursor: Sizes) -> NDArray[np.int64]:
        """The samples of each client's batch number ``cursor``, as rows padded with -1."""
        epochs, place = np.divmod(cursor, self.epoch_steps)
        if (epochs == epochs[0]).all() and (place == place[0]).all():
            begin = int(place[0]) * self.size
            return self.order(int(epochs[0]))[:, begin : begin + self.size]
        found = np.empty((len(self.n), self.size), dtype=np.int64)
        for epoch in np.unique(epochs):
            rows = np.flatnonzero(epochs == epoch)
            columns = place[rows, None] * self.size + np.arange(self.size)
            found[rows] = self.order(int(epoch))[rows[:, None], columns]
        return found

    def rows(self, places: NDArray[np.int64]) -> Tensor:
        """Where samples lie in the data; padding shows the client's first."""
        return self.table(self.federation.indices[self.begins[:, None] + np.maximum(places, 0)])

    def table(self, values: NDArray[Any]) -> Tensor:
        """A table with a row per client, where the data are."""
        return torch.from_numpy(values).to(self.federation.x.device)


class Minibatches:
    """A batch of every client of a block."""

    def __init__(self, members: Members, places: NDArray[np.int64]) -> None:
        data, shape = members.federation, places.shape
        rows = members.rows(places).flatten()
        x, y = data.x.index_select(0, rows), data.y.index_select(0, rows)
        self.x, self.y = x.view(*shape, *x.shape[1:]), y.view(*shape, *y.shape[1:])
        self.places, self.table = places, members.table
        self.lengths: Sizes = (places >= 0).sum(1)
        self.full = bool((self.lengths == shape[1]).all())

    def losses(self, program: Program, taken: NDArray[np.bool_]) -> Losses:
        """The sum of the mean losses of the clients that take a step, as a function of outputs and targets."""
        loss, rows = program.federation.loss, len(self.lengths)
        if self.full and taken.all():
            return lambda outputs, y: loss(outputs.flatten(0, 1), y.flatten(0, 1)).mean() * rows
        shares = self._shares(taken).flatten()

        def total(outputs: Tensor, y: Tensor) -> Tensor:
            each = program.each(outputs.flatten(0, 1), y.flatten(0, 1))
            return torch.where(shares > 0, each * shares.to(each.dtype), 0.0).sum()

        return total

    def slope(self, program: Program, taken: NDArray[np.bool_]) -> Slope:
        """Its gradient by the outputs."""
        if not program.classifies:
            return slope_of(self.losses(program, taken))
        even = self.full and taken.all()
        return cross_entropy_slope(1 / self.places.shape[1] if even else self._shares(taken).unsqueeze(-1))

    def _shares(self, taken: NDArray[np.bool_]) -> Tensor:
        """What each sample counts in the mean of its client's batch; 0 for padding and for steps that are not taken."""
        counted = (self.places >= 0) & taken[:, None]
        return self.table(counted / np.maximum(self.lengths, 1)[:, None])
