"""Worker processes with one thread each. Data and vectors lie in shared memory; what travels is a few numbers.

Workers take the next clients when they are done with the last, the largest first. Which worker does what never shows in
the result: a client's work depends on its message, its data and the seed, and replies are reduced in cohort order.
A worker that dies is replaced, and what it had not delivered is done again.
"""

from __future__ import annotations

import multiprocessing
import pickle
import selectors
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import torch
from torch import Tensor, nn

from undrift.core.admit import Door
from undrift.core.check import Rejected
from undrift.core.client import Candidate
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.reduce import Reply
from undrift.core.runtime import Mapped, Runtime, Task
from undrift.runtimes import crowd, worker
from undrift.runtimes.memory import Segment, Signature, room, signature_of
from undrift.runtimes.worker import Delivery

ATTEMPTS = 3  # deaths of a worker at the same client that are put down to chance
PINNED = 1 << 20  # tensors of at least this size that are passed to ``map`` stay in shared memory
SHORT = 0.02  # seconds; a worker gets its next client ahead when clients are shorter than this
BUNDLE = 0.005  # seconds of work that are worth a message

Item = tuple[int, Any]  # its number, and what the worker needs to know


@dataclass
class Handle:
    """A worker as its parent sees it."""

    number: int
    process: Any
    conn: Any
    ready: bool = False
    given: deque[list[Item]] = field(default_factory=deque)  # bundles it has not delivered
    outboxes: list[Segment | None] = field(default_factory=lambda: [None, None])
    has: dict[str, Segment] = field(default_factory=dict)  # segments that it was sent
    header: object = None  # the exchange that it knows


@dataclass(frozen=True)
class Job:
    """Items that have a header in common."""

    header: tuple[Any, ...] | None
    message: Callable[[list[Item]], tuple[Any, ...]]
    name: Callable[[int], str]  # what an item is called in an error
    seconds: float = 1.0  # expected for one item


