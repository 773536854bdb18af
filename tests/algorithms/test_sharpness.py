"""FedSAM, MoFedSAM, FedSpeed, FedSMOO: gradients taken uphill, and the duals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import undrift
from undrift.algorithms import create
from undrift.algorithms.fedspeed import Client, FedSpeed, Server
from undrift.core.errors import InvalidInput
from undrift.core.federation import build
from undrift.core.loop import Loop, Snapshot
from undrift.core.states import Kept, Memory
from undrift.core.training import Training
from undrift.data import PARTITIONERS
from undrift.models import spec
from undrift.runtimes.batched import Batched
from undrift.runtimes.serial import Serial
from worked import next_round, play, quad1, quadratics, slopes, small, trajectory

B = [(1.0, 0.0), (-0.5, 2.0)]
CLIENTS = quad1().population


def one_step(a: tuple[float, float], start: tuple[float, float], **training: Any) -> Any:
    """Minus the direction of FedSAM's first step on 1/2 Σ a_j w_j², radius 0.3."""
    settings = Training(**{"lr": 1.0, "batch_size": 0, "steps": 1} | training)
    alone = quadratics([a], [(0, 0)], [1], start, settings)
    return np.array(start) - trajectory(alone, "fedsam", 1, rho=0.3)[0]


def test_the_gradient_uphill_of_a_quadratic() -> None:
    g = np.array([3 * 0.6, 3 * -0.8])
    np.testing.assert_allclose(one_step((3, 3), (0.6, -0.8)), g * (1 + 0.3 / 1), rtol=1e-11)  # |w - c| = 1
    g, H = np.array([3 * 0.6, 2 * -0.8]), np.diag([3, 2])
    np.testing.assert_allclose(one_step((3, 2), (0.6, -0.8)), g + 0.3 * H @ g / np.linalg.norm(g), rtol=1e-11)


@pytest.mark.parametrize("mode", ["outer", "inner"])
def test_weight_decay_neither_bends_the_ascent_nor_moves_with_it(mode: str) -> None:
    plain = one_step((3, 2), (0.6, -0.8))
    decayed = one_step((3, 2), (0.6, -0.8), weight_decay=0.1, decay_mode=mode)
    np.testing.assert_allclose(decayed, plain + 0.1 * np.array([0.6, -0.8]), rtol=1e-13)


def test_on_linear_losses_looking_uphill_has_no_effect() -> None:
    assert trajectory(slopes(B), "fedsam", 3, rho=0.5) == trajectory(slopes(B), "fedavg", 3)


@pytest.mark.parametrize("name", ["fedsam", "mofedsam", "fedspeed", "fedsmoo"])
def test_at_a_minimum_there_is_no_perturbation_and_no_nan(name: str) -> None:
    still = quadratics([(1, 2)], [(2, 1)], [1], [2.0, 1.0], Training(lr=0.1, batch_size=0, steps=2))
    assert trajectory(still, name, 2, rho=0.5) == [[2, 1]] * 2


@pytest.mark.parametrize("name", ["fedspeed", "fedsmoo"])
def test_the_server_knows_the_mean_of_all_duals(name: str) -> None:
    kept: dict[int, Any] = {}
    for r in play(small(), name, 6, participate=2):
        kept |= r.kept
        h = sum(state.state.h for state in kept.values()) / 5
        np.testing.assert_allclose(r.snapshot.server.h, h, rtol=0, atol=1e-14)
    assert len(kept) > 2


def test_at_fedspeeds_fixed_point_clients_stay_and_duals_cancel() -> None:
    """At the optimum, with duals h_i = -g_i/λ_p, nobody moves."""
    best = np.array([1 / 3, -1 / 3])
    slopes_there = np.array([[1, 2], [2, 1]]) * (best - np.array([[1, 0], [0, -1]]))
    np.testing.assert_allclose(slopes_there.sum(0), [0, 0], atol=1e-15)
    here, method = quad1(), FedSpeed(lambda_p=0.1, rho=0)
    duals = [torch.from_numpy(-g / 0.1) for g in slopes_there]
    loop = Loop(here, method, Serial(here), 2)
    loop.runtime.states = Memory({i: Kept(Client(h)) for i, h in enumerate(duals)})
    start = Snapshot(0, Server(torch.from_numpy(best), torch.zeros(2).double()), here.start()[1])
    after = next_round(loop, start)
    np.testing.assert_allclose(after.snapshot.server.x, best, rtol=0, atol=1e-14)
    for i, h in enumerate(duals):  # h_i moves by w_i^K - w
        np.testing.assert_allclose(after.kept[i].state.h, h, rtol=0, atol=1e-14)


def test_fedsmoos_common_ascent_has_the_radius() -> None:
    for r in play(quad1(), "fedsmoo", 3, rho=0.2):
        assert float(r.snapshot.server.s.norm()) == pytest.approx(0.2, rel=1e-11)


