"""A client's work through bytes alone, with batch-norm statistics on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from undrift.algorithms import create
from undrift.core.admit import Door
from undrift.core.eager import Trainer
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation, Holding
from undrift.core.loop import Loop
from undrift.core.packing import pack
from undrift.core.reduce import Reply
from undrift.core.runtime import Task, expecting
from undrift.core.states import Kept, Memory
from undrift.core.training import Training
from undrift.core.wire import Request, StateLost, answer, encode_reply
from undrift.runtimes.serial import Serial
from worked import small


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "local"])  # `local` keeps its statistics, the others share them
def test_bytes_carry_batch_norm_statistics(name: str) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    training = Training(lr=0.1, batch_size=3, epochs=1)
    x, y = torch.randn(11, 5), torch.randint(0, 3, (11,))
    fed = Federation(
        module=module,
        loss=nn.functional.cross_entropy,
        x=x,
        y=y,
        indices=np.arange(11),
        offsets=np.array([0, 6, 11]),
        training=training,
        seed=2,
    )
    method = create(name)
    loop = Loop(fed, method, Serial(fed), 2)
    start = loop.start()
    cohort = loop._cohort(1)
    down = method.broadcast(start.server, cohort)
    task = Task(method, down, cohort, start.buffers)
    expected = list(Serial(fed).replies(task))[1]

    site = Trainer(fed, Holding.of(1, x[6:], y[6:]))
    request = Request("update", 1, 1, down.row(1), buffers=start.buffers if method.shares_buffers else None)
    again = Request.decode(method, request.encode())
    assert (again.kind, again.client, again.round, again.accepted) == ("update", 1, 1, 0)
    assert again.encode() == request.encode()
    states = Memory()
    sent = encode_reply(method, answer(again, method, site, states, fed.fresh(method)))
    reply = Door(expecting(task, fed.fresh(method), travels=False)).admit(1, sent)
    assert isinstance(reply, Reply), reply
    assert reply.up.encode() == expected.up.encode()
    assert reply.state is None, "what a client keeps does not travel"
    assert expected.buffers is not None
    if method.shares_buffers:
        assert reply.buffers is not None
        assert reply.buffers.encode() == expected.buffers.encode()
    assert states.load(1) is None, "held, and not kept before the server says so"
    states.commit([1], 1)
    kept, own = states.load(1), None if method.shares_buffers else expected.buffers
    assert kept is not None
    assert kept.encode() == Kept(expected.state, own, 1).encode()  # type: ignore[arg-type]
    assert (reply.samples, reply.steps, reply.spent.gradients) == (5, 2, 5)


def test_a_batch_of_one_sample_under_batch_norm_is_explained() -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    x, y = torch.randn(9, 5), torch.randint(0, 3, (9,))
    training = Training(batch_size=4, epochs=1)
    fed = Federation(
        module=module,
        loss=nn.functional.cross_entropy,
        x=x,
        y=y,
        indices=np.arange(9),
        offsets=np.array([0, 4, 9]),
        training=training,
    )
    loop = Loop(fed, create("fedavg"), Serial(fed), 2)
    with pytest.raises(InvalidInput, match=r"client 1: .* a batch of one sample"):
        loop.play(loop.start())


def test_a_site_whose_state_is_gone_says_so_and_does_not_start_afresh() -> None:
    here = small()
    method, site, states = create("scaffold"), Trainer(here, here), Memory()
    loop = Loop(here, method, Serial(here), 5)
    request = Request("update", 2, 3, method.broadcast(loop.start().server, loop._cohort(3)), accepted=2)
    with pytest.raises(StateLost, match=r"state of round 2 is not here$"):
        answer(request, method, site, states, here.fresh(method))
    states.keep({2: Kept(here.fresh(method).state, None, 1)})
    with pytest.raises(StateLost, match="state of round 2 is not here, but that of round 1"):
        answer(request, method, site, states, here.fresh(method))


def test_bytes_that_are_no_request_are_refused_with_a_sentence() -> None:
    method = create("fedavg")
    sound = Request("update", 0, 1, method.records()["down"](torch.zeros(3)))  # type: ignore[arg-type]
    for data in (b"", b"x" * 40, sound.encode()[:-1], pack({}, {"kind": "update"}), pack({}, {"kind": "obey"})):
        with pytest.raises(ValueError, match="not a valid message"):
            Request.decode(method, data)