class Processes(Runtime):
    name = "processes"

    def __init__(self, federation: Federation, workers: int | None = None, shared_limit: int | None = None) -> None:
        """``shared_limit``: bytes that one piece of shared memory may have; a larger one lies in a file."""
        self.workers = crowd(workers)
        if not possible():
            raise InvalidInput("this system cannot start worker processes as they are needed: use the threads runtime")
        if federation.x.device.type != "cpu":
            raise InvalidInput(f"processes share memory of the CPU, and the data are on {federation.x.device}")
        super().__init__(federation)
        self._limit = shared_limit
        self._payload = payload(federation)
        self._segments: dict[str, Segment] = {}
        self._pinned: dict[int, tuple[Tensor, int, str]] = {}  # tensors of ``map`` that stay: by identity and version
        self._method: tuple[Any, bytes] = (None, b"")
        self._pace = 0.0  # seconds per sample, as measured
        self._handles: dict[int, Handle] = {}
        self._selector = selectors.DefaultSelector()
        self._data = self._share_data()
        self._board = self._segment("board", 8 * self.workers).read(0, (("board", "int64", (self.workers,)),))["board"]
        self._staff()

    # -- the two things it is asked to do -----------------------------------------------------------------------------

    def replies(self, task: Task) -> Iterator[Reply | Rejected]:
        method, cohort = task.method, task.cohort
        if self._method[0] is not method:
            self._method = (method, _dumps(method, f"the method {method.title or type(method).__name__}"))
        parts: list[Mapping[str, Tensor]] = [{spec.name: value for spec, value in task.down.tensors().items()}]
        if task.buffers is not None:
            parts.append({spec.name: value for spec, value in task.buffers.items()})
        clients = cohort.ids.tolist()
        mine = [self.kept(method, client) for client in clients]
        kept = {id(k): k for k in mine}  # many may keep the same
        places = self._write("inbox", [*parts, *(k.tensors() for k in kept.values())])
        at = dict(zip(kept, places[len(parts) :], strict=True))
        signatures = list({signature for _, signature in at.values()})
        header = {
            "method": self._method[1],
            "kind": task.kind,
            "given": isinstance(task.down, Candidate),
            "round": cohort.round,
            "stages": task.stages,
            "down": places[0],
            "buffers": places[1] if task.buffers is not None else None,
            "signatures": signatures,
        }
        samples = cohort.population.samples[cohort.ids]
        items: list[Item] = []
        for place in (-samples).argsort(kind="stable").tolist():  # the longest first
            offset, signature = at[id(mine[place])]
            items.append((place, (clients[place], offset, signatures.index(signature))))
        job = Job(
            header=("exchange", header),
            message=lambda bundle: ("clients", [(place, *rest) for place, rest in bundle]),
            name=lambda place: f"client {cohort.population.name(clients[place])}, round {cohort.round}",
            seconds=self._pace * float(samples.mean()) or 1.0,
        )
        door = Door(self.expecting(task))
        for place, tensors, header in self._run(job, items):
            reply = door.admit_parts(clients[place], tensors, header)
            if isinstance(reply, Reply):
                self._pace = reply.spent.seconds / max(reply.samples, 1)
            yield reply

    def map(self, function: Mapped, tensors: Mapping[str, Tensor], items: Sequence[Any]) -> list[dict[str, Tensor]]:
        code = _dumps(function, "the function")
        large = {name: t for name, t in tensors.items() if t.nbytes >= PINNED}
        shared: list[tuple[str, int, Signature]] = []
        for name, tensor in large.items():
            segment = self._pin(tensor)
            shared.append((segment, 0, signature_of({name: tensor})))
        small = {name: t for name, t in tensors.items() if name not in large}
        ((offset, signature),) = self._write("inbox", [small])
        shared.append(("inbox", offset, signature))
        job = Job(None, lambda bundle: ("map", code, shared, bundle), lambda place: f"item {place}")
        found = {place: result for place, result, _ in self._run(job, list(enumerate(items)))}
        return [found[place] for place in range(len(items))]

    def close(self) -> None:
        self._stop()
        for segment in self._segments.values():
            segment.close()

    def __del__(self) -> None:
        if hasattr(self, "_selector"):
            self.close()

    # -- shared memory ------------------------------------------------------------------------------------------------

    def _segment(self, name: str, size: int) -> Segment:
        self._segments[name] = Segment(size, limit=self._limit)
        return self._segments[name]

    def _share_data(self) -> Signature:
        """Move the data into shared memory. The federation's own tensors move along, so that nothing is there twice."""
        held = self.federation
        tensors = {"x": held.x.detach(), "y": held.y.detach()}
        for name in ("indices", "offsets", "public", "scoring"):
            rows = getattr(held, name)
            if rows is not None:
                tensors[name] = torch.as_tensor(rows)
        if held.test is not None:
            tensors |= {f"test.{f.name}": torch.as_tensor(getattr(held.test, f.name)) for f in fields(held.test)}
        signature = signature_of(tensors)
        segment = self._segment("data", room(signature))
        segment.write(0, tensors)
        moved = segment.read(0, signature)
        held.x.data, held.y.data = moved["x"], moved["y"]
        if held.test is not None:
            held.test.x.data, held.test.y.data = moved["test.x"], moved["test.y"]
        return signature

    def _write(self, name: str, parts: Sequence[Mapping[str, Tensor]]) -> list[tuple[int, Signature]]:
        """Write groups of tensors into a segment that grows when it must; where each group lies."""
        signatures = [signature_of(part) for part in parts]
        needed = sum(map(room, signatures))
        segment = self._segments.get(name)
        if segment is None or segment.size < needed:
            segment = self._segment(name, needed + needed // 4)
        places, offset = [], 0
        for part, signature in zip(parts, signatures, strict=True):
            segment.write(offset, part)
            places.append((offset, signature))
            offset += room(signature)
        return places

    def _pin(self, tensor: Tensor) -> str:
        known = self._pinned.get(id(tensor))
        if known is None or known[1] != tensor._version:
            name = f"pin {id(tensor)}"
            self._segment(name, room(signature_of({"": tensor}))).write(0, {"": tensor})
            known = self._pinned[id(tensor)] = (tensor, tensor._version, name)
        return known[2]

    # -- workers ------------------------------------------------------------------------------------------------------

    def _staff(self) -> None:
        """Start the workers that are missing."""
        if len(self._handles) == self.workers:
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([worker.__name__])
        for number in set(range(self.workers)) - set(self._handles):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=worker.main, args=(theirs, number), name=f"undrift worker {number}", daemon=True
            )
            with _deaf_to_interrupt():
                process.start()
            theirs.close()
            self._board[number] = -1
            handle = self._handles[number] = Handle(number, process, ours)
            self._selector.register(ours, selectors.EVENT_READ, handle)
            for name in ("data", "board"):
                self._give(handle, name)
            ours.send(("setup", self._payload, self._data))

    def _give(self, handle: Handle, name: str) -> None:
        segment = self._segments[name]
        if handle.has.get(name) is not segment:
            handle.conn.send(("segment", name, segment.size))
            send_handle(handle.conn, segment.fd, handle.process.pid)
            handle.has[name] = segment

    def _stop(self) -> None:
        """End all workers, at once: they hold nothing that is not here."""
        for handle in self._handles.values():
            handle.process.kill()
            self._selector.unregister(handle.conn)
            handle.conn.close()
        for handle in self._handles.values():
            handle.process.join()
        self._handles.clear()

    def _run(self, job: Job, items: Sequence[Item]) -> Iterator[Delivery]:
        """Have items done by the workers; results as they arrive."""
        waiting, left, deaths = deque(items), {place for place, _ in items}, Counter[int]()
        try:
            self._staff()
            for handle in list(self._handles.values()):
                self._feed(handle, job, waiting)
            while left:
                for key, _ in self._selector.select():
                    handle = key.data
                    try:
                        results = self._receive(handle, job)
                    except (EOFError, ConnectionError):  # only the worker holds the other end: it is dead
                        self._bury(handle, job, waiting, deaths)
                        self._staff()
                        handle = self._handles[handle.number]
                        results = []
                    self._feed(handle, job, waiting)
                    left.difference_update(place for place, _, _ in results)
                    yield from results
        except BaseException:
            self._stop()  # workers may be in the middle of something: the next exchange starts new ones
            raise

    def _feed(self, handle: Handle, job: Job, waiting: deque[Item]) -> None:
        """Give a worker its next items: one ahead while there are plenty, several at once when they are short."""
        ahead = 2 if job.seconds < SHORT and len(waiting) > self.workers else 1
        try:
            while waiting and len(handle.given) < ahead:
                size = max(1, min(round(BUNDLE / job.seconds), len(waiting) // (2 * self.workers)))
                bundle = [waiting.popleft() for _ in range(size)]
                handle.given.append(bundle)
                for name in self._segments:
                    self._give(handle, name)
                if job.header is not None and handle.header is not job:
                    handle.conn.send(job.header)
                    handle.header = job
                handle.conn.send(job.message(bundle))
        except ConnectionError:
            pass  # it died: seen when its end of the connection closes

    def _receive(self, handle: Handle, job: Job) -> list[Delivery]:
        kind, *rest = handle.conn.recv()
        if kind == "ready":
            handle.ready = True
        elif kind == "outbox":
            turn, size = rest
            handle.outboxes[turn] = Segment(size, recv_handle(handle.conn))
        elif kind == "error":
            place, data, where = rest
            error: Exception = pickle.loads(data)
            error.add_note(f"{job.name(place)}, {where}")
            raise error
        else:
            turn, results = rest
            box = handle.outboxes[turn]
            assert box is not None
            handle.given.popleft()
            return [
                (place, {name: view.clone() for name, view in box.read(offset, signature).items()}, header)
                for place, offset, signature, header in results
            ]
        return []

    def _bury(self, handle: Handle, job: Job, waiting: deque[Item], deaths: Counter[int]) -> None:
        """Take back what a dead worker had, and count its death against the item it was at."""
        handle.process.kill()
        handle.process.join()
        self._selector.unregister(handle.conn)
        handle.conn.close()
        del self._handles[handle.number]
        back = [item for bundle in handle.given for item in bundle]
        waiting.extendleft(reversed(back))
        places = [place for place, _ in back]
        at = int(self._board[handle.number])
        culprit = (at if at in places else places[0]) if handle.ready and places else -1
        deaths[culprit] += 1
        if deaths[culprit] < ATTEMPTS:
            return
        code = handle.process.exitcode
        if culprit < 0:
            raise RuntimeError(
                f"worker processes end before they can start (exit code {code}): a script that uses undrift must do "
                'its work under `if __name__ == "__main__":`; the serial runtime needs no processes'
            )
        raise RuntimeError(
            f"{job.name(culprit)}: the worker process died {ATTEMPTS} times at it (exit code {code}); "
            "if memory ran out, use fewer workers or a smaller batch"
        )


@contextmanager
def _deaf_to_interrupt() -> Iterator[None]:
    """Processes started inside never get Ctrl-C: it is the parent's to handle, and it ends them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- what has to be pickled, once -------------------------------------------------------------------------------------


def possible() -> bool:
    """Can this system fork from a clean process, and hand it shared memory?"""
    return "forkserver" in multiprocessing.get_all_start_methods()


def payload(federation: Federation) -> bytes:
    """The code side of a federation: everything but its data."""
    _dumps(federation.module, "the model", lambda: _attribute(federation.module))
    _dumps(federation.loss, "the loss")
    _dumps(federation.augment, "the augmentation")
    names = ("module", "loss", "augment", "training", "seed", "layout")
    return pickle.dumps({name: getattr(federation, name) for name in names})


def _dumps(value: Any, what: str, culprit: Callable[[], str] = lambda: "") -> bytes:
    try:
        return pickle.dumps(value)
    except Exception as error:
        raise InvalidInput(
            f"{what} cannot be sent to worker processes{culprit()} ({error}): define it at the top level of a module, "
            "or use the serial runtime"
        ) from error


def _attribute(module: nn.Module) -> str:
    """Which attribute of a module cannot be pickled, as a path."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name == "_modules":
                continue
            try:
                pickle.dumps(value)
            except Exception:
                return f", because of its attribute `{path + '.' if path else ''}{name}`"
    return ""
