"""``Runtime.exchange``: the only place where "where does it run" is decided.

A runtime produces replies; checking, reducing and counting them is the same everywhere and lives here.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.check import Expected, Rejected, objection, sound
from undrift.core.client import Work, one_thread, up_kind
from undrift.core.cohort import Cohort
from undrift.core.drift import Drift
from undrift.core.federation import Federation
from undrift.core.guard import Guard, Seen
from undrift.core.records import Message
from undrift.core.reduce import Block, Reply, reduce_buffers
from undrift.core.spent import Spent
from undrift.core.stages import Carried, Stage, Uploads
from undrift.core.states import Kept, Memory, States, elsewhere
from undrift.core.vector import Buffers

PATIENCE = 8  # replies that may wait for a client whose first answer was bad

Answer = Reply | Block | Rejected
Mapped = Callable[[Federation, Mapping[str, Tensor], Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Task:
    """One exchange with a cohort, as a runtime sees it."""

    method: Method
    down: Message
    cohort: Cohort
    buffers: Buffers | None = None
    kind: Work = "update"
    first: Message | None = None  # the survey's message, in the second exchange
    uploads: Uploads = field(default_factory=Uploads)
    carried: Carried = field(default_factory=dict)  # by the stages that uploads pass

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What uploads pass where the client is, with this round's numbers."""
        return self.uploads.at(self.carried) if self.kind == "update" else ()


@dataclass(frozen=True)
class Exchanged:
    """What an exchange brought: the reduced upload, and who answered."""

    up: Any | None  # None: nobody's upload was accepted
    cohort: Cohort
    buffers: Buffers | None = None
    rejected: dict[int, str] = field(default_factory=dict)
    drift: dict[str, float] = field(default_factory=dict)
    lengths: tuple[float, ...] = ()  # of the updates that counted


class Runtime(ABC):
    """Where clients work. Subclasses say how the replies come about, in any order."""

    name = ""
    why = ""  # why this one was chosen, where it was
    federation: Federation
    notice: Callable[[int], None] | None = None  # told how many clients have answered, as they do
    states: States  # what the clients keep
    elsewhere = False  # do they keep it themselves? Then only the round that was accepted last is kept here
    patience = 0.0  # seconds of work that a client may claim however young the exchange is

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.states = Memory()
        self._fresh: tuple[Method | None, Kept] = (None, elsewhere(0))

    def kept(self, method: Method, client: int) -> Kept:
        """What a client keeps; before its first accepted upload that is the method's initial state."""
        found = self.states.load(client)
        return self.fresh(method) if found is None else found

    def fresh(self, method: Method) -> Kept:
        """What a client keeps before its first accepted upload: the method's initial state."""
        if self._fresh[0] is not method:
            self._fresh = (method, self.federation.fresh(method))
        return self._fresh[1]

    def expecting(self, task: Task) -> Expected:
        """What is known of the replies to a task before they arrive."""
        return expecting(task, self.fresh(task.method), not self.elsewhere, self.patience)

    @abstractmethod
    def replies(self, task: Task) -> Iterable[Answer]:
        """The replies of the clients that answered, in any order."""

    def exchange(self, task: Task) -> Exchanged:
        """Send, wait, check, reduce."""
        began = time.perf_counter()
        with one_thread():
            done = settle(task, self._noticed(task), self.states, self.expecting(task))
        return replace(done, cohort=replace(done.cohort, elapsed=time.perf_counter() - began))

    def _noticed(self, task: Task) -> Iterable[Answer]:
        replies = self.replies(task)
        return replies if self.notice is None or task.kind == "evaluate" else counted(replies, self.notice)

    def map(self, function: Mapped, tensors: Mapping[str, Tensor], items: Sequence[Any]) -> list[dict[str, Tensor]]:
        """``function(federation, tensors, item)`` for every item, where the clients work: evaluation, for example."""
        with one_thread(), torch.no_grad():
            return [function(self.federation, tensors, item) for item in items]

    def close(self) -> None:  # noqa: B027
        """Release what the runtime holds (processes, shared memory)."""

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def counted(replies: Iterable[Answer], notice: Callable[[int], None]) -> Iterator[Answer]:
    """The replies, with a word to somebody on how many clients they came from."""
    clients = 0
    for item in replies:
        yield item
        clients += len(item.clients) if isinstance(item, Block) else 1
        notice(clients)


