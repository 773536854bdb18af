"""FedDANE, Mime and MimeLite: methods that ask for gradients at the global model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recording import recorded
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.training import Training
from worked import play, quadratics, small, toy, trajectory

ONE_STEP: dict[str, Any] = {"steps": 1, "batch_size": 0}


def gradient(here: Federation, w: Any, clients: Any = None) -> Any:
    """The gradient of the mean loss of some clients' pooled data."""
    ids = range(here.population.size) if clients is None else clients
    rows = torch.cat([here.rows(i) for i in ids])
    return here.trainer().local(0, 1, rows).full_grad(w)


@pytest.mark.parametrize(("name", "settings"), [("feddane", {"mu": 0.5}), ("mime", {"beta": 0})])
def test_one_full_batch_step_is_gradient_descent(name: str, settings: dict[str, Any]) -> None:
    mine = np.array(trajectory(small(**ONE_STEP), name, 4, **settings))
    theirs = np.array(trajectory(small(**ONE_STEP), "central", 4))
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-14)


def test_feddane_is_mime_without_momentum_on_full_batches() -> None:
    training = {"batch_size": 0, "steps": 4}
    mine = np.array(trajectory(small(**training), "feddane", 5, participate=3, mu=0))
    np.testing.assert_allclose(
        mine, trajectory(small(**training), "mime", 5, participate=3, beta=0), rtol=0, atol=1e-14
    )


def test_feddane_alone_is_fedprox_bit_for_bit() -> None:
    here = small(sizes=(11,), momentum=0.5)
    assert trajectory(here, "feddane", 4, mu=0.3) == trajectory(here, "fedprox", 4, mu=0.3)


def test_feddane_with_identical_clients_is_fedprox() -> None:
    here = toy()
    here.x[1] = here.x[0] + 1
    here.x[0] = here.x[1]
    mine, theirs = (np.array(trajectory(here, name, 5, mu=0.5)) for name in ("feddane", "fedprox"))
    np.testing.assert_allclose(mine, theirs, rtol=1e-14)


def test_feddane_takes_one_gradient_of_all_data_and_no_more() -> None:
    (result,), seen = recorded(small(epochs=1), "feddane", 1)
    assert [task.kind for task, _ in seen] == ["survey", "update"]
    assert result.spent.gradients == 2 * sum(small().population.samples)


def test_mimelite_without_momentum_is_fedavg_bit_for_bit() -> None:
    assert trajectory(small(), "mimelite", 5, participate=3, beta=0) == trajectory(small(), "fedavg", 5, participate=3)


@pytest.mark.parametrize("name", ["mime", "mimelite"])
def test_one_step_is_centralised_momentum_with_the_previous_momentum(name: str) -> None:
    here, beta, eta = small(**ONE_STEP), 0.6, 0.2
    w, _ = here.start()
    m = w * 0
    for result in play(here, name, 4, beta=beta):
        c = gradient(here, w)
        w, m = w - eta * ((1 - beta) * c + beta * m), (1 - beta) * c + beta * m
        np.testing.assert_allclose(result.snapshot.server.x, w, rtol=0, atol=1e-14)
        np.testing.assert_allclose(result.snapshot.server.m, m, rtol=0, atol=1e-14)


def test_one_step_of_mime_does_not_depend_on_the_minibatch() -> None:
    """At the received model the two gradients of the batch cancel, and c is left."""
    here, beta, eta = small(steps=1, batch_size=2), 0.6, 0.2
    w, _ = here.start()
    m = w * 0
    for t, result in enumerate(play(here, "mime", 4, participate=3, beta=beta), start=1):
        c = gradient(here, w, here.population.sample(here.seed, t, 3))
        w, m = w - eta * ((1 - beta) * c + beta * m), (1 - beta) * c + beta * m
        np.testing.assert_allclose(result.snapshot.server.x, w, rtol=0, atol=1e-14)


def test_with_equal_hessians_every_client_of_mime_walks_as_one_that_has_all_data() -> None:
    a, c, p = np.array([1.0, 2.0]), np.array([[1.0, 0.0], [0.0, -1.0]]), np.array([0.25, 0.75])
    training = Training(lr=0.1, batch_size=0, steps=3)
    here = quadratics([a.tolist()] * 2, c.tolist(), [1, 3], [2.0, 1.0], training)
    w, m = np.array([2.0, 1.0]), np.zeros(2)
    _, seen = recorded(here, "mime", 4, beta=0.6)
    for task, replies in seen:
        if task.kind == "survey":
            continue
        full, x = a * (w - p @ c), w
        for _ in range(3):
            x = x - 0.1 * (0.4 * a * (x - p @ c) + 0.6 * m)
        for reply in replies:
            np.testing.assert_allclose(reply.up.x, x, rtol=0, atol=1e-14)
        w, m = x, 0.4 * full + 0.6 * m


@pytest.mark.parametrize("name", ["mime", "mimelite"])
def test_all_clients_of_a_round_get_the_momentum_of_the_round_before(name: str) -> None:
    played, seen = recorded(small(), name, 4, participate=3, beta=0.6)
    training = [task for task, _ in seen if task.kind != "survey"]
    for before, task in zip(played, training[1:], strict=False):
        assert before.snapshot.server.m.any()
        assert all(torch.equal(task.down.row(place).m, before.snapshot.server.m) for place in range(3))


def test_mimelite_takes_its_gradient_at_the_received_model() -> None:
    here = small()
    _, seen = recorded(here, "mimelite", 3, participate=2)
    for task, replies in seen:
        for reply in replies:
            expected = gradient(here, task.down.x, [reply.client])
            np.testing.assert_allclose(reply.up.c, expected, rtol=0, atol=1e-14)


def test_the_server_rate_of_mime_scales_the_step() -> None:
    start = small().start()[0].numpy()
    for name in ("mime", "mimelite"):
        (half,), (whole,) = (trajectory(small(), name, 1, server_lr=rate) for rate in (0.5, 1.0))
        np.testing.assert_allclose(np.array(half) - start, (np.array(whole) - start) / 2, rtol=0, atol=1e-15)


@pytest.mark.parametrize("name", ["mime", "mimelite", "fedadm"])
def test_local_momentum_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="does not take local momentum"):
        play(small(momentum=0.5), name, 1)
