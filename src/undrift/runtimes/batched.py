"""Many clients in one tensor program: ``client_update`` under ``torch.func.vmap``, a block of clients at a time.

What a client computes is a function of tensors and of sizes. The tensors are batched by vmap. The sizes (samples,
steps, which batch comes when) are known beforehand and stay outside, as NumPy arrays with an entry per client: a step
that some clients no longer take is computed for all and selected with ``where``, a short batch is padded and masked.
Clients of like size share a block. Agrees with the serial runtime up to rounding; the rest is left to it.
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from undrift.core import rng
from undrift.core.client import up_kind
from undrift.core.cost import Spent
from undrift.core.eager import SWEEP
from undrift.core.federation import Federation
from undrift.core.local import Batch, Direction, Local
from undrift.core.records import Record
from undrift.core.reduce import Block, Reply, reach
from undrift.core.runtime import Runtime, Task
from undrift.core.stages import passed
from undrift.core.states import Kept
from undrift.core.vector import Layout, Part, Replica
from undrift.runtimes.crew import Crew
from undrift.runtimes.memory import keep_freed_memory
from undrift.runtimes.serial import Serial
from undrift.runtimes.stack import Loss, Slope, Stack, cross_entropy_slope, slope_of

Carry = TypeVar("Carry")
Sizes = NDArray[np.int64]

BLOCK = 10 << 20  # bytes of one vector of a block: large enough to pay for dispatch, small enough for the cache
MEMORY = 0.5  # share of the free memory that a block may take


class Unbatchable(Exception):
    """This cannot run in one tensor program; the sentence says why."""


class Model:
    """A module whose parameters are replaced at every call, so that they can be batched or differentiated."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.replica = Replica(module, None)
        parts = dict(self.replica.module.named_modules())
        self._places = [(parts[path], name) for path, _, name in (full.rpartition(".") for full in layout.names)]
        self._spans = list(zip(layout.offsets, layout.offsets[1:], layout.shapes, strict=False))
        for part in parts.values():
            if type(part) is nn.Linear:
                part.forward = partial(_linear, part)  # type: ignore[method-assign]

    def split(self, w: Tensor) -> list[Tensor]:
        return [w[begin:end].view(shape) for begin, end, shape in self._spans]

    def __call__(self, params: Sequence[Tensor], x: Tensor) -> tuple[Tensor | None, Tensor]:
        self._bind(params)
        return self.replica.forward(x)

    def head(self, params: Sequence[Tensor], z: Tensor) -> Tensor:
        self._bind(params)
        return self.replica.head(z)

    def _bind(self, params: Sequence[Tensor]) -> None:
        for (part, name), p in zip(self._places, params, strict=True):
            part._parameters[name] = p


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The same layer, written so that the gradient of a batch of weights comes out contiguous."""
    if x.ndim != 2:
        return nn.functional.linear(x, layer.weight, layer.bias)
    out = (layer.weight @ x.t()).t()
    return out if layer.bias is None else out + layer.bias


class Program:
    """What all blocks of a federation share."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.layout = federation, federation.layout
        self.live, self.frozen = (Model(copy.deepcopy(federation.module), self.layout) for _ in range(2))
        self.live.replica.module.train()
        self.frozen.replica.module.eval()
        self.stack = Stack.of(federation.module, self.layout)
        replica = self.live.replica
        plain = federation.loss is nn.functional.cross_entropy and federation.y.dtype == torch.int64
        self.classifies = plain and bool((federation.y >= 0).all())  # a negative label means: leave it out
        self.reason = ""  # why nothing at all can be batched
        if replica.has_buffers:
            self.reason = "the model has buffers (batch norm)"
        elif replica.stochastic:
            self.reason = "the model has dropout"
        elif federation.augment is not None:
            self.reason = "the inputs are augmented"
        elif not _is_mean(federation):
            self.reason = "the loss is not a mean over the samples of a batch"

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample."""
        loss = self.federation.loss
        if loss is nn.functional.cross_entropy:
            return nn.functional.cross_entropy(outputs, y, reduction="none")

        def one(output: Tensor, target: Tensor) -> Tensor:
            return loss(output.unsqueeze(0), target.unsqueeze(0)).sum()

        found: Tensor = torch.func.vmap(one)(outputs, y)
        return found


# --- in and out of vmap ----------------------------------------------------------------------------------------------
# Tables with a row per client, and kernels that work on whole blocks, have to cross the border that vmap draws. These
# are the functions that torch.func itself is made of; custom operators cross it too, for a third of a millisecond each.


def _inside(rows: Tensor, me: Tensor) -> Tensor:
    """A table with a row per client as the one client under vmap sees it: its own row."""
    found: Tensor = _functorch._add_batch_dim(rows, 0, _functorch.maybe_get_level(me))
    return found


def _outside(value: Tensor, count: int) -> Tensor:
    """All clients' rows of what one client sees."""
    if not _functorch.is_batchedtensor(value):
        return value.expand(count, *value.shape)
    rows: Tensor = _functorch.get_unwrapped(value)
    return rows.movedim(_functorch.maybe_get_bdim(value), 0)