def settle(task: Task, replies: Iterable[Answer], states: States, expected: Expected | None = None) -> Exchanged:
    """Check every reply, drop the bad ones by name, and reduce the others in cohort order, as soon as it allows.

    What clients will keep is held in ``states``; it is for the loop to say that the round counted.
    """
    places = {int(client): place for place, client in enumerate(task.cohort.ids)}
    expected = expected or expecting(task)
    tally = Tally(task, expected, states)
    good: set[int] = set()
    rejected: dict[int, str] = {}

    def take(answer: Reply | Rejected, checked: bool) -> None:
        client = answer.client if type(answer.client) is int else -1
        if client in good:
            return  # of two answers the first that is sound counts, and the other is no matter
        if client not in places:
            rejected[client] = "it was not asked in this round"
        elif isinstance(answer, Rejected):
            rejected[client] = answer.reason
            tally.refuse(places[client])
        elif reason := None if checked else objection(answer, expected) or tally.unlike(answer):
            rejected[client] = reason
            tally.refuse(places[client])
        else:
            good.add(client)
            rejected.pop(client, None)
            tally.put(places[client], answer)

    for item in replies:
        if not isinstance(item, Block):
            take(item, checked=False)
            continue
        whole = sound(item, expected)
        clients, begin = item.clients.tolist(), places.get(int(item.clients[0]), len(places))
        if whole and np.array_equal(task.cohort.ids[begin : begin + len(clients)], item.clients):
            good.update(clients)
            tally.put(begin, item)
        else:
            for reply in item.replies():
                take(reply, whole)
    return tally.exchanged(rejected)


def expecting(task: Task, fresh: Kept | None = None, travels: bool = True, patience: float = 0.0) -> Expected:
    """What is known of the replies to a task before they arrive: see ``Expected``."""
    shared, own = task.method.shares_buffers, None if fresh is None or not travels else fresh.buffers
    return Expected(
        kind=up_kind(task.method, task.kind),
        round=task.cohort.round,
        population=task.cohort.population,
        down=task.down,
        began=task.cohort.began,
        fresh=fresh,
        travels=travels,
        buffers=(task.buffers if shared else own) if task.kind == "update" else None,
        shared=shared,
        work=task.kind,
        patience=patience,
    )


