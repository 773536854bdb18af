"""Many clients in one tensor program: agreement with the serial runtime, padding, memory, and what is left to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance import rows_momentum, rows_regularised
from conformance.problem import federation
from conformance.table import Row
from undrift.algorithms import create
from undrift.core.algorithm import Averaging, Broadcast, Trained
from undrift.core.federation import Federation
from undrift.core.local import Local
from undrift.core.loop import Loop, Round
from undrift.core.records import Nothing
from undrift.core.runtime import Runtime
from undrift.runtimes.batched import Batched
from undrift.runtimes.batched.stack import Stack, cross_entropy_slope, slope_of
from undrift.runtimes.serial import Serial
from worked import next_round, play

ROWS = [*rows_regularised.ROWS, *rows_momentum.ROWS]


def assert_close(a: list[Round], b: list[Round], tolerance: float = 1e-5) -> None:
    """Same models up to rounding, and exactly the same counts."""
    for mine, theirs in zip(a, b, strict=True):
        for (_, x), (_, y) in zip(mine.snapshot.server.items(), theirs.snapshot.server.items(), strict=True):
            if isinstance(x, Tensor) and x.is_floating_point():
                assert float((x - y).norm()) <= tolerance * max(float(y.norm()), 1e-6)
        mine.spent.seconds = theirs.spent.seconds
        assert mine.spent == theirs.spent
        assert mine.notes == pytest.approx(theirs.notes, rel=1e-4)


def both(job: Federation, name: str, rounds: int = 5, participate: int = 5, block: int | None = None, **settings: Any):
    batched = play(job, name, rounds, participate, runtime=lambda f: Batched(f, block), **settings)
    return batched, play(job, name, rounds, participate, **settings)  # falling back would be a warning: an error here


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedtrip", "moon", "fedrep", "fedproto", "mime", "fednova"])
def test_short_batches_are_padded_and_change_nothing(name: str) -> None:
    row = next(row for row in ROWS if row.name == name)
    training = {"batch_size": 5} | row.training
    assert_close(*both(federation(**training), name, **row.settings))


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
def test_a_last_batch_left_out_is_left_out_everywhere(name: str) -> None:
    job = federation(batch_size=5, drop_last=True)
    sizes = job.population.samples
    batched, serial = both(job, name)
    assert_close(batched, serial)
    everybody = play(job, name, 1, len(sizes))[0].spent
    assert everybody.gradients == sum(job.training.epochs * max(int(n) // 5, 1) * min(int(n), 5) for n in sizes)


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_method_agrees_with_padding(row: Row) -> None:
    assert_close(*both(federation(**{"batch_size": 5} | row.training), row.name, **row.settings))


@pytest.mark.parametrize(
    "training",
    [
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"clip": 0.5},
        {"weight_decay": 0.01, "decay_mode": "inner"},
        {"weight_decay": 0.01, "decay_mode": "outer", "momentum": 0.5},
        {"weight_decay": 0.01, "steps": 4, "batch_size": 4},
        {"weight_decay": 0.01, "steps": 4, "batch_size": 4, "momentum": 0.9},
        {"steps": 7},
        {"batch_size": 0},
        {"batch_size": 100},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["fedprox", "fedavg", "local"])
def test_every_local_optimiser_agrees(name: str, training: dict[str, Any]) -> None:
    """With a model of the user's own, and with a chain, whose plain descent has a way of its own."""
    job = federation(**training)
    assert_close(*both(job, name))
    assert_close(*both(replace(job, module=chain()), name))


@pytest.mark.parametrize("block", [1, 2, 4])
def test_the_size_of_a_block_does_not_matter(block: int) -> None:
    assert_close(*both(federation(batch_size=5), "scaffold", block=block))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedtr", "fedadm", "mime"])
def test_clients_of_one_size_are_reduced_by_the_block(name: str) -> None:
    row = next(row for row in ROWS if row.name == name)
    job = federation(**row.training)
    even = replace(job, offsets=np.arange(0, 97, 8))  # twelve clients, in cohort order within every block
    assert_close(*both(even, name, participate=9, block=3, **row.settings))


def test_a_full_gradient_over_several_sweeps_agrees() -> None:
    job = federation()
    many = replace(job, indices=np.tile(job.indices, 20), offsets=np.array([0, 30, 700, 1400]))  # sweeps of 512
    assert_close(*both(many, "scaffold", rounds=2, participate=3, option="I"))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv1d(1, 2, 3), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x.unsqueeze(1))).flatten(1))