def _is_mean(federation: Federation) -> bool:
    """Is the loss of a batch the mean of the losses of its samples?"""
    with torch.no_grad():
        x, y = federation.x[:3], federation.y[:3]
        outputs = copy.deepcopy(federation.module).eval()(x)
        parts = [federation.loss(outputs[i : i + 1], y[i : i + 1]).sum() for i in range(len(x))]
        whole = federation.loss(outputs, y)
        return bool(torch.isclose(whole.mean(), torch.stack(parts).mean(), rtol=1e-4, atol=1e-6))


class Members:
    """The clients of a block: their sizes and keys."""

    def __init__(self, federation: Federation, clients: NDArray[np.int64], round: int) -> None:
        training = federation.training
        self.federation, self.clients = federation, clients
        self.n: Sizes = federation.population.samples[clients]
        self.size = training.batch_size or int(self.n.max())
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


class Drawn:
    """A batch of every client of a block."""

    def __init__(self, members: Members, places: NDArray[np.int64]) -> None:
        data, shape = members.federation, places.shape
        rows = members.rows(places).flatten()
        x, y = data.x.index_select(0, rows), data.y.index_select(0, rows)
        self.x, self.y = x.view(*shape, *x.shape[1:]), y.view(*shape, *y.shape[1:])
        self.places, self.table = places, members.table
        self.lengths: Sizes = (places >= 0).sum(1)
        self.full = bool((self.lengths == shape[1]).all())

    def losses(self, program: Program, taken: NDArray[np.bool_]) -> Loss:
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


