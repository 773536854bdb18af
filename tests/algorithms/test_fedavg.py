"""FedAvg: what it is when there is one client, one step, or no difference between the clients."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from worked import batches, play, quadratics, small, toy, trajectory


def test_one_client_is_plain_sgd_bit_for_bit() -> None:
    here = small(5, sizes=(19,), momentum=0.9)
    module = copy.deepcopy(here.module)
    for t in (1, 2, 3):
        sgd = torch.optim.SGD(module.parameters(), lr=0.2, momentum=0.9)
        for rows in batches(here, 0, t):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(module(here.x[rows]), here.y[rows]).backward()
            sgd.step()
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    assert torch.equal(play(here, "fedavg", 3)[-1].snapshot.server.x, expected)


def test_one_full_batch_step_is_centralised_gradient_descent() -> None:
    here = small(steps=1, batch_size=0)
    fed, central = (np.array(trajectory(here, name, 4)) for name in ("fedavg", "central"))
    np.testing.assert_allclose(fed, central, rtol=0, atol=1e-14)


def test_identical_clients_are_one_client() -> None:
    one = quadratics([[2]], [[1]], [1], [5.0], toy().training)
    three = quadratics([[2]] * 3, [[1]] * 3, [1, 2, 3], [5.0], toy().training)
    np.testing.assert_allclose(trajectory(three, "fedavg", 5), trajectory(one, "fedavg", 5), rtol=1e-15)


def test_means_are_over_the_participants_by_their_samples() -> None:
    here = quadratics([[1]] * 3, [[1], [2], [3]], [1, 2, 5], [0.0], toy(steps=1).training)
    for result in play(here, "fedavg", 1, participate=2):
        ids, n = result.cohort.ids, np.array([1, 2, 5])
        expected = 0.1 * float(np.average(ids + 1, weights=n[ids]))
        assert result.snapshot.server.x.item() == pytest.approx(expected, abs=1e-15)


def test_the_server_rate_scales_the_step() -> None:
    slow, fast = (np.array(trajectory(toy(), "fedavg", 1, server_lr=rate))[0] for rate in (0.5, 1.0))
    np.testing.assert_allclose(slow, fast / 2, rtol=1e-15)
