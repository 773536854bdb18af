"""What clients keep: held until the upload counts, kept from then on; a lost or rejected upload leaves the old one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from undrift.algorithms import create
from undrift.core.loop import Loop
from undrift.core.reduce import Reply
from undrift.core.runtime import Task
from undrift.core.states import Kept, Memory
from undrift.core.vector import Buffers
from undrift.runtimes.serial import Serial
from worked import small


def kept(value: float, round: int) -> Kept:
    return Kept(Buffers(torch.tensor([value]), torch.empty(0)), None, round)


def test_what_is_held_is_kept_only_for_those_whose_upload_counted_in_that_round() -> None:
    states = Memory({2: kept(0.0, 1)})
    for client, value, round in ((1, 1.0, 3), (2, 2.0, 3), (3, 3.0, 2)):
        states.hold(client, kept(value, round))
    assert [states.accepted(client) for client in (1, 2, 3)] == [0, 1, 0]
    states.commit([1, 3], 3)
    assert [states.accepted(client) for client in (1, 2, 3)] == [3, 1, 0]  # 3 held what belongs to another round
    states.drop()
    states.commit([2], 3)
    assert states.accepted(2) == 1, "what was not accepted with its round is gone"


def test_the_round_travels_with_the_bytes() -> None:
    again = Kept.decode(Buffers, kept(4.0, 7).encode())
    assert (again.round, again.state.floats.tolist()) == (7, [4.0])  # type: ignore[attr-defined]


class Broken(Serial):
    """The second exchange fails in its middle."""

    def replies(self, task: Task) -> Iterator[Reply]:
        for place, reply in enumerate(super().replies(task)):
            if task.cohort.round == 2 and place == 3:
                raise ConnectionError
            yield reply


def test_a_round_that_fails_in_its_middle_leaves_what_clients_keep() -> None:
    here = small()
    loop = Loop(here, create("scaffold"), Broken(here), 5)
    first = loop.play(loop.start()).snapshot
    before = dict(loop.runtime.states.kept)  # type: ignore[attr-defined]
    with pytest.raises(ConnectionError):
        loop.play(first)
    assert loop.runtime.states.kept == before  # type: ignore[attr-defined]
    whole = Loop(here, create("scaffold"), Serial(here), 5)
    expected = whole.play(whole.play(whole.start()).snapshot)
    loop.runtime.__class__ = Serial
    assert torch.equal(loop.play(first).snapshot.server.c, expected.snapshot.server.c)


class Away(Serial):
    """Clients keep their states themselves: what comes up is the upload alone."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.there = Memory()
        self.told: list[dict[int, int]] = []

    def replies(self, task: Task) -> Iterator[Reply]:
        ids = task.cohort.ids.tolist()
        self.told.append({client: self.states.accepted(client) for client in ids})
        here, self.states = self.states, self.there
        for client, round in self.told[-1].items():  # as a site does: commit what was accepted, drop what was not
            self.there.commit([client], round)
        found = list(super().replies(task))
        self.states = here
        for reply in found:
            assert reply.state is not None
            self.there.hold(reply.client, Kept(reply.state, None, reply.round))
            if not (reply.round == 2 and reply.client == 1):  # one upload is lost
                yield Reply(**{**vars(reply), "state": None})


def test_where_states_are_remote_the_next_task_says_which_round_counted_last() -> None:
    here = small()
    runtime = Away(here)
    loop, snapshot = Loop(here, create("fedtrip"), runtime, 5), None
    for _ in range(3):
        snapshot = loop.play(snapshot or loop.start()).snapshot
    assert runtime.told == [dict.fromkeys(range(5), 0), dict.fromkeys(range(5), 1), {0: 2, 1: 1, 2: 2, 3: 2, 4: 2}]
    assert runtime.states.load(0) is not None
    assert runtime.states.load(0).tensors() == {}, "no state came here"  # type: ignore[union-attr]
    whole = Loop(here, create("fedtrip"), Lost(here), 5)
    expected = None
    for _ in range(3):
        expected = whole.play(expected or whole.start()).snapshot
    assert snapshot is not None
    assert expected is not None
    assert torch.equal(snapshot.server.x, expected.server.x)


class Lost(Serial):
    """The same upload is lost where states are here."""

    def replies(self, task: Task) -> Iterator[Reply]:
        yield from (r for r in super().replies(task) if (r.round, r.client) != (2, 1))
