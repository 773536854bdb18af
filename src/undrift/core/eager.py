"""One client at a time with plain autograd: the reference implementation of ``Local``.

The model lives in a flat vector that the module's parameters are views of, so a step of the optimiser is two vector
operations and no parameter is ever copied. Vectors other than the iterate are evaluated on a second replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core import rng
from undrift.core.cost import Spent
from undrift.core.errors import InvalidInput
from undrift.core.local import Batch, Direction, Local
from undrift.core.training import Training
from undrift.core.vector import Buffers, Layout, Part, Replica

Carry = TypeVar("Carry")
Loss = Callable[[Tensor, Tensor], Tensor]
Augment = Callable[[Tensor, int], Tensor]

SWEEP = 512  # samples per batch of a sweep over all data


class EagerBatch(Batch):
    def __init__(self, x: Tensor, y: Tensor, index: Tensor, key: int) -> None:
        self.x, self.y, self.index, self.key = x, y, index, key
        self.fresh = True  # no training pass has seen it yet

    def __len__(self) -> int:
        return len(self.x)

    def mean(self, values: Tensor) -> Tensor:
        return values.mean(0)

    def sum(self, values: Tensor) -> Tensor:
        return values.sum(0)


class Trainer:
    """The module replicas and the data of one process; makes a ``Local`` for every task."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        loss: Loss,
        x: Tensor,
        y: Tensor,
        training: Training,
        seed: int,
        augment: Augment | None = None,
    ) -> None:
        self.layout, self.loss_function, self.x, self.y = layout, loss, x, y
        self.training, self.seed, self.augment = training, seed, augment
        self.live = Replica(module, layout)  # the iterate of ``descend``
        self.other = Replica(module, layout)  # any other point that a gradient is taken at
        self.frozen = Replica(module, layout)  # teachers and anchors: eval mode
        self.live.module.train()
        self.other.module.train()
        self.frozen.module.eval()
        self.other.share_buffers(self.live)

    def local(self, client: int, round: int, rows: Tensor, buffers: Buffers | None = None) -> EagerLocal:
        """The ``Local`` of a client whose samples are these rows of the data."""
        if buffers is not None and self.live.has_buffers:
            self.live.set_buffers(buffers)
            self.frozen.set_buffers(buffers)
        return EagerLocal(self, client, round, rows)

    def per_batch(self, outputs: Tensor, y: Tensor) -> Tensor:
        loss = self.loss_function(outputs, y)
        return loss if loss.ndim == 0 else loss.mean()


