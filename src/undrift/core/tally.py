"""``Tally``: how the replies of an exchange become one. What is asked is a ``Task``, what comes of it ``Exchanged``.

It knows neither where clients work nor why a reply was refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from undrift.core.algorithm import Method
from undrift.core.check import Expected, Rejected
from undrift.core.client import Work
from undrift.core.cohort import Cohort
from undrift.core.drift import Drift
from undrift.core.guard import Guard, Seen
from undrift.core.records import Message
from undrift.core.reduce import Block, Partial, Reply, reduce_buffers
from undrift.core.spent import Spent
from undrift.core.stages import Carried, Stage, Uploads
from undrift.core.states import Kept, States, elsewhere
from undrift.core.update import Starts
from undrift.core.vector import Buffers

PATIENCE = 8  # replies that may wait for a client whose first answer was bad

Answer = Reply | Block | Partial | Rejected


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


def many(item: Answer) -> int:
    """The clients that an answer is of."""
    if isinstance(item, Partial):
        return item.span
    return len(item.clients) if isinstance(item, Block) else 1


class Tally:
    """Replies that are added up in the order of the cohort. One that comes early waits; what was added is forgotten.

    ``part``: it is only a part of the cohort, and what the guard cannot tell yet is left to whoever has all parts.
    """

    def __init__(self, task: Task, expected: Expected, states: States, part: bool = False, drift: bool = True) -> None:
        kind = expected.kind
        self._unsaid = [wanted.name for wanted in expected.fields if wanted.shape is None]
        self._states = states
        self._parts = part  # with parts, uploads that had to wait are added last
        self._task, self._portions = task, task.cohort.portions
        self._down_bytes = _down_bytes(task)
        self._updates = task.kind == "update"
        self._reduction = task.uploads.one.begun(kind)
        starts = Starts(kind, task.down)
        self._drift = Drift(starts) if self._updates and drift else None
        self._guard = Guard(starts, task.down, task.uploads.guard)
        self._waiting: dict[int, Reply | Block] = {}  # for the guard to have seen all, by (first) place
        self._next = 0
        self._early: dict[int, Reply | Block | Partial] = {}  # by (first) place
        self._refused: set[int] = set()
        self._shapes: dict[str, tuple[int, ...]] = {}  # of fields of which nothing but the first upload says it
        self._counted: list[tuple[int, int, Spent, dict[str, float]]] = []
        self._statistics: list[tuple[Buffers, float]] = []  # of batch norm, and what they weigh
        self._weight = 0.0

    def put(self, place: int, item: Reply | Block | Partial) -> None:
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
                self._next += many(found)
            elif self._next in self._refused and len(self._early) > PATIENCE:
                self._next += 1
            else:
                return

    def _add(self, place: int, item: Reply | Block | Partial) -> None:
        if isinstance(item, Partial):
            self._add_partial(item)
            return
        look = self._guard.look_rows(item, place) if isinstance(item, Block) else self._guard.look(item.up, place)
        harmless, seen = look
        if harmless and (self._parts or not self._waiting):
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
        clients = block.clients.tolist()
        self._weight += sum(portions)
        if self._updates:
            for client, state in zip(clients, block.states(), strict=True):
                self._states.hold(client, elsewhere(block.round) if state is None else Kept(state, None, block.round))
        self._counted += zip(clients, block.steps.tolist(), block.spent, block.noted(), strict=True)

    def _add_reply(self, place: int, reply: Reply, seen: Seen | None) -> None:
        reply.spent.bytes_down = self._down_bytes
        self._reduction.add(reply.up, self._portions[place])
        if self._drift is not None:
            self._drift.add(reply.up, place, seen)
        own = not self._task.method.shares_buffers
        if self._updates:
            kept = Kept(reply.state, reply.buffers if own else None, reply.round) if reply.state is not None else None
            self._states.hold(reply.client, kept or elsewhere(reply.round))
        if self._updates and not own and reply.buffers is not None:
            self._statistics.append((reply.buffers, self._portions[place]))
        self._weight += self._portions[place]
        self._counted.append((reply.client, reply.steps, reply.spent, reply.notes))

    def _add_partial(self, part: Partial) -> None:
        self._parts = True
        self._guard.told(part.lengths)
        self._waiting |= part.waiting
        if part.up is None:
            return
        self._reduction.add_reduced(part.up, part.weight)
        if self._drift is not None and part.drift is not None:
            self._drift.merge(part.drift)
        for client, kept in part.kept.items():
            self._states.hold(client, kept)
        if part.buffers is not None:
            self._statistics.append((part.buffers, part.weight))
        self._weight += part.weight
        self._counted += zip(part.clients, part.steps, part.spent, part.notes, strict=True)

    def partial(self, begin: int, rejected: Mapping[int, str]) -> Partial:
        """What there is of a part of the cohort that begins at this place."""
        for place in sorted(self._early):
            self._add(place, self._early[place])
        clients, steps, spent, notes = zip(*self._counted, strict=True) if self._counted else ((), (), (), ())
        self._states.commit(clients, self._task.cohort.round)
        return Partial(
            place=begin,
            span=self._task.cohort.size,
            up=self._reduction.result() if clients else None,
            weight=self._weight,
            clients=clients,
            steps=steps,
            spent=spent,
            notes=notes,
            kept={client: kept for client in clients if (kept := self._states.load(client)) is not None},
            buffers=self._buffers(),
            lengths={begin + place: length for place, length in self._guard.lengths.items()},
            drift=None if self._drift is None else self._drift.spread(),
            waiting={begin + place: reply for place, reply in self._waiting.items() if isinstance(reply, Reply)},
            rejected=rejected,
        )

    def _buffers(self) -> Buffers | None:
        if not self._statistics:
            return None
        buffers, weights = zip(*self._statistics, strict=True)
        return reduce_buffers(buffers, weights)

    def exchanged(self, rejected: dict[int, str]) -> Exchanged:
        """What there is, without those that never answered."""
        for place in sorted(self._early):
            self._add(place, self._early[place])
        rejected = rejected | self._released()
        cohort = self._task.cohort
        if not self._counted:
            return Exchanged(None, cohort.answered(cohort.ids[:0], torch.empty(0), ()), rejected=rejected)
        ids, steps, spent, notes = zip(*self._counted, strict=True)
        answered = cohort.answered(np.array(ids, dtype=np.int64), torch.tensor(steps, dtype=torch.float64), spent)
        for name, values in _noted(notes).items():
            answered.note(name, float(np.mean(values)))
        return Exchanged(
            up=self._reduction.result(),
            cohort=answered,
            buffers=self._buffers(),
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
