"""A client's work through bytes alone, with batch-norm statistics on the way."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from undrift.algorithms import algorithms, create
from undrift.core.client import Request, answer, decode_reply
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.loop import Loop
from undrift.core.runtime import Task
from undrift.core.states import Kept
from undrift.core.training import Training
from undrift.runtimes.serial import Serial


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "local"])  # `local` keeps its statistics, the others share them
def test_bytes_carry_batch_norm_statistics(name: str) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    training = Training(lr=0.1, batch_size=3, epochs=1)
    x, y = torch.randn(11, 5), torch.randint(0, 3, (11,))
    fed = Federation(module, nn.functional.cross_entropy, x, y, np.arange(11), np.array([0, 6, 11]), training, seed=2)
    method = create(name)
    loop = Loop(fed, method, Serial(fed), 2)
    start = loop.start()
    cohort = loop._cohort(1)
    down = method.broadcast(start.server, cohort)
    expected = list(Serial(fed).replies(Task(method, down, cohort, start.buffers)))[1]

    alone = Federation(module, fed.loss, x[6:], y[6:], np.arange(5), np.array([0, 5]), training, seed=2)
    request = Request(
        method=name,
        settings=method.values(),
        client=1,
        round=1,
        seed=2,
        training=training.values(),
        down=down.row(1).encode(),
        kept=loop.runtime.kept(method, 1).encode(),
        buffers=start.buffers.encode() if method.shares_buffers else b"",
    )
    again = Request.decode(request.encode())
    assert again == request
    reply = decode_reply(method, answer(request.encode(), algorithms(), alone.trainer(), alone.rows(0)))
    assert reply.up.encode() == expected.up.encode()
    assert reply.buffers is not None
    assert expected.buffers is not None
    assert reply.buffers.encode() == expected.buffers.encode()
    assert reply.state is not None
    assert Kept(reply.state).encode() == Kept(expected.state).encode()  # type: ignore[arg-type]
    assert (reply.samples, reply.steps, reply.spent.gradients) == (5, 2, 5)


def test_a_batch_of_one_sample_under_batch_norm_is_explained() -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    x, y = torch.randn(9, 5), torch.randint(0, 3, (9,))
    training = Training(batch_size=4, epochs=1)
    fed = Federation(module, nn.functional.cross_entropy, x, y, np.arange(9), np.array([0, 4, 9]), training)
    loop = Loop(fed, create("fedavg"), Serial(fed), 2)
    with pytest.raises(InvalidInput, match=r"client 1: .* a batch of one sample"):
        loop.play(loop.start())