class EagerLocal(Local):
    def __init__(self, trainer: Trainer, client: int, round: int, rows: Tensor) -> None:
        self._t, self._rows, self.client, self.round = trainer, rows, client, round
        self.training, self.layout = trainer.training, trainer.layout
        self.n = len(rows)
        self.lr = self.training.lr_at(round)
        self.steps = self.training.steps_for(self.n)
        self.travel = self.training.travel(self.steps)
        self.epoch_steps = self.training.batches_per_epoch(self.n)
        self._size = self.training.batch_size or self.n
        self._key = rng.key(trainer.seed, "batches", round, client)
        self._cursor = 0  # batches drawn so far in this round
        self._order: tuple[int, Tensor] = (-1, rows)
        self._point: tuple[Tensor, Replica] | None = None  # the w that a gradient is being taken at
        self.spent = Spent()
        self.notes: dict[str, float] = {}

    # -- batches -----------------------------------------------------------------------------------------------------

    def _next(self) -> EagerBatch:
        epoch, place = divmod(self._cursor, self.epoch_steps)
        if self._order[0] != epoch:
            self._order = (epoch, torch.from_numpy(rng.permutation(rng.extend(self._key, epoch), self.n)))
        index = self._order[1][place * self._size : (place + 1) * self._size]
        key = rng.extend(self._key, "step", self._cursor)
        self._cursor += 1
        return self._batch(index, key)

    def _batch(self, index: Tensor, key: int) -> EagerBatch:
        rows = self._rows[index]
        x, y = self._t.x.index_select(0, rows), self._t.y.index_select(0, rows)
        if self._t.augment is not None:
            x = self._t.augment(x, key)
        return EagerBatch(x, y, nn.functional.pad(index, (0, self._size - len(index)), value=-1), key)

    def batch(self, index: Tensor) -> EagerBatch:
        index = index[index >= 0]
        return self._batch(index, rng.extend(self._key, "again"))

    def sweep(self) -> Iterator[EagerBatch]:
        for begin in range(0, self.n, SWEEP):
            rows = self._rows[begin : begin + SWEEP]
            index = torch.arange(begin, begin + len(rows))
            yield EagerBatch(self._t.x[rows], self._t.y[rows], index, rng.extend(self._key, "sweep", begin))

    # -- evaluation at a point -----------------------------------------------------------------------------------------

    def _replica(self, w: Tensor) -> Replica:
        live, other = self._t.live, self._t.other
        if w is live.flat:
            return live
        other.flat.copy_(w)
        return other

    def _begin(self, replica: Replica, b: EagerBatch) -> Buffers | None:
        """Before a training pass: the same dropout mask for the same batch; only its first pass moves the statistics."""
        if replica.stochastic:
            torch.manual_seed(b.key >> 1)
        again = not b.fresh and replica.has_buffers
        b.fresh = False
        return replica.buffers() if again else None

    def _gather(self, loss: Tensor, replica: Replica) -> Tensor:
        grads = torch.autograd.grad(loss, replica.params, allow_unused=True)
        flat = [
            g.reshape(-1) if g is not None else p.new_zeros(p.numel())
            for g, p in zip(grads, replica.params, strict=True)
        ]
        return torch.cat(flat)

    def _with_decay(self, g: Tensor, w: Tensor) -> Tensor:
        if self.training.weight_decay and self.training.decay_mode == "inner":
            g.add_(w, alpha=self.training.weight_decay)
        return g

    def value_and_grad(self, w: Tensor, b: Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(b, EagerBatch)
        replica = self._replica(w)
        kept = self._begin(replica, b)
        with torch.enable_grad():
            loss = self._t.per_batch(replica.module(b.x), b.y)
            g = self._gather(loss, replica)
        if kept is not None:
            replica.set_buffers(kept)
        self.spent.gradients += len(b)
        return loss.detach(), self._with_decay(g, w)

    def grad(self, w: Tensor, b: Batch, only: Part | None = None) -> Tensor:
        if only is None:
            return self.value_and_grad(w, b)[1]
        assert isinstance(b, EagerBatch)
        return self._head_grad(w, b) if only == "head" else self.grad(w, b) * self.layout.mask("body", w)

    def _head_grad(self, w: Tensor, b: EagerBatch) -> Tensor:
        """The gradient of the head alone: the body's pass is a plain forward in eval mode."""
        replica = self._t.frozen
        replica.flat.copy_(w)
        with torch.no_grad():
            z, _ = replica.forward(b.x)
        if z is None:
            raise _no_features()
        with torch.enable_grad():
            loss = self._t.per_batch(replica.head(z), b.y)
            grads = torch.autograd.grad(loss, replica.head_params)
        self.spent.head_gradients += len(b)
        g = torch.zeros_like(w)
        at = 0
        flat = torch.cat([part.reshape(-1) for part in grads])
        for begin, end in self.layout.spans("head"):
            g[begin:end] = flat[at : at + end - begin]
            at += end - begin
        return self._with_decay(g, w * self.layout.mask("head", w))

    def grad_of(self, loss: Callable[[Tensor, Batch], Tensor]) -> Direction:
        def direction(w: Tensor, b: Batch) -> Tensor:
            assert isinstance(b, EagerBatch)
            replica = self._replica(w)
            kept = self._begin(replica, b)
            point = w.detach().requires_grad_()  # so that a loss may also use w itself
            self._point = (point, replica)
            try:
                with torch.enable_grad():
                    value = loss(point, b)
                    grads = torch.autograd.grad(
                        value, [*replica.params, point], allow_unused=True, materialize_grads=True
                    )
            finally:
                self._point = None
            if kept is not None:
                replica.set_buffers(kept)
            self.spent.gradients += len(b)
            g = torch.cat([part.reshape(-1) for part in grads[:-1]]) + grads[-1]
            return self._with_decay(g, w)

        return direction

    def full_grad(self, w: Tensor) -> Tensor:
        total = torch.zeros_like(w)
        for b in self.sweep():
            b.fresh = False  # not a training pass: the statistics stay
            total += self.grad(w, b) * (len(b) / self.n)
        return total

    def forward(self, w: Tensor, b: Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(b, EagerBatch)
        if self._point is not None and w is self._point[0]:
            z, outputs = self._point[1].forward(b.x)
        else:
            replica = self._t.frozen
            replica.flat.copy_(w)
            with torch.no_grad():
                z, outputs = replica.forward(b.x)
            self.spent.forwards += len(b)
        return (z if z is not None else b.x.new_empty(len(b), 0)), outputs

    def features(self, w: Tensor, b: Batch) -> Tensor:
        if not self.layout.features:
            raise _no_features()
        return self.forward(w, b)[0].flatten(1)

    def head(self, w: Tensor, z: Tensor) -> Tensor:
        if self._point is not None and w is self._point[0]:
            return self._point[1].head(z)
        replica = self._t.frozen
        replica.flat.copy_(w)
        with torch.no_grad():
            return replica.head(z)

    def criterion(self, outputs: Tensor, b: Batch) -> Tensor:
        return self._t.per_batch(outputs, b.y)

    # -- loops ---------------------------------------------------------------------------------------------------------

    def descend(
        self,
        direction: Direction,
        start: Tensor,
        steps: Any = None,
        *,
        first: Batch | None = None,
        only: Part | None = None,
    ) -> Tensor:
        x, training, lr = self._t.live.flat, self.training, self.lr
        x.copy_(start)
        rho = training.momentum
        buffer: Tensor | None = None
        mask = self.layout.mask(only, x) if only else None
        for k in range(self.steps if steps is None else int(steps)):
            b = first if first is not None and k == 0 else self._next()
            v = self.decayed(self.clipped(direction(x, b)), x)
            if rho:
                buffer = v.clone() if buffer is None else buffer.mul_(rho).add_(v)
                v = v + rho * buffer if training.nesterov else buffer
            x.add_(v if mask is None else v * mask, alpha=-lr)
        return x.clone()

    def fold(self, step: Callable[[Carry, Batch], Carry], carry: Carry, steps: Any = None) -> Carry:
        for _ in range(self.steps if steps is None else int(steps)):
            carry = step(carry, self._next())
        return carry

    @property
    def drawn(self) -> int:
        """How many batches were drawn so far."""
        return self._cursor

    def buffers(self) -> Buffers | None:
        """The model's buffers at the end of the round; None if it has none."""
        return self._t.live.buffers() if self._t.live.has_buffers else None

    def note(self, name: str, value: Any) -> None:
        self.notes[name] = float(value)


def _no_features() -> InvalidInput:
    return InvalidInput(
        "this method needs features, and the model has no linear layer to take them from: "
        "give the module `features(x)` and `head(z)` with forward(x) == head(features(x))"
    )


def as_rows(indices: Any) -> Tensor:
    """Sample numbers as a tensor that selects rows."""
    return torch.as_tensor(np.asarray(indices, dtype=np.int64))
