"""One client at a time with plain autograd: the reference implementation of ``Local``.

The model lives in a flat vector that the module's parameters are views of, so a step of the optimiser is two vector
operations and no parameter is ever copied. Vectors other than the iterate are evaluated on a second replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, float64, nn, zeros

from undrift.core import rng
from undrift.core.errors import no_features
from undrift.core.local import Batch, Direction, Local
from undrift.core.spent import Spent
from undrift.core.vector import Buffers, Part, Replica, double

if TYPE_CHECKING:
    from undrift.core.federation import Holding, Model

Carry = TypeVar("Carry")
Loss = Callable[[Tensor, Tensor], Tensor]
Augment = Callable[[Tensor, int], Tensor]

SWEEP = 512  # samples per batch of a sweep over all data
JUDGED = 1024  # the same where a model is judged


class EagerBatch(Batch):
    """``index`` and ``key`` are made when asked for: most methods never do, and a step of a small model is short."""

    def __init__(self, x: Tensor, y: Tensor, places: Tensor, size: int, base: int, *parts: int | str) -> None:
        self.x, self.y, self._places, self._size = x, y, places, size
        self._base, self._parts = base, parts
        self.fresh = True  # no training pass has seen it yet

    @cached_property
    def index(self) -> Tensor:  # type: ignore[override]
        return nn.functional.pad(self._places, (0, self._size - len(self._places)), value=-1)

    @cached_property
    def key(self) -> int:
        return rng.extend(self._base, *self._parts)

    def __len__(self) -> int:
        return len(self.x)

    def mean(self, values: Tensor) -> Tensor:
        return values.mean(0)

    def sum(self, values: Tensor) -> Tensor:
        return values.sum(0)


class Trainer:
    """The module replicas and the data of one process; makes a ``Local`` for every task."""

    def __init__(self, model: Model, holding: Holding) -> None:
        module, layout = model.module, model.layout
        self.holding = holding
        self.layout, self.loss_function, self.x, self.y = layout, model.loss, holding.x, holding.y
        self.training, self.seed, self.augment = model.training, model.seed, model.augment
        self.live = Replica(module, layout)  # the iterate of ``descend``
        self.other = Replica(module, layout)  # any other point that a gradient is taken at
        self._frozen = [Replica(module, layout) for _ in range(2)]  # teachers and anchors: eval mode
        self._holds: list[tuple[Tensor, int]] = [(torch.empty(0), 0)] * 2  # the vector in each of them, and its version
        self.live.module.train()
        self.other.module.train()
        for frozen in self._frozen:
            frozen.module.eval()
        self.other.share_buffers(self.live)
        if self.training.precision == "bf16":
            for trained in (self.live, self.other):
                trained.autocast(holding.x.device.type)
        self._frozen[1].share_buffers(self._frozen[0])

    def frozen(self, w: Tensor) -> Replica:
        """A replica in eval mode at ``w``. Two are kept, so that a pair of teachers is not copied at every step."""
        if not self._is_at(0, w):
            self._frozen.reverse()  # the one used last goes first
            self._holds.reverse()
            if not self._is_at(0, w):
                self._frozen[0].flat.copy_(w)
                self._holds[0] = (w, w._version)
        return self._frozen[0]

    def _is_at(self, place: int, w: Tensor) -> bool:
        held, version = self._holds[place]
        return held is w and version == w._version

    def local(self, client: int, round: int, rows: Tensor, buffers: Buffers | None = None) -> EagerLocal:
        """The ``Local`` of a client whose samples are these rows of the data."""
        if buffers is not None and self.live.has_buffers:
            self.live.set_buffers(buffers)
            self._frozen[0].set_buffers(buffers)
        return EagerLocal(self, client, round, rows)

    def per_batch(self, outputs: Tensor, y: Tensor) -> Tensor:
        loss = self.loss_function(outputs, y)
        return loss if loss.ndim == 0 else loss.mean()


class EagerLocal(Local):
    def __init__(self, trainer: Trainer, client: int, round: int, rows: Tensor) -> None:
        self._t, self._rows, self.client, self.round = trainer, rows.to(trainer.x.device), client, round
        self.training, self.layout = trainer.training, trainer.layout
        self.n = len(rows)
        self.lr = self.training.lr_at(round)
        self.steps = self.training.steps_for(self.n)
        self.travel = self.training.travel(self.steps)
        self.epoch_steps = self.training.batches_per_epoch(self.n)
        self._size = self.training.per_step or self.n
        self._key = rng.key(trainer.seed, "batches", round, client)
        self._cursor = 0  # batches drawn so far in this round
        self._order: tuple[int, Tensor, Tensor] = (-1, rows, rows)  # epoch, order of the samples, their rows
        self._point: tuple[Tensor, Replica] | None = None  # the w that a gradient is being taken at
        self.spent = Spent()
        self.notes: dict[str, float] = {}

    # -- batches ------------------------------------------------------------------------------------------------------

    def _next(self) -> EagerBatch:
        epoch, place = divmod(self._cursor, self.epoch_steps)
        if self._order[0] != epoch:
            order = torch.from_numpy(rng.permutation(rng.extend(self._key, epoch), self.n))
            self._order = (epoch, order, self._rows[order])
        span = slice(place * self._size, (place + 1) * self._size)
        self._cursor += 1
        return self._batch(self._order[1][span], self._order[2][span], "step", self._cursor - 1)

    def _batch(self, places: Tensor, rows: Tensor, *parts: int | str) -> EagerBatch:
        x, y = self._t.x.index_select(0, rows), self._t.y.index_select(0, rows)
        b = EagerBatch(x, y, places, self._size, self._key, *parts)
        if self._t.augment is not None:
            b.x = self._t.augment(x, b.key)
        return b

    def batch(self, round: Any, step: Any) -> EagerBatch:
        again = EagerLocal(self._t, self.client, int(round), self._rows)
        again._cursor = int(step)
        return again._next()

    def sweep(self) -> Iterator[EagerBatch]:
        for begin in range(0, self.n, SWEEP):
            rows = self._rows[begin : begin + SWEEP]
            places = torch.arange(begin, begin + len(rows))
            x, y = self._t.x.index_select(0, rows), self._t.y.index_select(0, rows)
            yield EagerBatch(x, y, places, len(rows), self._key, "sweep", begin)

    # -- evaluation at a point ----------------------------------------------------------------------------------------

    def _replica(self, w: Tensor) -> Replica:
        live, other = self._t.live, self._t.other
        if w is live.flat:
            return live
        other.flat.copy_(w)
        return other

    def _begin(self, replica: Replica, b: EagerBatch) -> Buffers | None:
        """Before a training pass: the same dropout mask for the same batch; the first pass alone moves statistics."""
        if replica.stochastic:
            torch.manual_seed(b.key >> 1)
        again = not b.fresh and replica.has_buffers
        b.fresh = False
        return replica.buffers() if again else None

    def _gather(self, loss: Tensor, replica: Replica) -> Tensor:
        return _flat(torch.autograd.grad(loss, replica.params, allow_unused=True), replica.params)

    def _with_decay(self, g: Tensor, w: Tensor) -> Tensor:
        if self.training.weight_decay and self.training.decay_mode == "inner":
            g.add_(w, alpha=self.training.weight_decay)
        return g

    def value_and_grad(self, w: Tensor, b: Batch) -> tuple[Tensor, Tensor]:
        assert isinstance(b, EagerBatch)
        replica = self._replica(w)
        kept = self._begin(replica, b)
        with torch.enable_grad():
            if self.training.accumulate == 1:
                loss = self._t.per_batch(replica.module(b.x), b.y)
                g = self._gather(loss, replica)
            else:
                loss, g = self._accumulated(replica, b)
        if kept is not None:
            replica.set_buffers(kept)
        self.spent.gradients += len(b)
        return loss.detach(), self._with_decay(g, w)

    def _accumulated(self, replica: Replica, b: EagerBatch) -> tuple[Tensor, Tensor]:
        """The same minibatch by minibatch: only one has to be in memory with all that its gradient needs."""
        size = self.training.batch_size
        loss, g = b.x.new_zeros((), dtype=replica.flat.dtype), torch.zeros_like(replica.flat)
        for begin in range(0, len(b), size):
            x, y = b.x[begin : begin + size], b.y[begin : begin + size]
            part = self._t.per_batch(replica.module(x), y) * (len(x) / len(b))
            g += self._gather(part, replica)
            loss += part.detach()
        return loss, g

    def value(self, w: Tensor, b: Batch) -> Tensor:
        assert isinstance(b, EagerBatch)
        replica = self._replica(w)
        kept = self._begin(replica, b)
        with torch.no_grad():
            loss = self._t.per_batch(replica.module(b.x), b.y)
        if kept is not None:
            replica.set_buffers(kept)
        self.spent.forwards += len(b)
        return loss

    def grad(self, w: Tensor, b: Batch, only: Part | None = None) -> Tensor:
        if only is None:
            return self.value_and_grad(w, b)[1]
        assert isinstance(b, EagerBatch)
        return self._head_grad(w, b) if only == "head" else self.grad(w, b) * self.layout.mask("body", w)

    def _head_grad(self, w: Tensor, b: EagerBatch) -> Tensor:
        """The gradient of the head alone: the body's pass is a plain forward in eval mode."""
        replica = self._t.frozen(w)
        with torch.no_grad():
            z, _ = replica.forward(b.x)
        if z is None:
            raise no_features("this method")
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
                    *grads, own = torch.autograd.grad(value, [*replica.params, point], allow_unused=True)
            finally:
                self._point = None
            if kept is not None:
                replica.set_buffers(kept)
            self.spent.gradients += len(b)
            g = _flat(grads, replica.params)
            return self._with_decay(g if own is None else g.add_(own), w)

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
            with torch.no_grad():
                z, outputs = self._t.frozen(w).forward(b.x)
            self.spent.forwards += len(b)
        return (z if z is not None else b.x.new_empty(len(b), 0)), outputs

    def features(self, w: Tensor, b: Batch) -> Tensor:
        if not self.layout.features:
            raise no_features("this method")
        return self.forward(w, b)[0].flatten(1)

    def head(self, w: Tensor, z: Tensor) -> Tensor:
        if self._point is not None and w is self._point[0]:
            return self._point[1].head(z)
        with torch.no_grad():
            return self._t.frozen(w).head(z)

    def criterion(self, outputs: Tensor, b: Batch) -> Tensor:
        return self._t.per_batch(outputs, b.y)

    # -- loops --------------------------------------------------------------------------------------------------------

    def descend(
        self,
        direction: Direction,
        start: Tensor,
        steps: Any = None,
        *,
        first: Batch | None = None,
        only: Part | None = None,
    ) -> Tensor:
        if not self.training.plain:
            return self._adapted(direction, start, steps, first, only)
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

    def _adapted(
        self, direction: Direction, start: Tensor, steps: Any, first: Batch | None, only: Part | None
    ) -> Tensor:
        """The same with an optimiser that remembers more than a fresh buffer."""
        x = self._t.live.flat
        x.copy_(start)
        mask = self.layout.mask(only, x) if only else None
        count, *vectors = self.begin(x)
        moments = (int(count), *vectors)
        for k in range(self.steps if steps is None else int(steps)):
            b = first if first is not None and k == 0 else self._next()
            v, moments = self.adapt(direction(x, b), x, moments, mask)
            x.add_(v, alpha=-self.lr)
        self.end(moments)
        return x.clone()

    def fold(self, step: Callable[[Carry, Batch], Carry], carry: Carry, steps: Any = None) -> Carry:
        for _ in range(self.steps if steps is None else int(steps)):
            carry = step(carry, self._next())
        return carry

    def judge(self, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The model ``w`` on the client's own test samples: how many it gets right, the sum of the losses, how many."""
        test, holding = self._t.holding.test, self._t.holding
        right, total = zeros((), dtype=float64), zeros((), dtype=float64)
        rows = test.at(holding.place(self.client)) if test is not None else as_rows([])
        for begin in range(0, len(rows), JUDGED):
            assert test is not None
            some = rows[begin : begin + JUDGED].to(test.x.device)
            correct, losses = scored(self._t.frozen(w).module, self._t.loss_function, test.x[some], test.y[some])
            right, total = right + correct.sum().cpu(), total + losses.sum().cpu()
        return right, total, torch.tensor(float(len(rows)), dtype=float64)

    @property
    def drawn(self) -> int:
        """How many batches were drawn so far."""
        return self._cursor

    def buffers(self) -> Buffers | None:
        """The model's buffers at the end of the round; None if it has none."""
        return self._t.live.buffers() if self._t.live.has_buffers else None

    def note(self, name: str, value: Any) -> None:
        self.notes[name] = float(value)


def _flat(grads: Sequence[Tensor | None], params: Sequence[Tensor]) -> Tensor:
    """The gradient as one vector; parameters that the loss does not use have none."""
    return torch.cat(
        [p.new_zeros(p.numel()) if g is None else g.reshape(-1) for g, p in zip(grads, params, strict=True)]
    )


def scored(module: nn.Module, loss_function: Loss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """For each sample: was the module right (0 where there are no classes), and its loss."""
    return told(module(x), loss_function, y)


def told(outputs: Tensor, loss_function: Loss, y: Tensor) -> tuple[Tensor, Tensor]:
    """The same of outputs."""
    loss = loss_function(outputs, y)
    losses = double(loss).expand(len(y)).contiguous() if loss.ndim == 0 else double(loss)
    if y.is_floating_point():
        return torch.zeros_like(losses), losses
    return double(guessed(outputs) == y), losses


def guessed(outputs: Tensor) -> Tensor:
    """The class that each row of outputs speaks for."""
    single = outputs.ndim == 1 or outputs.shape[1] == 1  # then its sign decides
    return (outputs.reshape(-1) > 0).long() if single else outputs.argmax(1)


def as_rows(indices: Any) -> Tensor:
    """Sample numbers as a tensor that selects rows."""
    return torch.as_tensor(np.asarray(indices, dtype=np.int64))
