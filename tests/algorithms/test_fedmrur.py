"""FedMRUR: the normalised update, the Lorentzian regulariser, the scale of the momentum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import tensor

from undrift.algorithms.fedmrur import FedMRUR, Server
from undrift.core.errors import InvalidInput
from undrift.core.loop import Loop, Snapshot
from undrift.runtimes.serial import Serial
from worked import play, quad1, slopes, small, trajectory

UNEQUAL = [(4.0, 0.0), (0.0, 2.0), (-3.0, 1.0), (0.0, -1.0)]
PLAIN = {"regulariser": False, "sam": False, "momentum": False}  # d_i = lr K b_i on linear losses


def update(b: Any, **settings: Any) -> Any:
    """D for the displacements b."""
    return -np.array(trajectory(slopes(b), "fedmrur", 1, **PLAIN | settings)[0])


def test_the_update_has_the_direction_of_the_sum_and_the_mean_length() -> None:
    D = update(UNEQUAL)
    np.testing.assert_allclose(D, [1.136177182718, 2.272354365436], rtol=0, atol=1e-11)
    assert np.linalg.norm(D) == pytest.approx(2.540569415042, abs=1e-11)
    np.testing.assert_allclose(update([(3 * x, 3 * y) for x, y in UNEQUAL]), 3 * D, rtol=1e-14)
    np.testing.assert_allclose(update(UNEQUAL, server_lr=0.5), D / 2, rtol=1e-14)


def test_updates_that_agree_are_not_amplified() -> None:
    np.testing.assert_allclose(update([(3.0, 4.0)]), [3, 4], rtol=1e-15)
    np.testing.assert_allclose(update([(3.0, 4.0), (6.0, 8.0), (0.3, 0.4)]), [3.1, 12.4 / 3], rtol=1e-14)


def test_amplification_of_two_at_an_angle_and_of_orthogonal_updates() -> None:
    r, theta = 2.0, 0.9
    pair = [(r, 0.0), (r * np.cos(theta), r * np.sin(theta))]
    assert np.linalg.norm(update(pair)) == pytest.approx(r, rel=1e-14)
    assert np.linalg.norm(update(pair, normalise=False)) == pytest.approx(r * np.cos(theta / 2), rel=1e-14)
    axes = np.eye(5).tolist()
    amp = np.linalg.norm(update(axes)) / np.linalg.norm(update(axes, normalise=False))
    assert amp == pytest.approx(np.sqrt(5), rel=1e-14)


def test_updates_that_cancel_move_nothing() -> None:
    assert update([(1.0, 2.0), (-1.0, -2.0)]).tolist() == [0, 0]


def test_amplification_per_round_on_quad1() -> None:
    rounds = play(quad1(), "fedmrur", 3, gamma=0, rho=0, alpha=0.1)
    expected = [1.047028830866, 1.011021147916, 1.004883978894]
    np.testing.assert_allclose([r.drift["amp"] for r in rounds], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("z_g", "distance", "gradient"),
    [
        ((0.0, 0.0), 8.198039027186, (6 / np.sqrt(26), 8 / np.sqrt(26))),
        ((1.0, 2.0), 0.979991993594, (0.882306768492, -0.156924308678)),
    ],
)
def test_squared_lorentzian_distance(z_g: Any, distance: float, gradient: Any) -> None:
    z = tensor([[3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    value = FedMRUR().distance(z, tensor([z_g], dtype=torch.float64))
    value.backward()
    assert value.item() == pytest.approx(distance, abs=1e-11)
    np.testing.assert_allclose(z.grad, [gradient], rtol=0, atol=1e-11)


@pytest.mark.parametrize(("sigma", "penalty"), [(1e4, 1.000820140034), (10.0, 2.270054642339)])
def test_the_penalty_is_exponential(sigma: float, penalty: float) -> None:
    z, z_g = tensor([[3.0, 4.0]], dtype=torch.float64), tensor([[0.0, 0.0]], dtype=torch.float64)
    assert float((FedMRUR().distance(z, z_g) / sigma).exp()) == pytest.approx(penalty, abs=1e-11)


def test_the_distance_lies_between_zero_and_the_euclidean_one() -> None:
    z, z_g = torch.randn(2, 50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for beta in (0.1, 1.0, 10.0):
        d = FedMRUR(beta=beta).distance(z, z_g)
        assert bool(((d > 0) & (d <= (z - z_g).square().sum(1))).all())
        assert FedMRUR(beta=beta).distance(z, z).tolist() == [0] * 50


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_at_the_global_model_the_regulariser_has_no_gradient(reduction: str) -> None:
    here = small(hidden=5)
    w, _ = here.start()
    local = here.trainer().local(0, 1, here.rows(0))
    b = next(iter(local.sweep()))
    grad = FedMRUR(gamma=3.0, sigma=0.5, reduction=reduction).regularised(w, b, local)
    np.testing.assert_allclose(grad(w, b), local.grad(w, b), rtol=0, atol=1e-15)
    assert not np.allclose(grad(w + 0.1, b), local.grad(w + 0.1, b), atol=1e-3)  # and elsewhere it has one


def test_the_sum_is_the_mean_times_the_batch() -> None:
    settings = {"rho": 0.1, "alpha": 0.3, "sigma": 10.0}
    summed = trajectory(small(hidden=5, sizes=(8, 8)), "fedmrur", 2, gamma=0.1, reduction="sum", **settings)
    meant = trajectory(small(hidden=5, sizes=(8, 8)), "fedmrur", 2, gamma=0.4, reduction="mean", **settings)
    np.testing.assert_allclose(summed, meant, rtol=0, atol=1e-13)


@pytest.mark.parametrize("training", [{"lr": 0.3, "steps": 4}, {"lr": 0.3, "schedule": "exponential", "lr_decay": 0.5}])
def test_the_momentum_is_a_gradient_whatever_the_rate_and_the_steps(training: dict[str, Any]) -> None:
    b = [(1.0, 0.0), (-0.5, 2.0)]
    federation = slopes(b, **training)
    rounds = play(federation, "fedmrur", 5, regulariser=False, normalise=False, alpha=0.2, rho=0.7)
    deltas = np.array([(1 - 0.8**t) * np.mean(b, axis=0) for t in range(1, 6)])
    np.testing.assert_allclose([r.snapshot.server.delta.tolist() for r in rounds], deltas, rtol=0, atol=1e-14)
    rates = [federation.training.lr_at(t) * federation.training.steps_for(1) for t in range(1, 6)]
    walked = -np.cumsum(np.array(rates)[:, None] * deltas, axis=0)
    np.testing.assert_allclose([r.snapshot.server.x.tolist() for r in rounds], walked, rtol=0, atol=1e-14)


def test_the_first_round_is_fedsams_at_a_fraction_of_the_rate() -> None:
    first = trajectory(small(lr=0.2), "fedmrur", 1, regulariser=False, normalise=False, alpha=0.3, rho=0.5)
    slower = trajectory(small(lr=0.3 * 0.2), "fedsam", 1, weights="uniform", rho=0.5)
    np.testing.assert_allclose(first, slower, rtol=0, atol=1e-14)


def test_what_clients_do_not_share_keeps_the_momentum_alive() -> None:
    """Gradients that cancel and are orthogonal to Δ: its length moves to s√(α/(2-α)), whatever it was."""
    s, alpha = 3.0, 0.1
    here = slopes([(0.0, s), (0.0, -s)], lr=0.1, steps=2)
    method = FedMRUR(regulariser=False, sam=False, alpha=alpha)
    loop = Loop(here, method, Serial(here), 2)
    for length in (0.01, 5.0):
        snapshot = Snapshot(0, Server(*(tensor([x, 0.0], dtype=torch.float64) for x in (0.0, length))), here.start()[1])
        squares = [length**2]
        for _ in range(150):
            snapshot = loop.play(snapshot).snapshot
            squares.append(float(snapshot.server.delta.square().sum()))
        expected = (1 - alpha) ** 2 * np.array(squares[:-1]) + (alpha * s) ** 2
        np.testing.assert_allclose(squares[1:], expected, rtol=1e-12)
        assert np.sqrt(squares[-1]) == pytest.approx(s * np.sqrt(alpha / (2 - alpha)), rel=1e-11)


@pytest.mark.slow
def test_at_a_constant_rate_the_momentum_never_dies() -> None:
    norms = [float(r.snapshot.server.delta.norm()) for r in play(quad1(), "fedmrur", 3000, gamma=0, rho=0, alpha=0.1)]
    late = np.array(norms[1999:])
    np.testing.assert_allclose([late.min(), late.max(), late.mean()], [0.104, 0.237, 0.175], rtol=0, atol=1e-3)


def test_a_model_without_features_is_refused_only_where_they_are_needed() -> None:
    with pytest.raises(InvalidInput, match="FedMRUR needs features"):
        play(quad1(), "fedmrur", 1)
    play(quad1(), "fedmrur", 1, regulariser=False)


@pytest.mark.parametrize("settings", [{"sigma": 0.0}, {"beta": 0.0}, {"gamma": -1.0}, {"alpha": 2.0}, {"rho": -0.1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=rf"{next(iter(settings))} = .* must be a number"):
        FedMRUR(**settings)
