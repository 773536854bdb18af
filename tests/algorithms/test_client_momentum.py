"""FedNAG, FastSlowMo, DOMO, DOMO-S, FedADC, FedCM: momentum that reaches the clients, against closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from undrift.algorithms import create
from undrift.algorithms.fastslowmo import Server
from undrift.core.errors import InvalidInput
from undrift.core.loop import Loop, Snapshot
from undrift.core.training import Training
from undrift.runtimes.serial import Serial
from worked import play, quad1, quadratics, slopes, trajectory

A, C, P = np.array([[1, 2], [2, 1]]), np.array([[1, 0], [0, -1]]), np.array([0.25, 0.75])  # QUAD-1
B = [(1.0, 0.0), (-0.5, 2.0)]
DECAY = {"schedule": "exponential", "lr_decay": 0.5}


def test_fednag_in_the_papers_own_form() -> None:
    x, y, path = np.array([2.0, 1.0]), np.array([2.0, 1.0]), []
    for _ in range(4):
        ends = []
        for a, c in zip(A, C, strict=True):
            xi, yi = x, y
            for _ in range(2):
                new = xi - 0.1 * a * (xi - c)
                xi, yi = new + 0.6 * (new - yi), new
            ends.append((xi, yi))
        x, y = (sum(p * end[k] for p, end in zip(P, ends, strict=True)) for k in (0, 1))
        path.append(x)
    np.testing.assert_allclose(trajectory(quad1(), "fednag", 4, gamma=0.6), path, rtol=0, atol=1e-14)


@pytest.mark.parametrize("steps", [1, 3])
def test_fednag_with_one_client_is_torchs_nesterov_without_restarts(steps: int) -> None:
    alone = quadratics(
        [[1, 2]], [[1, 0]], [1], [2.0, 1.0], Training(lr=0.1, batch_size=0, steps=steps, weight_decay=0.1)
    )
    w = torch.tensor([2.0, 1.0], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([w], lr=0.1, momentum=0.6, nesterov=True, weight_decay=0.1)
    path = []
    for step in range(4 * steps):
        w.grad = torch.tensor([1.0, 2.0]) * (w.detach() - torch.tensor([1.0, 0.0]))
        optimiser.step()
        if step % steps == steps - 1:
            path.append(w.tolist())
    np.testing.assert_allclose(trajectory(alone, "fednag", 4, gamma=0.6), path, rtol=0, atol=1e-14)


def test_fednag_with_one_full_step_is_centralised_nesterov_descent() -> None:
    x = y = np.array([2.0, 1.0])
    path = []
    for _ in range(6):
        new = x - 0.1 * P @ (A * (x - C))
        x, y = new + 0.6 * (new - y), new
        path.append(x)
    np.testing.assert_allclose(trajectory(quad1(steps=1), "fednag", 6, gamma=0.6), path, rtol=0, atol=1e-14)


def test_fastslowmo_in_position_form_counts_the_server_momentum_twice() -> None:
    form = {"gamma": 0.5, "gamma_a": 0.4}
    position, velocity = (
        play(quad1(), "fastslowmo", 1, form=f, **form)[0].snapshot.server for f in ("position", "velocity")
    )
    moved = 0.4 * (position.X - torch.tensor([2.0, 1.0]))  # X_t - X_{t-1}
    np.testing.assert_allclose(position.u, velocity.u - moved / (0.1 * 0.5), rtol=1e-14)
    assert torch.equal(position.x, velocity.x)


@pytest.mark.parametrize(("form", "total"), [("position", 0.4 / (1 - 0.6)), ("velocity", 0.4)])
def test_what_fastslowmos_server_momentum_moves_in_all(form: str, total: float) -> None:
    """No gradients, and one move of the mean: how far it carries on, in the next interval and at the server."""
    here, method = slopes([(0.0,)], steps=80, lr=0.1), create("fastslowmo", gamma=0.6, gamma_a=0.4, form=form)
    loop = Loop(here, method, Serial(here), 1)
    none = torch.zeros(1, dtype=torch.float64)
    moved = loop.play(Snapshot(0, Server(none, none, none - 1), here.start()[1])).snapshot  # x̄ moves from -1 to 0
    np.testing.assert_allclose(moved.server.x, [0.4], rtol=1e-14)
    after = loop.play(moved).snapshot.server.X
    np.testing.assert_allclose(after, [total], rtol=1e-13)


def test_fastslowmo_warns_where_the_position_form_oscillates() -> None:
    with pytest.warns(UserWarning, match=r"gamma_a/\(1-gamma\) = 1.2 > 1"):
        play(quad1(), "fastslowmo", 1, gamma=0.5, gamma_a=0.6, form="position")
    play(quad1(), "fastslowmo", 1, gamma=0.5, gamma_a=0.6, form="velocity")


def test_domo_and_domos_agree_on_linear_losses() -> None:
    settings = {"mu_s": 0.6, "mu_l": 0.3, "beta": 0.7}
    for training in ({"steps": 3}, {"steps": 3} | DECAY):
        before = trajectory(slopes(B, **training), "domo", 5, **settings)
        during = trajectory(slopes(B, **training), "domos", 5, **settings)
        np.testing.assert_allclose(before, during, rtol=0, atol=1e-13)


def test_domo_averages_the_clients_own_buffers() -> None:
    """D_i is the mean of the local buffers, and does not contain the shifted start."""
    rounds = play(slopes([(1.0,)], steps=2), "domo", 3, mu_s=0.5, mu_l=0.5, beta=1.0)
    # h = 1, 1.5: D = 1.25 whatever m is; so m = 1.25 (1 - 0.5^t)/0.5
    np.testing.assert_allclose([r.snapshot.server.m.item() for r in rounds], [1.25, 1.875, 2.1875], rtol=1e-14)


def test_fedadcs_momentum_is_domos_summed_over_the_steps() -> None:
    adc = play(quad1(steps=3), "fedadc", 4, beta_g=0.6, beta_l=0.4)
    domos = play(quad1(steps=3), "domos", 4, mu_s=0.6, mu_l=0, beta=0.4)
    for ours, theirs in zip(adc, domos, strict=True):
        np.testing.assert_allclose(ours.snapshot.server.m, 3 * theirs.snapshot.server.m, rtol=0, atol=1e-13)


@pytest.mark.parametrize("form", ["heavy-ball", "nesterov"])
@pytest.mark.parametrize("training", [{"steps": 3}, {"steps": 3} | DECAY])
def test_fedadc_is_slowmo_on_linear_losses(form: str, training: dict[str, Any]) -> None:
    mine = trajectory(slopes(B, **training), "fedadc", 5, beta_g=0.6, beta_l=0.4, form=form)
    slow = trajectory(slopes(B, **training), "slowmo", 5, beta=0.6, weights="uniform")
    np.testing.assert_allclose(mine, slow, rtol=0, atol=1e-13)


@pytest.mark.parametrize("training", [{}, {"steps": 4, "lr": 0.3}, {"steps": 3, "lr": 0.3} | DECAY])
def test_fedcms_direction_on_linear_losses_depends_on_neither_rate_nor_steps(training: dict[str, Any]) -> None:
    rounds = play(slopes(B, **training), "fedcm", 6, alpha=0.2)
    mean = np.mean(B, axis=0)
    expected = [(1 - 0.8**t) * mean for t in range(1, 7)]
    np.testing.assert_allclose([r.snapshot.server.delta.tolist() for r in rounds], expected, rtol=0, atol=1e-14)


def test_fedcm_without_gradients_never_moves() -> None:
    assert trajectory(quad1(), "fedcm", 3, alpha=0) == [[2, 1]] * 3


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedcm", {}), ("mofedsam", {"rho": 0}), ("fedmrur", {"gamma": 0, "rho": 0})],
)
@pytest.mark.parametrize(("mode", "point"), [("outer", 1 / 1.5), ("inner", 1 / 1.05)])
def test_outer_weight_decay_acts_as_if_divided_by_alpha(
    name: str, settings: dict[str, Any], mode: str, point: float
) -> None:
    training = Training(lr=0.1, batch_size=0, steps=2, weight_decay=0.05, decay_mode=mode)
    alone = quadratics([[1]], [[1]], [1], [0.0], training)
    assert trajectory(alone, name, 500, alpha=0.1, **settings)[-1] == pytest.approx([point], abs=1e-9)


@pytest.mark.parametrize("mode", ["outer", "inner"])
@pytest.mark.parametrize(("name", "settings"), [("mime", {"beta": 0.9}), ("mimelite", {"beta": 0.9}), ("fedadc", {})])
def test_elsewhere_weight_decay_acts_as_it_is_set(name: str, settings: dict[str, Any], mode: str) -> None:
    """m is a mean of gradients (Mime), or all of the step counts alike (FedADC): nothing is divided by 1-β."""
    training = Training(lr=0.1, batch_size=0, steps=2, weight_decay=0.05, decay_mode=mode)
    alone = quadratics([[1]], [[1]], [1], [0.0], training)
    assert trajectory(alone, name, 500, **settings)[-1] == pytest.approx([1 / 1.05], abs=1e-9)


@pytest.mark.parametrize(
    "name", ["fednag", "fastslowmo", "domo", "domos", "fedadc", "fedcm", "mofedsam", "fedmrur", "pfedmo"]
)
def test_local_momentum_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="does not take local momentum"):
        play(quad1(momentum=0.5), name, 1)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fednag", {"gamma": 1.0}), ("fastslowmo", {"gamma_a": -0.1}), ("domo", {"mu_l": 1.0}),
        ("domos", {"beta": 2.0}), ("fedadc", {"beta_g": 1.0}), ("fedcm", {"alpha": 1.1}), ("fedcm", {"server_lr": 0.0}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name: str, settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=rf"{next(iter(settings))} = .* must be a number"):
        create(name, **settings)