class BatchedBatch(Batch):
    def __init__(self, members: Members, me: Tensor, places: NDArray[np.int64]) -> None:
        with temporarily_pop_interpreter_stack():
            self.all = Drawn(members, places)
        self.x, self.y = _inside(self.all.x, me), _inside(self.all.y, me)
        self._me = me
        self.lengths, self.full = self.all.lengths, self.all.full
        if not self.full:
            self.mask = _inside(members.table(places >= 0), me)
            self.length = _inside(members.table(self.lengths), me)

    @property
    def index(self) -> Tensor:  # type: ignore[override]
        return _inside(self.all.table(self.all.places), self._me)

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
        tensor = _inside(self._members.table(sizes.astype(np.float64)), self._me)
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

    def _count(self, name: str, b: Batch | Drawn) -> None:
        assert isinstance(b, BatchedBatch | Drawn)
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
        return _outside(value, len(self._members.n)).cpu().numpy().astype(np.int64)

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
            rows = _outside(w, len(self._members.n))
            with temporarily_pop_interpreter_stack():
                g = self._p.stack.gradient(b.all.slope(self._p, b.lengths > 0), rows, b.all.x, b.all.y)
            return self._with_decay(_inside(g, self._me), w)
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
            share = _inside(self._members.table(b.lengths / self._members.n), self._me)
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
        return None if self._active.all() else _inside(self._members.table(self._active), self._me)

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

    def _is_plain(self, steps: Any) -> bool:
        """Can a chain do it by itself? A step that is not taken has no gradient, but would have momentum and decay."""
        t, sizes = self.training, self._sizes(steps)
        even = self._active.all() and (sizes == sizes[0]).all()
        return (
            self._p.stack is not None
            and t.clip is None
            and not t.nesterov
            and bool(even or not (t.momentum or t.weight_decay))
        )

    def _plain(self, start: Tensor, steps: Any) -> Tensor:
        """Gradient descent on the plain loss, outside of vmap."""
        assert self._p.stack is not None
        t, count = self.training, len(self._members.n)
        rows = _outside(start, count)
        with temporarily_pop_interpreter_stack():
            descent = self._p.stack.descent(rows)
            for _ in self._steps(steps):
                b = Drawn(self._members, self._next_places())
                self._count("gradients", b)
                descent.step(b.slope(self._p, self._active), b.x, b.y, self.lr, t.momentum, t.weight_decay)
            x = descent.rows()
        return _inside(x, self._me)

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


