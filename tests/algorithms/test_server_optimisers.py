"""FedAvgM, SlowMo, FedMom, FedAdam, FedYogi, FedAdagrad, FedExP, FedNova: their servers against closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from undrift.core.training import Training
from worked import play, quad1, slopes, trajectory

A, C, P = np.array([[1, 2], [2, 1]]), np.array([[1, 0], [0, -1]]), np.array([0.25, 0.75])  # QUAD-1
UNEQUAL = [(4.0, 0.0), (0.0, 2.0), (-3.0, 1.0), (0.0, -1.0)]  # directions with |mean|² = 0.3125, mean square 7.75


def mean_displacement(w: NDArray[np.float64], K: int) -> NDArray[np.float64]:
    """dbar of plain local SGD on QUAD-1 in closed form."""
    return P @ ((1 - (1 - 0.1 * A) ** K) * (w - C))


def torch_descent(gradient: Callable[[NDArray[np.float64]], NDArray[np.float64]], rounds: int, **options: Any) -> Any:
    """PyTorch's own SGD along a given gradient, from QUAD-1's start."""
    w = torch.tensor([2.0, 1.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], **options)
    path = []
    for _ in range(rounds):
        w.grad = torch.from_numpy(gradient(w.detach().numpy()))
        optimiser.step()
        path.append(w.tolist())
    return path


@pytest.mark.parametrize(("name", "nesterov"), [("fedavgm", False), ("fedmom", True)])
def test_the_server_is_momentum_sgd_on_the_mean_displacement(name: str, nesterov: bool) -> None:
    mine = trajectory(quad1(), name, 8, beta=0.6, server_lr=0.9)
    theirs = torch_descent(lambda w: mean_displacement(w, 2), 8, lr=0.9, momentum=0.6, nesterov=nesterov)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("name", "nesterov"), [("fedavgm", False), ("slowmo", False), ("fedmom", True)])
def test_with_one_full_step_it_is_centralised_momentum_descent(name: str, nesterov: bool) -> None:
    mine = trajectory(quad1(steps=1), name, 8, beta=0.6)
    theirs = torch_descent(lambda w: P @ (A * (w - C)), 8, lr=0.1, momentum=0.6, nesterov=nesterov)
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("name", "ahead"), [("fedavgm", 1), ("slowmo", 1), ("fedmom", 2)])
def test_step_lengths_on_linear_losses(name: str, ahead: int) -> None:
    beta, d = 0.6, np.array([0.5, -2.0])
    path = np.array([[0.0, 0.0], *trajectory(slopes([d.tolist()]), name, 6, beta=beta)])
    expected = [-d * (1 - beta ** (t + ahead)) / (1 - beta) for t in range(6)]
    np.testing.assert_allclose(np.diff(path, axis=0), expected, rtol=0, atol=1e-14)


# -- FedAdam, FedYogi, FedAdagrad --------------------------------------------------------------------------------------

D = [(0.3, -2.0)]  # one client whose displacement is -Δ


def first_step(name: str, **settings: Any) -> Any:
    return np.array(trajectory(slopes(D), name, 1, **settings)[0])


@pytest.mark.parametrize("name", ["fedadam", "fedyogi"])
def test_a_second_moment_that_never_changes_gives_a_fixed_step(name: str) -> None:
    step = first_step(name, beta1=0, beta2=1, tau=0.01, server_lr=0.3)
    np.testing.assert_allclose(step, -0.3 * np.array(D[0]) / (2 * 0.01), rtol=1e-14)


def test_adams_first_step_has_the_same_length_in_every_coordinate() -> None:
    step = first_step("fedadam", v0=0, tau=1e-300, server_lr=0.3)
    np.testing.assert_allclose(step, -0.3 * (1 - 0.9) / np.sqrt(1 - 0.99) * np.sign(D[0]), rtol=1e-13)
    np.testing.assert_allclose(np.abs(step), 0.3, rtol=1e-13)


def test_adagrads_first_step_is_the_sign() -> None:
    np.testing.assert_allclose(first_step("fedadagrad", v0=0, tau=1e-300, server_lr=0.3), -0.3 * np.sign(D[0]))


@pytest.mark.parametrize(("name", "kept"), [("fedyogi", 1.0), ("fedadam", 0.99)])
def test_first_second_moment(name: str, kept: float) -> None:
    server = play(slopes(D), name, 1, tau=0.1)[0].snapshot.server
    np.testing.assert_allclose(server.v.tolist(), kept * 0.1**2 + 0.01 * np.square(D[0]), rtol=1e-14)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_opposite_updates_give_opposite_steps(name: str) -> None:
    there = trajectory(slopes([(0.3, -2.0)]), name, 4)
    back = trajectory(slopes([(-0.3, 2.0)]), name, 4)
    assert (-np.array(there)).tolist() == back


# -- FedExP ------------------------------------------------------------------------------------------------------------


def server_rates(federation: Any, rounds: int, **settings: Any) -> list[float]:
    return [r.notes["server_lr"] for r in play(federation, "fedexp", rounds, **settings)]


def test_fedexp_extrapolates_by_how_much_the_clients_disagree() -> None:
    assert server_rates(slopes([(1.0, 2.0)] * 3), 1, eps=0) == [1]  # no disagreement: ratio 1/2
    np.testing.assert_allclose(server_rates(slopes(np.eye(10).tolist()), 1, eps=0), [5], rtol=1e-13)
    np.testing.assert_allclose(server_rates(slopes(UNEQUAL), 1, eps=0), [12.4], rtol=1e-13)
    twice = [(2 * a, 2 * b) for a, b in UNEQUAL]
    np.testing.assert_allclose(server_rates(slopes(twice), 1, eps=0), [12.4], rtol=1e-13)


def test_fedexps_rate_on_quad1_grows_as_the_mean_vanishes() -> None:
    rates = server_rates(quad1(), 9, eps=0)
    assert rates[:5] == [1] * 5
    np.testing.assert_allclose(rates[5:], [1.1283, 1.7941, 5.1921, 39.315], rtol=5e-5)


@pytest.mark.parametrize(("scale", "factor"), [("cohort", 4), ("one", 1)])
def test_fedexps_epsilon(scale: str, factor: int) -> None:
    expected = 7.75 / (2 * (0.3125 + factor * 0.1))
    np.testing.assert_allclose(server_rates(slopes(UNEQUAL), 1, eps=0.1, eps_scale=scale), [expected], rtol=1e-13)


def test_fedexps_epsilon_shrinks_with_the_square_of_the_learning_rate() -> None:
    decaying = slopes(UNEQUAL, schedule="exponential", lr_decay=0.5)
    rates = server_rates(decaying, 4, eps=0.1)
    np.testing.assert_allclose(rates, [rates[0]] * 4, rtol=1e-13)


def test_fedexps_epsilon_counts_from_the_first_round_even_if_it_was_lost() -> None:
    method, lr = create("fedexp", eps=0.5), 0.1
    (played,) = play(slopes([(1.0, 0.0), (0.0, 1.0)], lr=lr), "fedexp", 1, eps=0.5)
    start = method.server_init(torch.zeros(2).double(), played.cohort.population)
    after = method.skipped(start, played.cohort)
    assert after.lr.item() == lr
    assert torch.equal(after.x, start.x)
    later = replace(played.cohort, lr=lr / 2)
    assert method.skipped(after, later).lr.item() == lr  # a second lost round changes nothing
    up: Any = method.records()["up"](d=torch.tensor([0.1, 0.1], dtype=torch.float64), square=torch.tensor(1.0).double())
    method.server_update(after, up, later)
    assert later.notes["server_lr"] == pytest.approx(1 / (2 * (0.02 + 0.5 * 2 / 4)), rel=1e-12)


def test_fedexp_stays_where_the_updates_cancel() -> None:
    assert trajectory(slopes([(1.0, 0.0), (-1.0, 0.0)]), "fedexp", 2, eps=0) == [[0, 0], [0, 0]]


# -- FedNova -----------------------------------------------------------------------------------------------------------


def test_normalisers() -> None:
    assert Training(momentum=0.9).travel(2) == pytest.approx(2.9, abs=1e-14)
    server = play(slopes([(1.0,)], steps=4), "fednova", 1, mu=1e-7)[0]
    assert server.snapshot.server.x.tolist() == pytest.approx([-4], rel=1e-6)  # mu -> 0: a = K


def test_fednova_has_no_bias_towards_clients_that_take_more_steps() -> None:
    b, p, K = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([0.25, 0.75]), np.array([2, 5])
    uneven = {"n": (5, 15), "steps": None, "epochs": 1, "batch_size": 3, "lr": 0.1}
    nova = trajectory(slopes(b.tolist(), **uneven), "fednova", 1)[0]
    np.testing.assert_allclose(nova, -0.1 * 4.25 * (p @ b), rtol=1e-14)  # tau_eff = 4.25
    plain = trajectory(slopes(b.tolist(), **uneven), "fedavg", 1)[0]
    np.testing.assert_allclose(plain, -0.1 * (p * K) @ b, rtol=1e-14)


def test_fednova_with_prox_divides_by_its_own_travel() -> None:
    mu, lr, K = 0.5, 0.1, np.array([2, 5])
    a = (1 - (1 - lr * mu) ** K) / (lr * mu)
    uneven = {"n": (5, 15), "steps": None, "epochs": 1, "batch_size": 3, "lr": lr}
    moved = trajectory(slopes([(1.0, 0.0), (0.0, 1.0)], **uneven), "fednova", 1, mu=mu)[0]
    tau_eff = 0.25 * a[0] + 0.75 * a[1]  # on linear losses d_i = lr a_i b_i
    np.testing.assert_allclose(moved, [-lr * tau_eff * 0.25, -lr * tau_eff * 0.75], rtol=1e-13)


def test_fednovas_slow_momentum() -> None:
    path = np.array([[0.0], *trajectory(slopes([(2.0,)]), "fednova", 5, gmf=0.6)])
    expected = [[-2 * (1 - 0.6 ** (t + 1)) / 0.4] for t in range(5)]
    np.testing.assert_allclose(np.diff(path, axis=0), expected, rtol=1e-13)


def test_fednova_takes_momentum_or_prox() -> None:
    with pytest.raises(InvalidInput, match=r"mu = 0.1 with local momentum 0.9: use one of the two"):
        play(quad1(momentum=0.9), "fednova", 1, mu=0.1)


def test_a_proximal_step_that_does_not_settle_is_refused() -> None:
    """At lr mu = 2 a model swings from one side of w to the other, and after two steps a_i = 0."""
    with pytest.raises(InvalidInput, match=r"mu = 20 with lr = 0.1: their product must be below 2"):
        play(quad1(), "fednova", 1, mu=20.0)
    a = (1 - (1 - 1.9) ** 2) / 1.9  # just below it: d_i = lr a_i b_i on linear losses, as always
    moved = trajectory(slopes([(3.0,)], steps=2, lr=0.1), "fednova", 1, mu=19.0)[0]
    np.testing.assert_allclose(moved, [-0.1 * a * 3], rtol=1e-13)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavgm", {"beta": 1.0}), ("fedavgm", {"server_lr": 0.0}), ("slowmo", {"beta": -0.1}),
        ("slowmo", {"alpha": 0.0}), ("fedmom", {"beta": 1.1}), ("fedadam", {"tau": 0.0}), ("fedadam", {"beta2": 1.5}),
        ("fedyogi", {"v0": -1.0}), ("fedadagrad", {"server_lr": -1.0}), ("fedexp", {"eps": -1e-3}),
        ("fednova", {"mu": -0.1}), ("fednova", {"gmf": 1.0}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name: str, settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=rf"{next(iter(settings))} = .* must be a number"):
        create(name, **settings)
