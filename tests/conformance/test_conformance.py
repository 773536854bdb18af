"""Every method of the table, the same questions: see ``table`` for what a row says."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conformance import problem, rows_momentum, rows_regularised
from conformance.columns import COLUMNS, HELPER, Column
from conformance.table import Row
from recording import Recording
from undrift.algorithms import algorithms, create
from undrift.core.cohort import Cohort
from undrift.core.federation import Federation
from undrift.core.loop import Loop, Snapshot
from undrift.core.records import Record
from undrift.core.reduce import Reply
from undrift.core.runtime import Task
from undrift.core.states import Kept, Memory
from undrift.core.vector import Buffers
from undrift.runtimes.serial import Serial
from worked import Played, next_round, play

ROWS = [*rows_regularised.ROWS, *rows_momentum.ROWS]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "algorithms"

every_row = pytest.mark.parametrize("row", ROWS, ids=str)


@pytest.fixture(autouse=True, scope="module")
def _helper() -> Iterator[None]:
    yield
    HELPER.close()


def federation(row: Row, **training: Any) -> Federation:
    return problem.federation(**row.training | training)


def rounds_of(row: Row, count: int = 4, runtime: Any = Serial, **training: Any) -> list[Played]:
    return play(federation(row, **training), row.name, count, participate=3, runtime=runtime, **row.settings)


def models(federation: Federation, method: Any, played: list[Played], key: str) -> list[Tensor]:
    """The models that count after the last round: the global one, or everybody's personal one."""
    server = played[-1].snapshot.server
    if found := method.models(server):
        return [found[key]]
    kept: dict[int, Kept] = {}
    for result in played:
        kept |= result.kept
    start, _ = federation.start()
    fresh = method.client_init(start, federation.layout)
    down = method.broadcast(server, replace(played[-1].cohort, ids=np.arange(federation.population.size)))
    return [
        method.personal(down.row(i), kept[i].state if i in kept else fresh, federation.layout)
        for i in range(federation.population.size)
    ]


def assert_same(a: Record, b: Record, tolerance: float = 0.0) -> None:
    assert type(a) is type(b)
    for (field, mine), (_, theirs) in zip(a.tensors().items(), b.tensors().items(), strict=True):
        if tolerance and mine.is_floating_point():
            torch.testing.assert_close(
                mine, theirs, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, f=field: f"{f}: {m}"
            )
        else:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True, msg=lambda m, f=field: f"{f}: {m}")


def assert_same_runs(a: list[Played], b: list[Played], tolerance: float = 0.0) -> None:
    assert len(a) == len(b)
    for mine, theirs in zip(a, b, strict=True):
        assert_same(mine.snapshot.server, theirs.snapshot.server, tolerance)
        assert mine.kept.keys() == theirs.kept.keys()
        for client in mine.kept:
            assert_same(mine.kept[client].state, theirs.kept[client].state, tolerance)


def test_every_method_has_one_row() -> None:
    assert sorted(row.name for row in ROWS) == sorted(algorithms())


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_every_method_has_a_page(name: str) -> None:
    text = (DOCS / f"{name}.md").read_text(encoding="utf-8")
    assert "<!-- result -->" in text
    missing = [s.name for s in algorithms()[name].settings() if s.name != "weights" and f"`{s.name}`" not in text]
    assert missing == [], "hyper-parameters that the page does not explain"


@every_row
def test_the_loss_falls(row: Row) -> None:
    here, method = federation(row), create(row.name, **row.settings)
    here = here.pooled() if method.pools_data else here
    played = play(here, row.name, row.rounds, **row.settings)
    start, _ = here.start()
    found = models(here, method, played, row.model)
    whose = [None] if len(found) == 1 else range(len(found))
    before = np.mean([problem.loss(here, start, client) for client in whose])
    after = np.mean([problem.loss(here, w, client) for w, client in zip(found, whose, strict=True)])
    assert after < 0.9 * before


@every_row
def test_a_resumed_run_ends_with_the_same_bits(row: Row) -> None:
    whole = rounds_of(row)
    here, method = federation(row), create(row.name, **row.settings)
    here = here.pooled() if method.pools_data else here

    def session(snapshot: Snapshot | None, kept: dict[int, bytes], count: int) -> tuple[list[Played], dict[int, bytes]]:
        kind, runtime = method.records()["client"], Serial(here)
        runtime.states = Memory({client: Kept.decode(kind, data) for client, data in kept.items()})
        loop = Loop(here, create(row.name, **row.settings), runtime, 3)
        snapshot = snapshot or loop.start()
        played = []
        for _ in range(count):
            played.append(next_round(loop, snapshot))
            snapshot = played[-1].snapshot
        return played, kept | {c: held.encode() for result in played for c, held in result.kept.items()}

    first, kept = session(None, {}, 2)
    last = first[-1].snapshot
    server = method.records()["server"].decode(last.server.encode())
    second, _ = session(Snapshot(last.round, server, Buffers.decode(last.buffers.encode())), kept, 2)
    assert_same_runs(first + second, whole)