def chain() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))


@pytest.mark.parametrize("make", [Convolutional, chain], ids=["convolutional", "chain"])
def test_models_of_both_kinds_agree(make: Any) -> None:
    torch.manual_seed(0)
    job = replace(federation(), module=make())
    assert_close(*both(job, "fedprox"))


def test_chains_are_recognised_and_nothing_else_is() -> None:
    layout = replace(federation(), module=chain()).layout
    assert Stack.of(chain(), layout) is not None
    other = replace(federation(), module=Convolutional())
    assert Stack.of(other.module, other.layout) is None

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(x + torch.relu(self.a(x)))

    other = replace(federation(), module=Residual())
    assert Stack.of(other.module, other.layout) is None
    assert_close(*both(other, "fedavg"))


def test_a_single_gradient_of_a_chain_is_autograds() -> None:
    job = replace(federation(), module=chain())
    stack = Stack.of(job.module, job.layout)
    assert stack is not None
    w, _ = job.start()
    loss = job.loss(job.module(job.x[:4]), job.y[:4])
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(job.module.parameters()))])

    def total(outputs: Tensor, y: Tensor) -> Tensor:
        return job.loss(outputs.flatten(0, 1), y.flatten(0, 1))

    for slope in (slope_of(total), cross_entropy_slope(1 / 4)):
        found = stack.gradient(slope, w.unsqueeze(0), job.x[:4].unsqueeze(0), job.y[:4].unsqueeze(0))
        torch.testing.assert_close(found[0], expected)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"module": nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))}, "batch norm"),
        ({"module": nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.2), nn.Linear(8, 3))}, "dropout"),
        ({"augment": lambda x, key: x + 1}, "augmented"),
        ({"loss": lambda outputs, y: outputs.square().sum()}, "not a mean"),
    ],
    ids=["batch norm", "dropout", "augmentation", "loss"],
)
def test_what_cannot_be_batched_runs_serially_and_it_is_said_once(change: dict[str, Any], reason: str) -> None:
    job = replace(federation(), **change)
    serial = play(job, "fedavg", 3, participate=4)
    with pytest.warns(UserWarning, match=f"cannot be batched .*{reason}") as said:
        batched = play(job, "fedavg", 3, participate=4, runtime=Batched)
    assert len(said) == 1
    assert torch.equal(serial[-1].snapshot.server.x, batched[-1].snapshot.server.x)


class Whimsical(Averaging[Nothing]):
    """As many steps as a value of the model says."""

    title = "Whimsical"

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        return Trained(local.descend(local.grad, down.x, 1 + (down.x[0] > 0))), me


def test_a_method_that_cannot_be_batched_runs_serially_and_it_is_said_once() -> None:
    job = federation()

    def end(runtime: Runtime) -> Tensor:
        loop = Loop(job, Whimsical(), runtime, 4)
        snapshot = loop.play(loop.play(loop.start()).snapshot).snapshot
        found: Tensor = snapshot.server.x
        return found

    with pytest.warns(UserWarning, match="whimsical cannot be batched .*computed from values") as said:
        batched = end(Batched(job))
    assert len(said) == 1
    assert torch.equal(batched, end(Serial(job)))


def test_a_block_that_does_not_fit_halves_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    job, run = federation(), Batched._compute

    def tight(self: Batched, program: Any, task: Any, places: Any) -> Any:
        if len(places) > 2:
            torch.empty(1 << 60)  # what the allocator says when memory runs out is what is tested
        return run(self, program, task, places)

    monkeypatch.setattr(Batched, "_compute", tight)
    runtime = Batched(job, block=6)
    played = play(job, "fedavg", 2, participate=6, runtime=lambda f: runtime)
    assert runtime._block in (1, 2)
    assert_close(played, play(job, "fedavg", 2, participate=6))


def test_a_client_that_sends_nonsense_is_rejected_by_name_and_the_others_count() -> None:
    job = federation()
    x = job.x.clone()
    x[int(job.offsets[2])] = float("nan")
    job = replace(job, x=x)
    loop = Loop(job, create("scaffold"), Batched(job), 6)
    result = next_round(loop, loop.start())
    assert result.rejected == {2: "dy is not finite"}
    assert result.cohort.ids.tolist() == [0, 1, 3, 4, 5]
    assert 2 not in result.kept