# -- the radius -------------------------------------------------------------------------------------------------------

UPHILL = ["fedsam", "mofedsam", "fedmrur", "fedspeed", "fedsmoo"]


@pytest.mark.parametrize("name", UPHILL)
def test_a_relative_radius_is_a_share_of_the_norm_of_the_rounds_model(name: str) -> None:
    here = small(hidden=5)
    off = {"gamma": 0.0} if name == "fedmrur" else {}
    first = trajectory(here, name, 2, rho_relative=0.1, **off)
    assert trajectory(here, name, 1, rho=0.1 * float(here.start()[0].norm()), **off)[0] == pytest.approx(first[0])
    assert trajectory(here, name, 2, rho=0.1 * float(here.start()[0].norm()), **off)[1] != pytest.approx(first[1])


@pytest.mark.parametrize("name", ["fedsam", "fedsmoo"])
def test_a_relative_radius_is_the_same_in_every_runtime(name: str) -> None:
    here = small(hidden=5)
    one, many = (trajectory(here, name, 3, rho_relative=0.05, runtime=runtime) for runtime in (Serial, Batched))
    np.testing.assert_allclose(many, one, rtol=1e-10)


def test_fedsmoos_common_ascent_has_the_relative_radius() -> None:
    for r in play(quad1(), "fedsmoo", 3, rho_relative=0.1):
        server = r.snapshot.server
        assert float(server.s.norm()) == pytest.approx(0.1 * float(server.x.norm()), rel=1e-10)


@pytest.mark.parametrize("name", UPHILL)
def test_the_default_radius_is_small_and_two_radii_are_refused(name: str) -> None:
    assert (create(name).rho, create(name).rho_relative) == (0.05, None)
    with pytest.raises(InvalidInput, match=r"rho = 0.1 and rho_relative = 0.01 are two radii; give one of them"):
        create(name, rho=0.1, rho_relative=0.01)
    with pytest.raises(InvalidInput, match=r"rho_relative = .* must be a number >= 0"):
        create(name, rho_relative=-0.1)


@pytest.mark.parametrize("name", UPHILL)
@pytest.mark.parametrize("settings", [{"rho": 0.21}, {"rho_relative": 0.021}])
def test_a_radius_above_two_percent_of_the_initial_model_is_warned_of(name: str, settings: dict[str, float]) -> None:
    with pytest.warns(UserWarning, match=r"the radius 0.21 is 2.1 % of the norm of the initial model \(10\)"):
        create(name, **settings).check_start(torch.tensor([6.0, -8.0]), CLIENTS)


@pytest.mark.parametrize("settings", [{"rho": 0.2}, {"rho_relative": 0.02}, {}])
def test_a_radius_up_to_two_percent_is_not(settings: dict[str, float], recwarn: pytest.WarningsRecorder) -> None:
    create("fedsam", **settings).check_start(torch.tensor([6.0, -8.0], dtype=torch.float64), CLIENTS)
    create("fedsam", **settings).check_start(torch.zeros(2), CLIENTS)  # nothing to compare with
    create("fedmrur", sam=False, rho=5.0).check_start(torch.tensor([6.0, -8.0]), CLIENTS)  # nobody goes uphill
    assert not recwarn.list


def test_a_run_warns_of_its_radius_before_the_first_round() -> None:
    with pytest.warns(UserWarning, match=r"FedSAM: the radius 0.5 is 22 % of the norm of the initial model \(2.24\)"):
        play(quad1(), "fedsam", 0, rho=0.5)


def test_the_papers_radius_as_a_share_of_a_resnet18() -> None:
    model = build(lambda: spec("resnet18").build((3, 32, 32), 100), 1)
    x = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert float(create("fedmrur", rho_relative=0.00626).radius(x)) == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(("settings", "learns"), [({}, True), ({"rho_relative": 0.00626}, True), ({"rho": 0.5}, False)])
def test_fedmrur_learns_digits_with_its_default_and_the_papers_share_and_not_with_its_length(
    settings: dict[str, float], learns: bool
) -> None:
    method, partition = create("fedmrur", **settings), PARTITIONERS["dirichlet"].create(alpha=0.1)
    found = undrift.run(
        method, data="digits", partition=partition, clients=20, participate=10, rounds=12, eval_every=12
    )
    assert found.history.final > 0.8 if learns else found.history.final < 0.2


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedsam", {"rho": -0.1}), ("mofedsam", {"alpha": 1.5}), ("mofedsam", {"rho": -1.0}),
        ("fedspeed", {"lambda_p": -0.1}), ("fedsmoo", {"rho": -0.1}),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name: str, settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=rf"{next(iter(settings))} = .* must be a number"):
        create(name, **settings)