@every_row
def test_turned_off_it_is_what_the_specification_says(row: Row) -> None:
    if row.off is None:
        pytest.skip(row.always_on)
    training = row.training | row.off_training
    settings = row.settings | row.off
    here = problem.federation(row.off_problem, **training)
    mine = play(here, row.name, row.off_rounds, row.off_participate, **settings)
    there = problem.federation(row.off_problem, **training)
    theirs = play(there, row.equals, row.off_rounds, row.off_participate, **row.equals_settings)
    for a, b in zip(
        models(here, create(row.name, **settings), mine, row.model),
        models(there, create(row.equals, **row.equals_settings), theirs, "global"),
        strict=True,
    ):
        if row.tolerance:
            torch.testing.assert_close(a, b, rtol=row.tolerance, atol=row.tolerance)
        else:
            assert torch.equal(a, b)


def numbers(record: Record) -> int:
    """How many numbers a record holds or sends; scalars are not counted."""
    return sum(tensor.numel() for tensor in record.sent()[0].values() if tensor.ndim)


@every_row
def test_measured_cost_is_the_claimed_cost(row: Row) -> None:
    here, method = federation(row), create(row.name, **row.settings)
    here = here.pooled() if method.pools_data else here
    runtime = Recording(here)
    play(here, row.name, 2, runtime=lambda _: runtime, **row.settings)  # in the second round everybody was seen
    second = [(task, replies) for task, replies in runtime.seen if task.cohort.round == 2]
    d = here.layout.size
    for place, client in enumerate(range(here.population.size)):
        n = int(here.population.samples[client])
        down = [task.down.row(place) for task, _ in second]
        replies = [answers[place] for _, answers in second]
        own = here.training.steps_for(n) * min(n, here.training.batch_size or n)  # samples that FedAvg passes
        claimed = method.claims(here.training, here.layout, n, len(here.y[here.rows(client)].unique()))
        measured = {
            "down": sum(map(numbers, down)) - d,
            "up": sum(numbers(reply.up) for reply in replies) - d,
            "kept": numbers(replies[-1].state),
            "gradients": sum(reply.spent.gradients for reply in replies) - own,
            "forwards": sum(reply.spent.forwards for reply in replies),
            "head_gradients": sum(reply.spent.head_gradients for reply in replies),
        }
        assert measured == {key: claimed[key] for key in measured}
        assert [reply.spent.bytes_down for reply in replies] == [len(message.encode()) for message in down]
        assert [reply.spent.bytes_up for reply in replies] == [len(reply.up.encode()) for reply in replies]


class Losing(Serial):
    """One client works, and its upload is lost, in every exchange."""

    lost = 3

    def replies(self, task: Task) -> Iterator[Reply]:
        for reply in super().replies(task):
            if reply.client != self.lost:
                yield reply


class Chosen(Loop):
    """A loop with a chosen cohort."""

    chosen: tuple[int, ...]

    def _cohort(self, t: int, ids: Any = None) -> Cohort:
        return super()._cohort(t, np.array(self.chosen) if ids is None else ids)


@every_row
def test_a_lost_upload_is_as_if_the_client_was_not_asked(row: Row) -> None:
    method = create(row.name, **row.settings)
    if method.pools_data:
        pytest.skip("it has one client")
    first = federation(row)
    started = play(first, row.name, 2, **row.settings)[-1]  # so that everybody keeps something
    results = []
    for runtime, cohort in ((Losing, (1, 3, 4)), (Serial, (1, 4))):
        here = federation(row)
        loop = Chosen(here, create(row.name, **row.settings), runtime(here), 3)
        loop.runtime.states, loop.chosen = Memory(started.kept), cohort
        result = next_round(loop, started.snapshot)
        assert set(result.kept) == {1, 4}
        states = loop.runtime.states
        assert states.load(3) is started.kept[3]
        loop.runtime, loop.chosen = Serial(here), (1, 3, 4)  # and the run goes on with all of them
        loop.runtime.states = states
        results.append([result, next_round(loop, result.snapshot)])
    if row.broadcast_depends_on_cohort:
        return
    assert_same_runs(results[0], results[1])


class Backwards(Serial):
    """Replies arrive in the opposite order."""

    def replies(self, task: Task) -> Iterator[Reply]:
        yield from reversed(list(super().replies(task)))


@every_row
def test_the_order_of_arrival_changes_nothing(row: Row) -> None:
    assert_same_runs(rounds_of(row, runtime=Backwards), rounds_of(row))


@every_row
@pytest.mark.parametrize("column", COLUMNS, ids=str)
def test_every_runtime_agrees_with_the_serial_one(row: Row, column: Column) -> None:
    made = []

    def make(here: Federation) -> Any:
        made.append(column.make(here))
        return made[-1]

    try:
        there = rounds_of(row, column.rounds, make)
    finally:
        for runtime in made:
            runtime.close()
    here = rounds_of(row, column.rounds)
    assert_same_runs(there, here, column.tolerance)
    for mine, theirs in zip(here, there, strict=True):
        assert replace(mine.spent, seconds=0.0) == replace(theirs.spent, seconds=0.0)


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_client_updates_are_pure(name: str) -> None:
    """What a client computes must also be computable for many clients in one tensor program."""
    source = Path(inspect.getsourcefile(algorithms()[name]) or "").read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in ("super", "deepcopy", "copy.deepcopy"), ast.unparse(node)
        if isinstance(node, ast.FunctionDef) and node.name in ("client_update", "survey"):
            for call in (n for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)):
                method = call.func.attr  # type: ignore[attr-defined]
                assert method not in ("item", "to", "backward", "tolist", "numpy"), ast.unparse(call)
                assert not (method.endswith("_") and not method.endswith("__")), ast.unparse(call)