class Batched(Runtime):
    name = "batched"

    def __init__(self, federation: Federation, block: int | None = None) -> None:
        """``block``: clients per block, instead of an estimate."""
        keep_freed_memory()
        super().__init__(federation)
        self._serial = Serial(federation)
        self._block = block
        self._said: set[str] = set()  # methods that were found not to be batchable
        # Blocks run side by side, each on one thread: threads inside of operations that are this short would mostly
        # wait for each other. A program is not shared between threads, because it binds parameters to its modules.
        self._cores = len(os.sched_getaffinity(0)) if federation.x.device.type == "cpu" else 1
        self._crew = Crew(self._cores)
        self._programs: SimpleQueue[Program] = SimpleQueue()
        for _ in range(self._cores):
            self._programs.put(program := Program(federation))
        self._reason = program.reason

    def close(self) -> None:
        self._crew.close()

    def replies(self, task: Task) -> Iterator[Reply | Block]:
        name = task.method.name()
        if task.kind == "evaluate":  # a pass over a few samples: nothing to win
            self._serial.states = self.states
            yield from self._serial.replies(task)
            return
        if self._reason and name not in self._said:
            self._fall_back(name, self._reason)
        if name not in self._said:
            blocks = self._blocks(task)
            try:
                first = next(blocks)
            except MemoryError:
                raise
            except Exception as error:  # what vmap does not know; a true mistake shows again, with its client's name
                self._fall_back(name, str(error) or type(error).__name__)
            else:
                yield first
                yield from blocks
                return
        self._serial.states = self.states
        yield from self._serial.replies(task)

    def _blocks(self, task: Task) -> Iterator[Block]:
        """The replies as they come. Clients of like size share a block; a block that is too large is halved."""
        order = np.argsort(self.federation.population.samples[task.cohort.ids], kind="stable")
        count = -(-len(order) // self._block_size())
        count = min(-(-count // self._cores) * self._cores, len(order))
        parts = [np.sort(part) for part in np.array_split(order, count)]
        for blocks in self._crew.each(partial(self._run, task), parts):
            yield from blocks

    def _fall_back(self, name: str, reason: str) -> None:
        self._said.add(name)
        line = reason.splitlines()[0] if reason else "?"
        warnings.warn(f"{name} cannot be batched ({line}): its clients run one after the other", stacklevel=3)

    def _block_size(self) -> int:
        """Clients per block: as many as stay in the cache, and never more than fit into memory."""
        if self._block is None:
            itemsize = next(self.federation.module.parameters()).element_size()
            d, training = self.federation.layout.size * itemsize, self.federation.training
            sample = self.federation.x[0].nbytes
            batch = (training.batch_size or int(self.federation.population.samples.max())) * sample
            needed = 12 * d + 8 * batch  # vectors and activations of one client, roughly
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            self._block = max(1, min(max(16, BLOCK // d), int(MEMORY * free) // (needed * self._cores)))
        return self._block

    def _run(self, task: Task, places: NDArray[np.int64]) -> list[Block]:
        program = self._programs.get()
        try:
            return [self._compute(program, task, places)]
        except (RuntimeError, MemoryError) as error:
            if not _out_of_memory(error):
                raise
            reason = str(error)
        finally:
            self._programs.put(program)
        self._block = len(places) // 2
        if not self._block:
            raise MemoryError(f"one client does not fit into memory: {reason}")
        return [block for half in np.array_split(places, 2) for block in self._run(task, half)]

    def _compute(self, shared: Program, task: Task, places: NDArray[np.int64]) -> Block:
        """One block, in one thread."""
        method, cohort = task.method, task.cohort
        members = Members(self.federation, cohort.ids[places], cohort.round)
        kept = [self.kept(method, int(client)) for client in members.clients]
        state, state_dims = _stacked(kept)
        down, down_dims = _rows(task.down, places)
        seen: list[BatchedLocal] = []

        def program(me: Tensor, down: dict[str, Any], state: dict[str, Any]) -> Any:
            local = BatchedLocal(shared, members, me, cohort.round)
            seen.append(local)
            message, mine = type(task.down)(**down), type(kept[0].state)(**state)
            if task.kind == "survey":
                up, after = method.survey(message, mine, local), None
            else:
                up, after = method.client_update(message, mine, local)
            fields = {f.name: _batchable(v) for f, v in up.tensors().items()}
            others = {f.name: _batchable(v) for f, v in after.tensors().items()} if after is not None else {}
            return fields, others, {name: _batchable(v) for name, v in local.notes.items()}

        began = time.perf_counter()
        with torch.no_grad():
            up, after, notes = torch.func.vmap(program, in_dims=(0, down_dims, state_dims))(
                torch.arange(len(places), device=self.federation.x.device), down, state
            )
        (local,) = seen
        seconds = (time.perf_counter() - began) / len(places)
        where = torch.from_numpy(places).to(self.federation.x.device)
        stacked, noted = passed(task.stages, up_kind(method, task.kind)(**up), task.down, where)
        sizes = stacked.sizes(len(places))
        spent = [
            Spent(gradients, forwards, heads, seconds, size)
            for gradients, forwards, heads, size in zip(
                *(local.counts[k].tolist() for k in ("gradients", "forwards", "head")), sizes, strict=True
            )
        ]
        return Block(
            clients=members.clients,
            round=cohort.round,
            up=stacked,
            state=None if task.kind == "survey" else type(kept[0].state)(**after),
            samples=members.n,
            steps=members.steps,
            spent=spent,
            notes={name: value.tolist() for name, value in (notes | noted).items()},
            reach={field.name: reach(value) for field, value in stacked.items() if value.is_floating_point()},
            kept={name: reach(value) for name, value in after.items() if value.is_floating_point()},
        )


def _batchable(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(value)


def _stacked(kept: list[Kept]) -> tuple[dict[str, Any], dict[str, int | None]]:
    """The states of clients with one more axis, unless all of them are the same."""
    values, dims = {}, {}
    for field, first in kept[0].state.items():
        rows = [getattr(k.state, field.name) for k in kept]
        same = all(row is first for row in rows)
        values[field.name] = first if same else torch.stack(rows)
        dims[field.name] = None if same else 0
    return values, dims


def _rows(down: Record, places: NDArray[np.int64]) -> tuple[dict[str, Any], dict[str, int | None]]:
    values, dims = {}, {}
    for field, value in down.items():
        each = field.travel == "each"
        values[field.name] = value[torch.from_numpy(places).to(value.device)] if each else value
        dims[field.name] = 0 if each else None
    return values, dims


def _out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
