"""One client of a block as its method sees it: ``Local`` under vmap.

The tensors are batched by vmap. The sizes (samples, steps, which batch comes when) are known beforehand and stay
outside, as NumPy arrays with an entry per client: a step that some clients no longer take is computed for all and
selected with ``where``, a short batch is padded and masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.eager import SWEEP
from undrift.core.local import Batch, Direction, Local
from undrift.core.records import Record
from undrift.core.vector import Part
from undrift.runtimes.batched.border import above, inside, outside
from undrift.runtimes.batched.members import Members, Minibatches, Sizes
from undrift.runtimes.batched.program import Program, Unbatchable

Carry = TypeVar("Carry")


class BatchedBatch(Batch):
    def __init__(self, members: Members, me: Tensor, places: NDArray[np.int64]) -> None:
        with above():
            self.all = Minibatches(members, places)
        self.x, self.y = inside(self.all.x, me), inside(self.all.y, me)
        self._me = me
        self.lengths, self.full = self.all.lengths, self.all.full
        if not self.full:
            self.mask = inside(members.table(places >= 0), me)
            self.length = inside(members.table(self.lengths), me)

    @property
    def index(self) -> Tensor:  # type: ignore[override]
        return inside(self.all.table(self.all.places), self._me)

    def mean(self, values: Tensor) -> Tensor:
        return values.mean(0) if self.full else self.sum(values) / self.length.to(values.dtype)

    def sum(self, values: Tensor) -> Tensor:
        if self.full:
            return values.sum(0)
        mask = self.mask.view(-1, *[1] * (values.ndim - 1))
        return torch.where(mask, values, values.new_zeros(())).sum(0)


class BatchedLocal(Local):
    """One client as its ``client_update`` sees it; ``me`` is its place in the block, batched."""

    def __init__(self, program: Program, members: Members, me: Tensor, round: int) -> None:
        self._p, self._members, self._me, self.round = program, members, me, round
        self.training, self.layout = program.federation.training, program.layout
        self.lr = self.training.lr_at(round)
        self._known: list[tuple[Tensor, Sizes]] = []  # numbers of steps as the method sees them, and as they are
        self.n = self._seen(members.n)
        self.steps = self._seen(members.steps)
        self.epoch_steps = self._seen(members.epoch_steps)
        self.travel = self.training.travel(self.steps)
        self._cursor: Sizes = np.zeros(len(members.n), dtype=np.int64)
        self._active: NDArray[np.bool_] = np.ones(len(members.n), dtype=bool)
        self._point: Tensor | None = None
        self.counts = {name: np.zeros(len(members.n), dtype=np.int64) for name in ("gradients", "forwards", "head")}
        self.notes: dict[str, Tensor] = {}

    def _seen(self, sizes: Sizes) -> Tensor:
        tensor = inside(self._members.table(sizes.astype(np.float64)), self._me)
        self._known.append((tensor, sizes))
        return tensor

    def _sizes(self, steps: Any) -> Sizes:
        if steps is None:
            return self._members.steps
        if isinstance(steps, int):
            return np.full(len(self._members.n), steps)
        for tensor, sizes in self._known:
            if tensor is steps:
                return sizes
        raise Unbatchable("the number of steps is computed from values")

    def epochs(self, count: int) -> Tensor:
        return self._seen(count * self._members.epoch_steps)

    def _count(self, name: str, b: Batch | Minibatches) -> None:
        assert isinstance(b, BatchedBatch | Minibatches)
        self.counts[name] += b.lengths * self._active

    # -- batches ------------------------------------------------------------------------------------------------------

    def _next_places(self) -> NDArray[np.int64]:
        places = self._members.places(self._cursor)
        self._cursor = self._cursor + self._active
        return places

    def _next(self) -> BatchedBatch:
        return BatchedBatch(self._members, self._me, self._next_places())

    def batch(self, round: Any, step: Any) -> BatchedBatch:
        mine = self._members
        rounds, steps = self._numbers(round), self._numbers(step)
        places = np.full((len(mine.n), mine.size), -1)
        for t in np.unique(rounds):
            rows = np.flatnonzero(rounds == t)
            then = Members(mine.federation, mine.clients[rows], int(t))
            places[rows, : then.size] = then.places(steps[rows])
        return BatchedBatch(mine, self._me, places)

    def _numbers(self, value: Any) -> Sizes:
        """A whole number of every client, out of vmap: what lies beneath is a plain tensor with a row per client."""
        if not isinstance(value, Tensor):
            return np.full(len(self._members.n), int(value))
        return outside(value, len(self._members.n)).cpu().numpy().astype(np.int64)

    def sweep(self) -> Iterator[BatchedBatch]:
        n = self._members.n
        for begin in range(0, int(n.max()), SWEEP):
            columns = np.arange(begin, min(begin + SWEEP, int(n.max())))
            yield BatchedBatch(self._members, self._me, np.where(columns < n[:, None], columns, -1))

    # -- evaluation at a point ----------------------------------------------------------------------------------------

    def criterion(self, outputs: Tensor, b: Batch) -> Tensor:
        assert isinstance(b, BatchedBatch)
        if not b.full:
            return b.mean(self._p.each(outputs, b.y))
        loss = self._p.federation.loss(outputs, b.y)
        return loss if loss.ndim == 0 else loss.mean()

    def value_and_grad(self, w: Tensor, b: Batch) -> tuple[Tensor, Tensor]:
        live = self._p.live

        def loss(params: list[Tensor]) -> Tensor:
            return self.criterion(live(params, b.x)[1], b)

        grads, value = torch.func.grad_and_value(loss)(live.split(w))
        self._count("gradients", b)
        return value, self._with_decay(torch.cat([g.reshape(-1) for g in grads]), w)

    def value(self, w: Tensor, b: Batch) -> Tensor:
        self._count("forwards", b)
        return self.criterion(self._p.live(self._p.live.split(w), b.x)[1], b)

    def grad(self, w: Tensor, b: Batch, only: Part | None = None) -> Tensor:
        assert isinstance(b, BatchedBatch)
        if only is None and self._p.stack is not None and self._point is None:
            self._count("gradients", b)
            rows = outside(w, len(self._members.n))
            with above():
                g = self._p.stack.gradient(b.all.slope(self._p, b.lengths > 0), rows, b.all.x, b.all.y)
            return self._with_decay(inside(g, self._me), w)
        if only == "head":
            return self._head_grad(w, b)
        g = self.value_and_grad(w, b)[1]
        return g * self.layout.mask("body", g) if only == "body" else g

    def _head_grad(self, w: Tensor, b: Batch) -> Tensor:
        frozen, params = self._p.frozen, self._p.frozen.split(w)
        z, _ = frozen(params, b.x)
        if z is None:
            raise Unbatchable("the model has no features")
        mine = [i for i, is_head in enumerate(self.layout.head) if is_head]

        def loss(heads: list[Tensor]) -> Tensor:
            return self.criterion(frozen.head(_replaced(params, mine, heads), z), b)

        grads = torch.func.grad(loss)([params[i] for i in mine])
        self._count("head", b)
        g = torch.cat([p.reshape(-1) for p in _replaced([torch.zeros_like(p) for p in params], mine, grads)])
        return self._with_decay(g, w * self.layout.mask("head", w))

    def _with_decay(self, g: Tensor, w: Tensor) -> Tensor:
        decay = self.training.weight_decay
        return g + decay * w if decay and self.training.decay_mode == "inner" else g

    def grad_of(self, loss: Callable[[Tensor, Batch], Tensor]) -> Direction:
        def direction(w: Tensor, b: Batch) -> Tensor:
            def at(point: Tensor) -> Tensor:
                self._point = point
                return loss(point, b)

            try:
                g: Tensor = torch.func.grad(at)(w)
            finally:
                self._point = None
            self._count("gradients", b)
            return self._with_decay(g, w)

        return direction

    def full_grad(self, w: Tensor) -> Tensor:
        total = torch.zeros_like(w)
        for b in self.sweep():
            share = inside(self._members.table(b.lengths / self._members.n), self._me)
            # A batch without samples has no mean: its gradient must not count, not even as 0 times NaN.
            total = total + torch.where(share > 0, self.grad(w, b) * share, 0.0)
        return total

    def forward(self, w: Tensor, b: Batch) -> tuple[Tensor, Tensor]:
        at_point = self._point is not None and w is self._point
        model = self._p.live if at_point else self._p.frozen
        if not at_point:
            self._count("forwards", b)
        z, outputs = model(model.split(w), b.x)
        return (z.flatten(1) if z is not None else outputs[:, :0]), outputs

    def head(self, w: Tensor, z: Tensor) -> Tensor:
        model = self._p.live if self._point is not None and w is self._point else self._p.frozen
        return model.head(model.split(w), z)

    # -- loops --------------------------------------------------------------------------------------------------------

    def _steps(self, steps: Any) -> Iterator[int]:
        """The steps of a loop; for each ``_active`` says which clients take it."""
        sizes, outer = self._sizes(steps), self._active
        try:
            for k in range(int(sizes.max())):
                self._active = outer & (k < sizes)
                yield k
        finally:
            self._active = outer

    def _taken(self) -> Tensor | None:
        """Does the client take this step? None where all do."""
        return None if self._active.all() else inside(self._members.table(self._active), self._me)

    def descend(
        self,
        direction: Direction,
        start: Tensor,
        steps: Any = None,
        *,
        first: Batch | None = None,
        only: Part | None = None,
    ) -> Tensor:
        if direction == self.grad and first is None and only is None and self._is_plain(steps):
            return self._plain(start, steps)
        mask = self.layout.mask(only, start) if only else None
        if not self.training.plain:
            return self._adapted(direction, start, steps, first, mask)
        rho, x, m = self.training.momentum, start, torch.zeros_like(start) if self.training.momentum else start
        for k in self._steps(steps):
            taken = self._taken()
            b = first if first is not None and k == 0 else self._next()
            v = direction(x, b)
            if taken is None and mask is None and not rho and k:  # x is of our own making: move it where it lies
                x = x.add_(self.decayed(self.clipped(v), x), alpha=-self.lr)
                continue
            moved, after = self.move(x, v, m)
            moved = moved if mask is None else torch.where(mask > 0, moved, x)
            x, m = _select(taken, (moved, after), (x, m))
        return x

    def _adapted(
        self, direction: Direction, start: Tensor, steps: Any, first: Batch | None, mask: Tensor | None
    ) -> Tensor:
        """The same with an optimiser that remembers more than a fresh buffer."""
        x, (count, *vectors) = start, self.begin(start)
        moments = (torch.as_tensor(count, dtype=torch.float64), *vectors)
        for k in self._steps(steps):
            taken = self._taken()
            b = first if first is not None and k == 0 else self._next()
            v, after = self.adapt(direction(x, b), x, moments, mask)
            x, moments = _select(taken, (x - self.lr * v, after), (x, moments))
        self.end(moments)
        return x

    def _is_plain(self, steps: Any) -> bool:
        """Can a chain do it by itself? A step that is not taken has no gradient, but would have momentum and decay."""
        t, sizes = self.training, self._sizes(steps)
        even = self._active.all() and (sizes == sizes[0]).all()
        return (
            self._p.stack is not None
            and t.plain
            and t.clip is None
            and not t.nesterov
            and bool(even or not (t.momentum or t.weight_decay))
        )

    def _plain(self, start: Tensor, steps: Any) -> Tensor:
        """Gradient descent on the plain loss, outside of vmap."""
        assert self._p.stack is not None
        t, count = self.training, len(self._members.n)
        rows = outside(start, count)
        with above():
            descent = self._p.stack.descent(rows)
            for _ in self._steps(steps):
                b = Minibatches(self._members, self._next_places())
                self._count("gradients", b)
                descent.step(b.slope(self._p, self._active), b.x, b.y, self.lr, t.momentum, t.weight_decay)
            x = descent.rows()
        return inside(x, self._me)

    def fold(self, step: Callable[[Carry, Batch], Carry], carry: Carry, steps: Any = None) -> Carry:
        for _ in self._steps(steps):
            carry = _select(self._taken(), step(carry, self._next()), carry)
        return carry

    def note(self, name: str, value: Any) -> None:
        self.notes[name] = torch.as_tensor(value, dtype=torch.float64)


def _replaced(values: Sequence[Tensor], places: Sequence[int], others: Sequence[Tensor]) -> list[Tensor]:
    found = list(values)
    for place, other in zip(places, others, strict=True):
        found[place] = other
    return found


def _select(taken: Tensor | None, new: Any, old: Any) -> Any:
    """``new`` where the step was taken, ``old`` elsewhere, through tuples and records."""
    if taken is None:
        return new
    if isinstance(new, Tensor):
        return torch.where(taken, new, old)
    if isinstance(new, Record):
        return type(new)(**{f.name: _select(taken, v, getattr(old, f.name)) for f, v in new.items()})
    if isinstance(new, tuple | list):
        return type(new)(_select(taken, a, b) for a, b in zip(new, old, strict=True))
    raise Unbatchable(f"a loop carries a {type(new).__name__}")
