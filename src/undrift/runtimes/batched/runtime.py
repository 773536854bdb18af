"""Many clients in one tensor program: ``client_update`` under ``torch.func.vmap``, a block of clients at a time.

What a client computes is a function of tensors and of sizes; clients of like size share a block. Agrees with the serial
runtime up to rounding; what cannot be batched is left to it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.client import up_kind
from undrift.core.federation import Federation
from undrift.core.optimisers import joined, parted, remembered
from undrift.core.records import Record
from undrift.core.reduce import Block, Reply, reach
from undrift.core.runtime import Runtime, Task
from undrift.core.spent import Spent
from undrift.core.stages import passed
from undrift.core.states import Kept
from undrift.runtimes.batched.local import BatchedLocal
from undrift.runtimes.batched.members import Members
from undrift.runtimes.batched.program import Program
from undrift.runtimes.cores import cores
from undrift.runtimes.crew import Crew
from undrift.runtimes.memory import free_memory, keep_freed_memory
from undrift.runtimes.serial import Serial

BLOCK = 10 << 20  # bytes of one vector of a block: large enough to pay for dispatch, small enough for the cache
MEMORY = 0.5  # share of the free memory that a block may take


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
        self._cores = cores() if federation.x.device.type == "cpu" else 1
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
            batch = (training.per_step or int(self.federation.population.samples.max())) * sample
            needed = 12 * d + 8 * batch  # vectors and activations of one client, roughly
            most = int(MEMORY * free_memory()) // (needed * self._cores)
            self._block = max(1, min(max(16, BLOCK // d), most))
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
                mine, local.moments = parted(mine)
                up, after = method.client_update(message, mine, local)
                if local.moments is not None:
                    after = joined(after.tensors(), remembered(local.training), local.moments)
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
        norms = {f.name: _norms(value) for f, value in stacked.items() if value.is_floating_point()}
        return Block(
            clients=members.clients,
            round=cohort.round,
            up=stacked,
            state=None if task.kind == "survey" else type(kept[0].state)(**after),
            samples=members.n,
            steps=members.steps,
            spent=spent,
            notes={name: value.tolist() for name, value in (notes | noted).items()},
            norms=norms,
            kept={name: reach(value) for name, value in after.items() if value.is_floating_point()},
        )


def _norms(rows: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(rows.reshape(len(rows), -1), dim=1)
    return found


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
