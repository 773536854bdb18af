"""Clients as tasks of a Ray cluster. Ray schedules, moves objects and repeats what a lost worker or node had.

It joins the Ray that this process is connected to; else the cluster that ``RAY_ADDRESS`` names; else it starts a local
one that nobody else can reach. A client's work depends on its message, its data, what it keeps and the seed, so where
it ran, and how often, never shows in the result.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from undrift.core.admit import Door
from undrift.core.check import Rejected
from undrift.core.client import Candidate
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.reduce import Partial, Reply
from undrift.core.runtime import Mapped, Runtime, Task
from undrift.core.states import Kept
from undrift.runtimes import raytask
from undrift.runtimes.raytask import Arrays, Exchange, Setup, arrays_of, tensors_of, versions

# This comes before Ray: it says how Ray is to behave.
from undrift.runtimes.raycluster import agree, connect  # isort: skip
import ray  # isort: skip
from ray import cloudpickle  # isort: skip

RETRIES = 3  # of a task whose worker or node died; more at the same client is no accident
BUNDLE = 0.02  # seconds of work that are worth a task
AHEAD = 3  # tasks per core that are under way: enough to keep all busy, few enough for the driver's memory
LARGE = 1 << 20  # bytes of a client's state that travel by reference, so that it stays where it was last used
PATIENCE = 10.0  # seconds that interrupted calls get to answer


Result = tuple[int, Arrays, dict[str, Any]]  # number of the item, tensors, header
Submit = Callable[[list[Any]], Any]  # has a bundle of items done; the reference to what comes of it


class Ray(Runtime):
    name = "ray"

    def __init__(self, federation: Federation, workers: int | None = None, gpus: float | None = None) -> None:
        """``workers``: cores of a local cluster; ``gpus``: of a task, where the data are on GPUs (left out: one)."""
        super().__init__(federation)
        self._device = str(federation.x.device)
        self._own = connect(workers)
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        try:
            agree()
            self._setup = ray.put(_setup(federation))
        except BaseException:
            self.close()
            raise
        share = (gpus or 1.0) if federation.x.device.type == "cuda" else 0.0
        self._options: Mapping[str, Any] = {"num_cpus": 1, "num_gpus": share, "max_retries": RETRIES}
        self._clients = ray.remote(**self._options)(raytask.clients)
        self._client = ray.remote(num_returns=2, **self._options)(raytask.client)
        self._items = ray.remote(**self._options)(raytask.items)
        self._method: tuple[Any, bytes] = (None, b"")
        self._pinned: dict[int, tuple[Tensor, int, Any]] = {}  # tensors of ``map`` that stay: by identity and version
        self._stored: dict[int, tuple[int, Any]] = {}  # large states by client: of which round, and the reference
        self._pace = 0.0  # seconds per sample, as measured

    def replies(self, task: Task) -> Iterator[Reply | Partial | Rejected]:
        method, cohort = task.method, task.cohort
        exchange = self._exchange(task)
        clients = cohort.ids.tolist()
        samples = cohort.population.samples[cohort.ids]
        mine = [self.kept(method, client) for client in clients]
        apart = task.kind == "update" and any(_size(kept) >= LARGE for kept in mine)
        sent: dict[int, Any] = {}  # many may keep the same
        states: dict[Any, Any] = {}  # references to what will be kept, by those to the rest

        def submit(bundle: list[int]) -> Any:
            places = [(place, clients[place]) for place in bundle]
            kept = [self._sent(clients[place], mine[place], sent) for place in bundle]
            if not apart:
                return self._clients.remote([self._setup], [exchange], places, *kept)
            result, state = self._client.remote([self._setup], [exchange], places, *kept)
            states[result] = state
            return result

        def name(place: int) -> str:
            return f"client {cohort.population.name(clients[place])}, round {cohort.round}"

        door = Door(self.expecting(task))
        longest_first = (-samples).argsort(kind="stable").tolist()
        seconds = 1.0 if apart else self._pace * float(samples.mean()) or 1.0
        for ref, (place, arrays, header) in self._run(submit, longest_first, seconds, name):
            if ref in states:
                self._stored[clients[place]] = (cohort.round, states[ref])
                arrays |= ray.get(states.pop(ref))
            reply = door.admit_parts(clients[place], tensors_of(arrays, self._device), header)
            if isinstance(reply, Reply):
                self._pace = reply.spent.seconds / max(reply.samples, 1)
            yield reply

    def _exchange(self, task: Task) -> Any:
        """A reference to what the clients of an exchange have in common."""
        method, cohort = task.method, task.cohort
        if self._method[0] is not method:
            self._method = (method, portable(method, f"the method {method.title or type(method).__name__}"))
        return ray.put(
            Exchange(
                method=self._method[1],
                kind=task.kind,
                given=isinstance(task.down, Candidate),
                round=cohort.round,
                down=arrays_of({spec.name: value for spec, value in task.down.tensors().items()}),
                buffers=None if task.buffers is None else arrays_of({s.name: v for s, v in task.buffers.items()}),
                cohort={"ids": cohort.ids, "lr": cohort.lr, "weighting": cohort.weighting},
                uploads=task.uploads,
                carried=dict(task.carried),
            )
        )

    def map(self, function: Mapped, tensors: Mapping[str, Tensor], items: Sequence[Any]) -> list[dict[str, Tensor]]:
        code = ray.put(portable(function, "the function"))
        shared = {name: [self._pin(tensor)] for name, tensor in tensors.items()}

        def submit(bundle: list[tuple[int, Any]]) -> Any:
            return self._items.remote([self._setup], [code], shared, bundle)

        found = {
            place: tensors_of(arrays, self._device)
            for _, (place, arrays, _) in self._run(submit, list(enumerate(items)), 1.0, lambda place: f"item {place}")
        }
        return [found[place] for place in range(len(items))]

    def close(self) -> None:
        self._setup = None
        if self._own and ray.is_initialized():
            ray.shutdown()

    def _sent(self, client: int, kept: Kept, sent: dict[int, Any]) -> Any:
        """What a client keeps, as an argument of a task: by value, or where the cluster has it already."""
        round, ref = self._stored.get(client, (-1, None))
        if round == kept.round and ref is not None:
            return ref
        if id(kept) not in sent:
            arrays = arrays_of(kept.tensors())
            sent[id(kept)] = ray.put(arrays) if _size(kept) >= LARGE else arrays
        return sent[id(kept)]

    def _pin(self, tensor: Tensor) -> Any:
        known = self._pinned.get(id(tensor))
        if known is None or known[1] != tensor._version:
            known = self._pinned[id(tensor)] = (tensor, tensor._version, ray.put(arrays_of({"": tensor})))
        return known[2]

    def _run(
        self, submit: Submit, items: list[Any], seconds: float, name: Callable[[int], str]
    ) -> Iterator[tuple[Any, Result]]:
        """Have items done by the cluster; results as they arrive, each with the reference that it came by."""
        size = max(1, min(round(BUNDLE / seconds), math.ceil(len(items) / (2 * self.workers))))
        waiting = [items[i : i + size] for i in range(0, len(items), size)][::-1]
        under_way: list[Any] = []
        try:
            while waiting or under_way:
                while waiting and len(under_way) < AHEAD * self.workers:
                    under_way.append(submit(waiting.pop()))
                done, under_way = ray.wait(under_way, num_returns=1)
                results, error = self._got(done[0])
                if error is not None:
                    raise _explained(error, name)
                for result in results:
                    yield done[0], result
        except BaseException:
            for ref in under_way:
                ray.cancel(ref, force=True)
            raise

    def _got(self, ref: Any) -> Any:
        try:
            return ray.get(ref)
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
            raise RuntimeError(
                f"workers of the cluster died {RETRIES + 1} times at the same clients ({type(error).__name__}); "
                "if memory ran out, use a smaller batch, or nodes with more memory"
            ) from error


def _size(kept: Kept) -> int:
    return sum(tensor.nbytes for tensor in kept.tensors().values())


def _explained(error: tuple[int, bytes, str], name: Callable[[int], str]) -> Exception:
    place, data, where = error
    found: Exception = cloudpickle.loads(data)
    found.add_note(f"{name(place)}, {where}")
    return found


def _setup(federation: Federation) -> Setup:
    """All that a worker needs once: the code, and the rows as arrays that are read in place."""
    rest = {name: getattr(federation, name) for name in ("training", "seed", "layout")}
    parts = {"module": federation.module, "loss": federation.loss, "augment": federation.augment, "rest": rest}
    code = {name: portable(part, raytask.WORDS[name]) for name, part in parts.items()}
    held = {name: getattr(federation, name) for name in ("x", "y", "indices", "offsets", "public", "scoring")}
    if federation.test is not None:
        held |= {f"test.{name}": getattr(federation.test, name) for name in ("x", "y", "indices", "offsets")}
    rows = {name: torch.as_tensor(value) for name, value in held.items() if value is not None}
    return Setup(secrets.token_hex(8), versions(), code, arrays_of(rows), str(federation.x.device))


def portable(value: Any, what: str) -> bytes:
    """A value as bytes. What a notebook or a script defines travels with it; what a module defines must be there."""
    try:
        data: bytes = cloudpickle.dumps(value)
        return data
    except Exception as error:
        raise InvalidInput(
            f"{what} cannot be sent to the cluster ({error}): define it at the top level of a module that is installed "
            "on all nodes, or use the serial runtime"
        ) from error


# --- whole pieces of work ---------------------------------------------------------------------------------------------


class Calls:
    """Calls of a function as tasks of the cluster, one core each. A call whose worker or node died is repeated."""

    def __init__(self, function: Callable[..., Any], workers: int | None = None, gpus: float = 0.0) -> None:
        connect(workers)  # a local cluster stays for the calls to come, and ends with this process
        agree()
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._function = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(function)
        self._under_way: list[Any] = []

    def share(self, value: Any) -> Any:
        """Put a value where all nodes can read it; as an argument it is the value."""
        return ray.put(value)

    def call(self, *arguments: Any) -> Any:
        """A reference by which the answer will be known."""
        self._under_way.append(self._function.remote(*arguments))
        return self._under_way[-1]

    def answer(self) -> tuple[Any, Any]:
        """The next call that has ended: its reference, and what it returned or the error that ended it."""
        (ref,), self._under_way = ray.wait(self._under_way, num_returns=1)
        return ref, _result(ref)

    def stop(self) -> Iterator[tuple[Any, Any]]:
        """Interrupt what is under way. The answers of calls that had one to give; the others are ended by force."""
        refs, self._under_way = self._under_way, []
        for ref in refs:
            ray.cancel(ref)
        done, others = ray.wait(refs, num_returns=len(refs), timeout=PATIENCE) if refs else ([], [])
        for ref in others:
            ray.cancel(ref, force=True)
        for ref in done:
            yield ref, _result(ref)


def _result(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayTaskError as error:
        return error.cause or error
    except ray.exceptions.RayError as error:
        return RuntimeError(f"workers of the cluster died {RETRIES + 1} times at it ({type(error).__name__})")
