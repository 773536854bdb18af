"""Uploads are added in cohort order as they come: what arrives when never shows, and nothing is kept for longer."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance.problem import federation
from undrift.algorithms import create
from undrift.core.algorithm import Broadcast, Displaced, Trained
from undrift.core.drift import Drift
from undrift.core.loop import Loop
from undrift.core.records import Each, Mean, Message, Move, Point, Sum, Upload, Vector
from undrift.core.reduce import Block, Reduction, Reply, weighted_mean
from undrift.core.runtime import Exchanged, Task, settle
from undrift.core.states import Memory, States
from undrift.core.update import Starts
from undrift.runtimes.serial import Serial


class Three(Upload):
    mean: Mean[Vector]
    sum: Sum[Vector]
    each: Each[Vector]


def draw(count: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(count, 5)))


def test_fields_are_reduced_as_they_say() -> None:
    rows, weights = draw(3), [2.0, 5.0, 3.0]
    reduction = Reduction(Three)
    for row, weight in zip(rows, weights, strict=True):
        reduction.add(Three(row, row, row), weight)
    up = reduction.result()
    expected = np.average(rows.numpy(), axis=0, weights=weights)
    np.testing.assert_allclose(up.mean, expected, rtol=1e-14)
    np.testing.assert_allclose(up.sum, rows.numpy().sum(0), rtol=1e-14)
    assert torch.equal(up.each, rows)
    assert torch.equal(weighted_mean(list(rows), weights), up.mean)


@pytest.mark.parametrize("weight", [1.0, 3.0, 49.0, 600.0])
def test_the_mean_of_one_upload_is_the_upload(weight: float) -> None:
    row = draw(1)[0]
    reduction = Reduction(Trained)
    reduction.add(Trained(row), weight)
    assert torch.equal(reduction.result().x, row)


def task() -> tuple[Task, list[Reply]]:
    job = federation()
    loop = Loop(job, create("scaffold"), Serial(job), 4)
    cohort = loop._cohort(1)
    asked = Task(loop.method, loop.method.broadcast(loop.start().server, cohort), cohort)
    return asked, list(Serial(job).replies(asked))


def settled(asked: Task, replies: Iterable[Reply | Block], states: States | None = None) -> Exchanged:
    return settle(asked, replies, Memory() if states is None else states)


def test_every_order_of_arrival_gives_the_same_bits() -> None:
    asked, replies = task()
    expected = settled(asked, replies)
    assert len(replies) == 4
    for order in permutations(replies):
        found = settled(asked, order)
        assert torch.equal(found.up.dy, expected.up.dy)
        assert found.cohort.ids.tolist() == expected.cohort.ids.tolist() == asked.cohort.ids.tolist()
        assert found.drift == expected.drift


def test_uploads_are_forgotten_once_those_before_them_are_there() -> None:
    asked, replies = task()
    alive = [weakref.ref(reply.up) for reply in replies]
    seen: list[list[bool]] = []

    def arriving() -> Iterator[Reply]:
        for place in (1, 0, 3, 2):  # the second waits for the first, the fourth for the third
            reply: Any = replies[place]
            replies[place] = None  # type: ignore[call-overload]
            yield reply
            del reply
            seen.append([ref() is not None for ref in alive])

    settled(asked, arriving())
    assert [sum(now) for now in seen] == [4, 3, 2, 1]  # the one that came last is still in hand
    assert not any(ref() for ref in alive)


def test_a_client_that_answers_twice_counts_once() -> None:
    asked, replies = task()
    assert torch.equal(settled(asked, [replies[0], *replies, replies[3]]).up.dy, settled(asked, replies).up.dy)


@pytest.mark.parametrize("as_model", [True, False], ids=["models", "displacements"])
def test_drift_is_what_its_definition_says(as_model: bool) -> None:
    rows, start = draw(6).numpy(), draw(1, seed=1)[0].numpy()
    down = Broadcast(torch.from_numpy(start))
    found = Drift(Starts(Trained if as_model else Displaced, down))
    for place, row in enumerate(rows):
        found.add(Trained(torch.from_numpy(start + row)) if as_model else Displaced(torch.from_numpy(row)), place)
    mean = rows.mean(0)
    lengths = np.linalg.norm(rows, axis=1)
    assert found.figures() == pytest.approx(
        {
            "cosine": np.mean([row @ mean / np.linalg.norm(row) / np.linalg.norm(mean) for row in rows]),
            "distance": np.sqrt(np.mean([np.sum((row - mean) ** 2) for row in rows])),
            "amp": lengths.mean() / np.linalg.norm(mean),
        },
        rel=1e-12,
    )


class Shaped(Upload):
    table: Mean[Move[Tensor]]


@pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
def test_updates_of_any_shape_have_a_drift_one_by_one_and_by_the_block(shape: tuple[int, ...]) -> None:
    rows = torch.from_numpy(np.random.default_rng(2).normal(size=(4, *shape)))
    single, whole = (Drift(Starts(Shaped, Broadcast(torch.zeros(5)))) for _ in range(2))
    for place, row in enumerate(rows):
        single.add(Shaped(row), place)
    whole.add_rows(Shaped(rows), 0)
    flat = rows.reshape(4, -1).numpy()
    spread = np.sqrt(np.mean(np.sum((flat - flat.mean(0)) ** 2, axis=1)))
    assert single.figures()["distance"] == pytest.approx(spread, rel=1e-12)
    assert whole.figures() == pytest.approx(single.figures(), rel=1e-12)


class Own(Upload):
    x: Each[Point[Vector]]


class OwnStarts(Message):
    x: Each[Vector]


def test_where_every_client_begins_elsewhere_its_update_is_counted_from_there() -> None:
    rows, starts = draw(6), draw(6, seed=1)
    usual = Drift(Starts(Displaced, Broadcast(starts[0])))
    single, whole = (Drift(Starts(Own, OwnStarts(starts))) for _ in range(2))
    for place in (0, 1, 3, 4, 5):  # the upload at place 2 was rejected
        usual.add(Displaced(rows[place]), place)
        single.add(Own(starts[place] + rows[place]), place)
    whole.add_rows(Own(starts[:2] + rows[:2]), 0)
    whole.add_rows(Own(starts[3:] + rows[3:]), 3)
    assert len(usual.figures()) == 3
    assert single.figures() == pytest.approx(usual.figures(), rel=1e-11)
    assert whole.figures() == pytest.approx(usual.figures(), rel=1e-11)


def test_updates_that_are_zero_have_no_drift() -> None:
    found = Drift(Starts(Displaced, Broadcast(torch.zeros(5))))
    for place in range(2):
        found.add(Displaced(torch.zeros(5)), place)
    assert found.figures() == {"cosine": 0.0, "distance": 0.0, "amp": 0.0}


def block(replies: list[Reply]) -> Block:
    """Replies as one block."""

    def stacked(records: list[Any]) -> Any:
        columns = ((f.name, [getattr(r, f.name) for r in records]) for f, _ in records[0].items())
        return type(records[0])(**{name: torch.stack(rows) for name, rows in columns})

    return Block(
        clients=np.array([r.client for r in replies]),
        round=1,
        up=stacked([r.up for r in replies]),
        state=stacked([r.state for r in replies]),
        samples=np.array([r.samples for r in replies]),
        steps=np.array([r.steps for r in replies]),
        spent=[r.spent for r in replies],
        notes={"place": [float(i) for i, _ in enumerate(replies)]},
    )


def test_blocks_in_cohort_order_are_added_as_they_are() -> None:
    asked, replies = task()
    keeps = Memory(), Memory(), Memory()
    expected = settled(asked, replies, keeps[0])
    there = settled(asked, [block(replies[:3]), block(replies[3:])], keeps[1])
    back = settled(asked, [block(replies[3:]), block(replies[:3])], keeps[2])
    for states in keeps:
        states.commit(asked.cohort.ids.tolist(), 1)
    for found, states in ((there, keeps[1]), (back, keeps[2])):
        torch.testing.assert_close(found.up.dy, expected.up.dy)
        assert torch.equal(found.up.dy, there.up.dy)
        assert found.drift == pytest.approx(expected.drift, rel=1e-5)
        assert found.cohort.ids.tolist() == expected.cohort.ids.tolist()
        assert found.cohort.steps.tolist() == expected.cohort.steps.tolist()
        assert [s.bytes_down for s in found.cohort.cost] == [s.bytes_down for s in expected.cohort.cost]
        assert found.cohort.notes == {"place": 0.75}  # of 0, 1, 2 and 0
        assert set(states.kept) == set(asked.cohort.ids.tolist())
        for client, kept in keeps[0].kept.items():
            mine = states.kept[client].state.c
            assert torch.equal(mine, kept.state.c)
            assert mine.untyped_storage().nbytes() == mine.nbytes  # and not all of the block


def test_of_a_block_with_one_bad_row_the_others_count() -> None:
    asked, replies = task()
    bad = block(replies)
    bad.up.dy[2] = float("nan")
    states = Memory()
    found = settled(asked, [bad], states)
    states.commit(asked.cohort.ids.tolist(), 1)
    client = int(asked.cohort.ids[2])
    assert found.rejected == {client: "dy is not finite"}
    assert set(states.kept) == set(asked.cohort.ids.tolist()) - {client}
    expected = settled(asked, [r for r in replies if r.client != client])
    torch.testing.assert_close(found.up.dy, expected.up.dy)
