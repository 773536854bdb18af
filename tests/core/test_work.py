"""Evaluation is a third kind of work: done where the client is, from what it receives and what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from undrift.algorithms import create
from undrift.core.admit import Door
from undrift.core.client import Judged
from undrift.core.eager import Trainer
from undrift.core.federation import Federation, Holding, Registered, Rows
from undrift.core.loop import Loop
from undrift.core.reduce import Reply
from undrift.core.runtime import Runtime, Task
from undrift.core.states import Memory
from undrift.core.vector import Replica
from undrift.core.wire import Request, answer, encode_reply
from undrift.experiment.evaluate import Evaluator
from undrift.runtimes.batched import Batched
from undrift.runtimes.processes import Processes
from undrift.runtimes.serial import Serial
from undrift.runtimes.threads import Threads
from worked import SMALL, small


def with_test(**training: object) -> Federation:
    """The uneven clients, each with some test rows; the last has none."""
    here, made = small(5, **training), np.random.default_rng(3)
    counts = [4, 3, 6, 2, 0]
    test = Rows(
        torch.from_numpy(made.normal(size=(15, 4))),
        torch.from_numpy(made.integers(0, 3, 15)),
        made.permutation(15),
        np.concatenate([[0], np.cumsum(counts)]),
    )
    return replace(here, test=test)


MAKE: dict[str, Callable[[Federation], Runtime]] = {
    "serial": Serial,
    "threads": lambda f: Threads(f, 2),
    "processes": lambda f: Processes(f, 2),
    "batched": Batched,
}


@pytest.mark.parametrize("name", ["local", "fedrep", "fedproto", "pfedmo", "fedtr"])
@pytest.mark.parametrize("runtime", MAKE)
def test_personal_models_are_judged_where_the_clients_are(name: str, runtime: str) -> None:
    here = with_test()
    method = create(name, **({"share": "extractor"} if name == "fedtr" else {}))
    with MAKE[runtime](here) as made:
        loop = Loop(here, method, made, 3)
        snapshot = loop.play(loop.play(loop.start()).snapshot).snapshot
        assert loop.personalises(snapshot)
        told = loop.judge(snapshot, [0, 2, 3, 4])
        down = method.broadcast(snapshot.server, told.cohort)
        replica = Replica(here.module, here.layout)
        replica.module.eval()
        for place, client in enumerate([0, 2, 3, 4]):
            w = method.personal(down.row(place), made.kept(method, client).state, here.layout)
            replica.flat.copy_(w)  # type: ignore[arg-type]
            rows = here.test.at(client)  # type: ignore[union-attr]
            with torch.no_grad():
                outputs = replica.module(here.test.x[rows])  # type: ignore[union-attr]
            right = (outputs.argmax(1) == here.test.y[rows]).sum()  # type: ignore[union-attr]
            assert (int(told.up.right[place]), int(told.up.count[place])) == (int(right), len(rows))
    assert [spent.gradients for spent in told.cohort.cost] == [0, 0, 0, 0]
    assert all(spent.bytes_down == down.row(0).nbytes() for spent in told.cohort.cost)


def test_judging_changes_nothing_and_is_no_part_of_the_costs_of_training() -> None:
    here = with_test()
    judged, plain = (Loop(here, create("fedrep"), Serial(here), 3) for _ in range(2))
    evaluator = Evaluator(here, 3)
    a, b = judged.start(), plain.start()
    for _ in range(3):
        first, second = judged.play(a), plain.play(b)
        a, b = first.snapshot, second.snapshot
        found = evaluator(judged, a)
        assert found.spent.bytes_down > 0
        assert found.spent.bytes_up > 0
        assert replace(first.spent, seconds=0.0) == replace(second.spent, seconds=0.0)
        assert torch.equal(a.server.body, b.server.body)


class Sites(Runtime):
    """One site per client, each with its own rows and states; only bytes pass."""

    name = "sites"
    elsewhere = True

    def __init__(self, here: Federation) -> None:
        super().__init__(here)
        self.sites = {}
        for client in range(here.population.size):
            rows, own = here.rows(client), here.test.at(client)  # type: ignore[union-attr]
            held = Holding.of(client, here.x[rows], here.y[rows], here.test.x[own], here.test.y[own])  # type: ignore
            self.sites[client] = (Trainer(here, held), Memory())

    def replies(self, task: Task):  # type: ignore[no-untyped-def]
        for place, client in enumerate(task.cohort.ids.tolist()):
            trainer, states = self.sites[client]
            sent = Request(task.kind, client, task.cohort.round, task.down.row(place), self.states.accepted(client))
            request = Request.decode(task.method, sent.encode())
            reply: Reply = answer(request, task.method, trainer, states, self.federation.fresh(task.method))
            yield Door(self.expecting(task)).admit(client, encode_reply(task.method, reply))


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "fedproto"])
def test_a_coordinator_without_any_data_gets_the_same_rounds_and_figures(name: str) -> None:
    here = with_test()
    whole = Loop(here, create(name), Serial(here), 3)
    coordinator = Registered(
        module=here.module,
        loss=here.loss,
        training=here.training,
        sample=torch.zeros(1, 4).double(),
        seed=here.seed,
        samples=np.array(SMALL),
    )
    apart = Loop(coordinator, create(name), Sites(here), 3)
    a, b = whole.start(), apart.start()
    for _ in range(3):
        a, b = whole.play(a).snapshot, apart.play(b).snapshot
        assert a.server.encode() == b.server.encode()
    mine, theirs = Evaluator(here, 3)(whole, a), Evaluator(coordinator, 3)(apart, b)
    assert theirs.clients == mine.clients
    own = [(figure, value) for figure, value in mine.metrics if figure.data != "test"]
    assert theirs.metrics == own
    assert theirs.spent.bytes_down > 0


def test_what_goes_up_is_three_numbers() -> None:
    assert [field.name for field in Judged.schema()] == ["right", "loss", "count"]
    assert all(field.axes == () for field in Judged.schema())


def test_regressions_have_a_loss_and_nothing_right() -> None:
    here = with_test()
    assert here.test is not None
    test = replace(here.test, y=torch.randn(15, 3, dtype=torch.float64))
    here = replace(here, loss=nn.functional.mse_loss, test=test, y=torch.zeros(len(here.y), 3, dtype=torch.float64))
    loop = Loop(here, create("fedavg"), Serial(here), 5)
    start = loop.start()
    told = loop.judge(start, [1], start.server.x)
    assert told.up.right.tolist() == [0.0]
    with torch.no_grad():
        expected = nn.functional.mse_loss(here.module(test.x[test.at(1)]), test.y[test.at(1)])
    assert told.up.loss.item() / told.up.count.item() == pytest.approx(float(expected), rel=1e-12)
