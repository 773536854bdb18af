"""FedTR: drift rules, centroids, and the private classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from test_variates import slope

import undrift
from recording import average, recorded, states
from undrift.algorithms import create
from undrift.algorithms.fedtr import Client
from undrift.algorithms.parts.centroids import distance
from undrift.core.figure import Figure
from undrift.core.states import Kept
from worked import play, quadratics, small, toy, trajectory

MOMENTUM: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.01, "lr": 0.05}


def test_without_both_terms_it_is_fedavg_bit_for_bit() -> None:
    mine = trajectory(small(5, **MOMENTUM), "fedtr", 5, participate=3, alpha=0, lam_r=0)
    assert mine == trajectory(small(5, **MOMENTUM), "fedavg", 5, participate=3)


def test_without_centroids_and_drift_it_is_fedprox_bit_for_bit() -> None:
    mine = trajectory(small(5, **MOMENTUM), "fedtr", 5, participate=3, alpha=0.6, lam_r=0, eta_d=0)
    assert mine == trajectory(small(5, **MOMENTUM), "fedprox", 5, participate=3, mu=0.6)


def test_closed_form_for_a_constant_gradient() -> None:
    here = slope(1.3, 0.7, lr=0.05, steps=7)
    nothing = torch.empty(0, dtype=torch.float64)
    drifted = Kept(Client(torch.tensor([0.4], dtype=torch.float64), nothing, nothing))
    for order, moved in (("after", -0.1496284169819832), ("together", -0.16833340808806407)):
        (result,) = play(here, "fedtr", 1, keep={0: drifted}, alpha=2, eta_d=0.03, lam_r=0, order=order)
        assert result.snapshot.server.x.item() - 0.7 == pytest.approx(moved, abs=1e-14)
    q = (1 - 2 * 0.03) * (1 - 2 * 0.05)
    closed = q**7 * 0.4 - (1 - 2 * 0.03) * 0.05 * 1.3 * (1 - q**7) / (1 - q)
    assert closed == pytest.approx(-0.1496284169819832, abs=1e-14)


@pytest.mark.parametrize(
    ("steps", "moved"), [(1, -0.08), (2, -0.123), (5, -0.156), (10, -0.133), (50, -0.0182), (200, -1.03e-5)]
)
def test_the_better_clients_train_the_less_the_global_model_moves(steps: int, moved: float) -> None:
    here = quadratics([[1]], [[0]], [1], [1.0], toy(steps=steps).training)
    ((w,),) = trajectory(here, "fedtr", 1, alpha=2, eta_d=0.1, lam_r=0)
    assert w - 1 == pytest.approx(moved, rel=6e-3)


def test_the_descent_rule_freezes_the_global_model_and_the_dual_rule_does_not() -> None:
    made = np.random.default_rng(1)
    a, c = made.uniform(0.5, 2, (4, 3)), made.normal(size=(4, 3))
    here = quadratics(a.tolist(), c.tolist(), [1] * 4, [0.0] * 3, toy(lr=0.3, steps=60).training)
    optimum = (a * c).sum(0) / a.sum(0)
    start, average_, descent, dual = (
        np.linalg.norm(w - optimum)
        for w in (
            np.zeros(3),
            trajectory(here, "fedavg", 10)[-1],
            trajectory(here, "fedtr", 10, alpha=1, eta_d=0.3, lam_r=0)[-1],
            trajectory(here, "fedtr", 10, alpha=1, drift="dual", lam_r=0)[-1],
        )
    )
    assert descent == pytest.approx(start, abs=1e-3)
    assert dual < 0.2 * average_ < start


def test_a_strongly_convex_client_sends_the_model_it_got() -> None:
    here = quadratics([[1]], [[0]], [1], [1.0], toy(steps=2000).training)
    ((w,),) = trajectory(here, "fedtr", 1, alpha=2, eta_d=0.1, lam_r=0)
    assert abs(w - 1) < 1e-8


def test_the_dual_rule_is_feddyn() -> None:
    settings: dict[str, Any] = {"weights": "uniform", "alpha": 0.4}
    mine = np.array(trajectory(small(5), "fedtr", 6, participate=2, drift="dual", lam_r=0, **settings))
    np.testing.assert_allclose(mine, trajectory(small(5), "feddyn", 6, participate=2, **settings), rtol=0, atol=1e-13)


@pytest.mark.parametrize("share", ["all", "extractor"])
def test_the_server_knows_the_mean_drift_of_the_dual_rule(share: str) -> None:
    here = small(5)
    server, kept = states(here, "fedtr", 6, participate=2, drift="dual", share=share)
    torch.testing.assert_close(server.d, average(here, kept, "d", "samples"), rtol=0, atol=1e-14)


# --- centroids --------------------------------------------------------------------------------------------------------


def test_centroids_of_equal_extractors_are_those_of_the_pooled_data() -> None:
    here = small(5, lr=1e-300)  # nobody moves
    server, _ = states(here, "fedtr", 1)
    rows = torch.from_numpy(here.indices)
    z = here.module[:2](here.x[rows]).detach()
    pooled = torch.stack([z[here.y[rows] == j].mean(0) for j in range(3)])
    torch.testing.assert_close(server.cen, pooled, rtol=1e-13, atol=0)


def test_the_first_round_has_no_centroids() -> None:
    assert trajectory(small(5, **MOMENTUM), "fedtr", 1) == trajectory(small(5, **MOMENTUM), "fedtr", 1, lam_r=0)


def test_a_client_without_classes_that_have_centroids_is_not_drawn_anywhere() -> None:
    here = small(5)
    y = np.repeat([0, 1, 1, 2, 1], here.population.samples)
    here.y[: len(y)] = torch.from_numpy(y)
    played = [recorded(here, "fedtr", 2, participate=2, lam_r=lam)[1] for lam in (1.0, 0.0)]
    seen = {int(y[here.offsets[r.client]]) for r in played[0][0][1]}
    for mine, other in zip(played[0][1][1], played[1][1][1], strict=True):
        known = int(y[here.offsets[mine.client]]) in seen
        assert torch.equal(mine.up.x, other.up.x) != known


def test_an_absent_class_keeps_its_centroid() -> None:
    here = small(5)
    here.y[:53] = torch.from_numpy(np.repeat([0, 1, 1, 2, 1], here.population.samples))
    _, seen = recorded(here, "fedtr", 6, participate=2)
    servers = [task.down for task, _ in seen]
    checked = 0
    for before, (_, replies), after in zip(servers, seen, servers[1:], strict=False):
        for j in range(3):
            if sum(reply.up.n[j].item() for reply in replies) == 0:
                assert torch.equal(after.cen[j].nan_to_num(7), before.cen[j].nan_to_num(7))
                checked += 1
    assert checked


@pytest.mark.parametrize(("reduction", "factor"), [("mse", 1 / (4 * 5)), ("mean", 1 / 4), ("sum", 1.0)])
def test_the_gradient_towards_a_centroid(reduction: str, factor: float) -> None:
    here = small(5)
    b = here.trainer().local(3, 1, here.rows(3)).batch(1, 0)
    cen = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 5)))
    cen[int(b.y[0])] = float("nan")  # a class without a centroid draws nobody
    z = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 5))).requires_grad_()
    distance(z, cen, b, reduction).backward()
    assert not b.y.eq(b.y[0]).all()
    torch.testing.assert_close(z.grad, (2 * (z.detach() - cen[b.y]) * factor).nan_to_num(0), rtol=1e-12, atol=0)


# --- a private classifier ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", ["descent", "dual"])
def test_a_private_classifier_never_leaves_the_client(drift: str) -> None:
    here = small(5)
    played, seen = recorded(here, "fedtr", 3, participate=3, share="extractor", drift=drift)
    body, method = here.layout.extent("body"), create("fedtr", share="extractor", drift=drift)
    for task, replies in seen:
        assert task.down.x.shape == (body,)
        assert all(reply.up.x.shape == (body,) for reply in replies)
    assert method.models(played[-1].snapshot.server) == {}
    client = int(played[-1].cohort.ids[0])
    state = played[-1].kept[client].state
    w = method.personal(method.broadcast(played[-1].snapshot.server, played[-1].cohort), state, here.layout)
    assert torch.equal(here.layout.split(w, "head"), state.head)
    assert torch.equal(here.layout.split(w, "body"), played[-1].snapshot.server.x)


def test_a_private_classifier_is_tied_to_nothing() -> None:
    """With a strong tie the extractor stays, and the classifier trains on."""
    here = small(5, lr=1e-3, steps=200)
    _, kept = states(here, "fedtr", 1, share="extractor", alpha=900, eta_d=0, lam_r=0)
    start = here.layout.split(here.start()[0], "head")
    assert all((state.head - start).norm() > 0.05 for state in kept.values())


def test_the_clients_models_are_the_output_where_they_are_asked_for() -> None:
    """They are kept and evaluated on the clients' own data; to look at them changes nothing."""
    asked = {"clients": 5, "participate": 3, "rounds": 3, "seed": 2}
    plain, kept = (undrift.run(create("fedtr", output=output), **asked).history for output in ("global", "clients"))
    assert plain.curve() == kept.curve()
    mine = Figure("personal", "own test (mean)")
    assert mine not in plain.figures
    assert len(kept.curve(mine)[1]) == 3
    alone = {"clients": 1, "rounds": 1, "seed": 2, "partition": "iid"}
    (_, free) = undrift.run(create("fedtr", output="clients", alpha=0, lam_r=0), **alone).history.curve(mine)
    assert free == undrift.run("fedavg", **alone).history.curve()[1]  # one free client: its model is the mean