class Tally:
    """Replies that are added up in the order of the cohort. One that comes early waits; what was added is forgotten."""

    def __init__(self, task: Task, expected: Expected, states: States) -> None:
        kind = expected.kind
        self._unsaid = [wanted.name for wanted in expected.fields if wanted.shape is None]
        self._states = states
        self._task, self._portions = task, task.cohort.portions
        self._down_bytes = _down_bytes(task)
        self._updates = task.kind == "update"
        self._reduction = task.uploads.one.begun(kind)
        self._drift = Drift(kind, task.down) if self._updates else None
        self._guard = Guard(kind, task.down, task.uploads.guard)
        self._waiting: dict[int, Reply | Block] = {}  # for the guard to have seen all, by (first) place
        self._next = 0
        self._early: dict[int, Reply | Block] = {}  # by (first) place
        self._refused: set[int] = set()
        self._shapes: dict[str, tuple[int, ...]] = {}  # of fields of which nothing but the first upload says it
        self._counted: list[tuple[int, int, Spent, float, Buffers | None, dict[str, float]]] = []

    def put(self, place: int, item: Reply | Block) -> None:
        if place >= self._next:
            self._early.setdefault(place, item)
            self._refused.discard(place)
            self._advance()

    def refuse(self, place: int) -> None:
        """A bad answer: a good one may still come under the same name, and is waited for while few others wait."""
        self._refused.add(place)
        self._advance()

    def unlike(self, reply: Reply) -> str | None:
        """Why an upload does not go with the first one, where nothing else says its shape."""
        for name in self._unsaid:
            found = tuple(getattr(reply.up, name).shape)
            shape = self._shapes.setdefault(name, found)
            if found != shape:
                return f"{name} has shape {found}, not {shape} as that of others"
        return None

    def _advance(self) -> None:
        while True:
            if self._next in self._early:
                found = self._early.pop(self._next)
                self._add(self._next, found)
                self._next += len(found.clients) if isinstance(found, Block) else 1
            elif self._next in self._refused and len(self._early) > PATIENCE:
                self._next += 1
            else:
                return

    def _add(self, place: int, item: Reply | Block) -> None:
        look = self._guard.look_rows(item, place) if isinstance(item, Block) else self._guard.look(item.up, place)
        harmless, seen = look
        if harmless and not self._waiting:
            self._count(place, item, seen)
        else:  # what comes after it waits too: sums are in cohort order
            self._waiting[place] = item

    def _released(self) -> dict[int, str]:
        """Count what waited but for what the guard rejects, by client."""
        if not self._waiting:
            return {}
        single = {
            place: list(enumerate(item.replies() if isinstance(item, Block) else [item], place))
            for place, item in self._waiting.items()
        }
        found = self._guard.objections([(at, reply.up) for replies in single.values() for at, reply in replies])
        for place, item in self._waiting.items():
            if not any(at in found for at, _ in single[place]):
                self._count(place, item)
                continue
            for at, reply in single[place]:
                if at not in found:
                    self._count(at, reply)
        self._waiting.clear()
        return {int(self._task.cohort.ids[place]): reason for place, reason in found.items()}

    def _count(self, place: int, item: Reply | Block, seen: Seen | None = None) -> None:
        if isinstance(item, Block):
            self._add_block(place, item, seen)
        else:
            self._add_reply(place, item, seen)

    def _add_block(self, place: int, block: Block, seen: Seen | None) -> None:
        portions = self._portions[place : place + len(block.clients)]
        self._reduction.add_rows(block.up, portions)
        if self._drift is not None:
            self._drift.add_rows(block.up, place, seen)
        for spent in block.spent:
            spent.bytes_down = self._down_bytes
        clients, nothing = block.clients.tolist(), [None] * len(block.clients)
        if self._updates:
            for client, state in zip(clients, block.states(), strict=True):
                self._states.hold(client, elsewhere(block.round) if state is None else Kept(state, None, block.round))
        self._counted += zip(clients, block.steps.tolist(), block.spent, portions, nothing, block.noted(), strict=True)

    def _add_reply(self, place: int, reply: Reply, seen: Seen | None) -> None:
        reply.spent.bytes_down = self._down_bytes
        self._reduction.add(reply.up, self._portions[place])
        if self._drift is not None:
            self._drift.add(reply.up, place, seen)
        own = not self._task.method.shares_buffers
        if self._updates:
            kept = Kept(reply.state, reply.buffers if own else None, reply.round) if reply.state is not None else None
            self._states.hold(reply.client, kept or elsewhere(reply.round))
        shared = reply.buffers if self._updates and not own else None
        self._counted.append((reply.client, reply.steps, reply.spent, self._portions[place], shared, reply.notes))

    def exchanged(self, rejected: dict[int, str]) -> Exchanged:
        """What there is, without those that never answered."""
        for place in sorted(self._early):
            self._add(place, self._early[place])
        rejected = rejected | self._released()
        cohort = self._task.cohort
        if not self._counted:
            return Exchanged(None, cohort.answered(cohort.ids[:0], torch.empty(0), ()), rejected=rejected)
        ids, steps, spent, portions, buffers, notes = zip(*self._counted, strict=True)
        answered = cohort.answered(np.array(ids, dtype=np.int64), torch.tensor(steps, dtype=torch.float64), spent)
        for name, values in _noted(notes).items():
            answered.note(name, float(np.mean(values)))
        return Exchanged(
            up=self._reduction.result(),
            cohort=answered,
            buffers=None if buffers[0] is None else reduce_buffers(buffers, portions),
            rejected=rejected,
            drift={} if self._drift is None else self._drift.figures(),
            lengths=tuple(self._guard.lengths.values()),
        )


def _noted(notes: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """What most clients have noted, by name; a number that is not finite was not."""
    found: dict[str, list[float]] = {}
    for note in notes:
        for name, value in note.items():
            if math.isfinite(value):
                found.setdefault(name, []).append(value)
    return {name: values for name, values in found.items() if 2 * len(values) > len(notes)}


def _down_bytes(task: Task) -> int:
    """What goes down to a client: rows of ``Each`` fields are all of one size."""
    extra = task.buffers.nbytes() if task.buffers and task.method.shares_buffers and task.kind != "survey" else 0
    return task.down.row(0).nbytes() + extra
