"""Mutated messages by the thousand, over all methods: nothing raises, and nothing wrong is believed.

The fast tests send a share of them; ``make test-faults`` sends all. Every message follows from its number.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
import pytest
import torch

from conformance import problem, rows_momentum, rows_regularised
from conformance.table import Row
from core.hostile import mutated
from undrift.algorithms import create
from undrift.core.admit import Door
from undrift.core.check import Rejected, _objections
from undrift.core.guard import Guard
from undrift.core.loop import Loop, Snapshot
from undrift.core.packing import pack
from undrift.core.records import Record
from undrift.core.reduce import Reply
from undrift.core.runtime import Exchanged, Task, settle
from undrift.core.states import Memory
from undrift.core.update import Starts
from undrift.core.wire import take_apart
from undrift.runtimes.serial import Serial

ROWS = [*rows_regularised.ROWS, *rows_momentum.ROWS]
ALL, FEW = 100_000, 3900  # messages, of which every method gets its share
ROUND = 2  # the round that is attacked: states and momenta are there


class Witness(Serial):
    """Remembers the exchanges of a round, with the honest replies."""

    def __init__(self, federation: Any) -> None:
        super().__init__(federation)
        self.seen: list[tuple[Task, list[Reply]]] = []

    def exchange(self, task: Task) -> Exchanged:
        self.seen.append((task, list(self.replies(task))))
        return super().exchange(task)


@dataclass(frozen=True)
class Scene:
    """A round of a method that is about to be attacked."""

    loop: Loop
    before: Snapshot
    exchanges: list[tuple[Task, list[Reply]]]
    known: dict[Any, tuple[Exchanged, Any]] = field(default_factory=dict)

    def fair(self, task: Task, replies: list[Reply], without: int | None = None) -> tuple[Exchanged, Any]:
        """What an exchange brings in which all are honest, or one of them is missing; worked out once."""
        if (task.kind, without) not in self.known:
            honest = [reply for place, reply in enumerate(replies) if place != without]
            self.known[task.kind, without] = after(self, task, honest)
        return self.known[task.kind, without]


@cache
def scene(name: str) -> Scene:
    row = next(row for row in ROWS if row.name == name)
    here, method = problem.federation(**row.training), create(row.name, **row.settings)
    here = here.pooled() if method.pools_data else here
    runtime = Witness(here)
    loop = Loop(here, method, runtime, 3)
    snapshot = loop.start()
    for _ in range(ROUND - 1):
        snapshot = loop.play(snapshot).snapshot
    runtime.seen.clear()
    loop.play(snapshot)
    return Scene(loop, snapshot, runtime.seen)


def unlike(record: Record, honest: Record) -> str:
    """In what a record differs in kind from an honest one."""
    for (spec, mine), (_, theirs) in zip(record.tensors().items(), honest.tensors().items(), strict=True):
        if mine.dtype != theirs.dtype and spec.axes != ():  # single numbers are reduced in double precision
            return f"{spec.name} is {mine.dtype}"
        if mine.shape != theirs.shape:
            return f"{spec.name} has shape {tuple(mine.shape)}"
        if torch.isfinite(theirs).all() and not torch.isfinite(mine).all():
            return f"{spec.name} is not finite"
    return ""


def after(scene: Scene, task: Task, replies: list[Reply]) -> tuple[Exchanged, Any]:
    """The server after an exchange with these replies."""
    method, server, (first, honest) = scene.loop.method, scene.before.server, scene.exchanges[0]
    if first.kind == "survey" and task.kind == "update":
        done = settled(scene, first, honest)
        server = method.surveyed(server, done.up, done.cohort)
    done = settled(scene, task, replies)
    if done.up is None:
        return done, server
    return done, (method.surveyed if task.kind == "survey" else method.server_update)(server, done.up, done.cohort)


def settled(scene: Scene, task: Task, replies: list[Reply]) -> Exchanged:
    fresh = [replace(reply, spent=replace(reply.spent)) for reply in replies]
    again = replace(task, cohort=scene.loop._cohort(task.cohort.round, task.cohort.ids))  # a server may train, too
    return settle(again, fresh, Memory(), scene.loop.runtime.expecting(task))


def assault(name: str, number: int, seed: int) -> Counter[str]:
    """Send messages; what became of them. Fails where a wrong one is believed."""
    here, outcome, draw = scene(name), Counter[str](), np.random.default_rng([seed, sum(map(ord, name))])
    sent = {
        (task.kind, place): (*take_apart(reply), pack(*take_apart(reply)))
        for task, replies in here.exchanges
        for place, reply in enumerate(replies)
    }
    for i in range(number):
        task, replies = here.exchanges[i % len(here.exchanges)]
        place = int(draw.integers(len(replies)))
        honest = replies[place]
        tensors, header, data = sent[task.kind, place]
        data = mutated(draw, tensors, header, data)
        expected = here.loop.runtime.expecting(task)
        found = Door(expected).admit(honest.client, data)
        if isinstance(found, Rejected):
            assert found.client == honest.client
            assert 0 < len(found.reason) < 300
            assert found.reason.isprintable()
            outcome["rejected"] += 1
            continue
        outcome["admitted"] += 1
        assert next(_objections(found, expected), None) is None, "a glance let pass what a close look does not"
        assert found.client == honest.client
        assert (found.round, found.samples, found.steps) == (honest.round, honest.samples, honest.steps)
        assert unlike(found.up, honest.up) == ""
        for mine, theirs in ((found.state, honest.state), (found.buffers, honest.buffers)):
            assert (mine is None) == (theirs is None)
            assert mine is None or unlike(mine, theirs) == ""  # type: ignore[arg-type]
        json.dumps(vars(found.spent), allow_nan=False)
        assert found.spent.bytes_up == len(found.up.encode())
        believed(here, task, replies, place, found)
    return outcome


def believed(here: Scene, task: Task, replies: list[Reply], place: int, found: Reply) -> None:
    """The round with a message that was admitted is like one without: in kind, and the model is not far away."""
    done, server = after(here, task, [*replies[:place], found, *replies[place + 1 :]])
    if found.client in done.rejected:  # by the guard, now that the others are there: it leaves no trace
        _, without = here.fair(task, replies, place)
        assert server.encode() == without.encode()
        return
    fair, honest = here.fair(task, replies)
    assert unlike(server, honest) == ""
    assert unlike(done.up, fair.up) == ""
    assert all(math.isfinite(value) for value in done.cohort.notes.values())
    guard = Guard(Starts(type(found.up), task.down), task.down, task.uploads.guard)
    allowed = max(1000 * median_low(done.lengths or [0.0]), 3 * max(guard._sent, default=0.0))
    for spec, value in server.items():
        if spec.axes in (("d",), ("body",)) and spec.name in ("x", "body"):
            moved = float((value - getattr(here.before.server, spec.name)).double().norm())
            assert moved <= REACH * allowed, f"{spec.name} moved by {moved:.3g}, the guard allows {allowed:.3g}"


REACH = 10.0  # lengths of the longest update that the server itself may make of it


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_share_of_all_messages(row: Row) -> None:
    outcome = assault(row.name, FEW // len(ROWS), seed=1)
    assert outcome["rejected"] > outcome["admitted"]


@pytest.mark.faults
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_all_messages(row: Row) -> None:
    number = -(-ALL // len(ROWS))
    assert assault(row.name, number, seed=2).total() == number


CORPUS = json.loads(Path(__file__).with_name("corpus.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: f"{entry['method']}, {entry['reason'][:40]}")
def test_messages_that_once_were_telling_are_still_rejected_for_their_reason(entry: dict[str, str]) -> None:
    """One of every kind that a storm has found, as the bytes that came."""
    here, method = problem.federation(), create(entry["method"])
    loop = Loop(here, method, Serial(here), 3)
    cohort = loop._cohort(1)
    task = Task(method, method.broadcast(loop.start().server, cohort), cohort)
    client = int(cohort.ids[1])
    found = Door(loop.runtime.expecting(task)).admit(client, base64.b64decode(entry["message"]))
    assert isinstance(found, Rejected)
    assert found.client == client
    assert found.reason.startswith(entry["reason"])
