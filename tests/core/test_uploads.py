"""Every upload is checked before it counts: a bad one is rejected by name and the round goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from undrift.algorithms import create
from undrift.core.federation import Federation
from undrift.core.loop import Loop
from undrift.core.reduce import Reply
from undrift.core.runtime import Task
from undrift.runtimes.serial import Serial
from worked import quad1

Change = Callable[[Reply], Reply]


def changed(field: str, value: Any) -> Change:
    return lambda reply: replace(reply, **{field: value})


def upload(value: torch.Tensor) -> Change:
    return lambda reply: replace(reply, up=type(reply.up)(value))


BAD = {
    "is not finite": upload(torch.tensor([1.0, torch.nan], dtype=torch.float64)),
    "has shape (3,), not (2,)": upload(torch.zeros(3, dtype=torch.float64)),
    "belongs to round 7, not 1": changed("round", 7),
    "claims 1000000 samples, and 3 are registered": changed("samples", 1_000_000),
    "claims 0 samples": changed("samples", 0),
    "is a dict, not a Trained": changed("up", {"x": torch.zeros(2)}),
    "was not asked": changed("client", 17),
}


class Tampered(Serial):
    """Client 1's reply is changed on its way."""

    def __init__(self, federation: Federation, change: Change, clients: tuple[int, ...] = (1,)) -> None:
        super().__init__(federation)
        self.change, self.clients = change, clients

    def replies(self, task: Task) -> Iterator[Reply]:
        for reply in super().replies(task):
            yield self.change(reply) if reply.client in self.clients else reply


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_upload_is_rejected_and_the_round_goes_on_with_the_others(reason: str) -> None:
    fed = quad1()
    loop = Loop(fed, create("fedavg"), Tampered(fed, BAD[reason]), 2)
    played = loop.play(loop.start())
    assert len(played.rejected) == 1
    assert reason in next(iter(played.rejected.values()))
    alone = Loop(fed, create("fedavg"), Serial(fed), 2)
    kept = alone.runtime.replies(Task(alone.method, alone.method.broadcast(alone.start().server, None), _one(alone)))  # type: ignore[arg-type]
    assert torch.equal(played.snapshot.server.x, next(iter(kept)).up.x)
    assert played.cohort.ids.tolist() == [0]


def test_a_round_with_no_upload_left_is_skipped() -> None:
    fed = quad1()
    loop = Loop(fed, create("fedavg"), Tampered(fed, BAD["claims 0 samples"], (0, 1)), 2)
    start = loop.start()
    played = loop.play(start)
    assert played.skipped
    assert len(played.rejected) == 2
    assert played.snapshot.round == 1
    assert torch.equal(played.snapshot.server.x, start.server.x)


def test_a_rejected_client_keeps_its_old_state() -> None:
    fed = quad1()
    loop = Loop(fed, create("scaffold"), Tampered(fed, changed("round", 9)), 2)
    played = loop.play(loop.start())
    assert loop.runtime.states.accepted(0) == 1
    assert loop.runtime.states.load(1) is None
    c = [loop.runtime.kept(loop.method, client).state.c for client in range(2)]
    # SCAFFOLD's invariant c = mean of all c_i holds with the state that was really kept
    assert torch.allclose(played.snapshot.server.c, c[0] / 2 + c[1] / 2)


def _one(loop: Loop) -> Any:
    return replace(loop._cohort(1), ids=loop._cohort(1).ids[:1])
