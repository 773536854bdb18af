"""SCAFFOLD, FedPVR, FedDyn, FedDC: control variates and duals, their invariants and their fixed points."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recording import average, recorded, states
from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.training import Training
from worked import play, quadratics, small, toy, trajectory

TWO_ULP = 4.5e-16
MOMENTUM: dict[str, Any] = {"momentum": 0.9, "lr": 0.05}


def uneven(**training: Any) -> Federation:
    return quadratics([[1], [3]], [[0], [1]], [1, 3], [0.0], toy(**training).training)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
@pytest.mark.parametrize(
    ("name", "pairs"),
    [
        ("scaffold", [("c", "c")]),
        ("fedpvr", [("c", "c")]),
        ("feddyn", [("h", "lam")]),
        ("feddc", [("c", "c"), ("h", "h")]),
    ],
)
def test_the_server_holds_the_mean_over_all_clients(name: str, pairs: list[tuple[str, str]], weights: str) -> None:
    here = small(5, **MOMENTUM)
    server, kept = states(here, name, 6, participate=2, weights=weights)
    for theirs, ours in pairs:
        torch.testing.assert_close(getattr(server, theirs), average(here, kept, ours, weights), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["scaffold", "feddyn", "feddc", "fedtr"])
def test_uneven_clients_reach_the_optimum_of_their_weights(name: str) -> None:
    extra: dict[str, Any] = {} if name == "scaffold" else {"alpha": 1}
    extra |= {"drift": "dual", "lam_r": 0} if name == "fedtr" else {}
    for weights, optimum in (("samples", 9 / 10), ("uniform", 3 / 4)):
        ((found,),) = trajectory(uneven(), name, 250, weights=weights, **extra)[-1:]
        assert found == pytest.approx(optimum, abs=1e-9)


# --- SCAFFOLD ---------------------------------------------------------------------------------------------------------


def test_scaffold_starts_as_fedavg() -> None:
    mine = np.array(trajectory(small(**MOMENTUM), "scaffold", 1, participate=3))
    theirs = np.array(trajectory(small(**MOMENTUM), "fedavg", 1, participate=3, weights="uniform"))
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=TWO_ULP)


def test_scaffold_with_one_step_is_gradient_descent() -> None:
    here = small(sizes=(6, 6, 6), steps=1, batch_size=0)
    mine, theirs = (np.array(trajectory(here, name, 6)) for name in ("scaffold", "central"))
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-14)


class Slope(nn.Module):
    """A loss with the constant gradient that the sample says."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start], dtype=torch.float64))

    def forward(self, sample: Tensor) -> Tensor:
        return sample * self.w


def slope(gradient: float, start: float, **training: Any) -> Federation:
    """One client whose gradient is the same everywhere."""
    return Federation(
        module=Slope(start),
        loss=lambda outputs, y: outputs.mean(),
        x=torch.tensor([[gradient]], dtype=torch.float64),
        y=torch.zeros(1),
        indices=np.arange(1),
        offsets=np.array([0, 1]),
        training=Training(**{"batch_size": 0} | training),
    )


@pytest.mark.parametrize("name", ["scaffold", "feddc"])
@pytest.mark.parametrize("training", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}])
@pytest.mark.parametrize("rounds", [1, 4])
def test_the_refresh_finds_a_constant_gradient(name: str, training: dict[str, Any], rounds: int) -> None:
    """With momentum it must divide the path by eta A_K; by eta K, the gradient 1.3 would come out as 4.28.

    The rate is that of the round: with the first one it would come out as 0.16 in the fourth.
    """
    settings = {"alpha": 0} if name == "feddc" else {}
    here = slope(1.3, 0.0, lr=0.1, steps=7, schedule="exponential", lr_decay=0.5, **training)
    _, kept = states(here, name, rounds, **settings)
    assert kept[0].c.item() == pytest.approx(1.3, abs=rounds * 1e-14)


def test_scaffold_ends_with_variates_that_cancel() -> None:
    server, kept = states(toy(), "scaffold", 300)
    assert server.c.item() == pytest.approx(0, abs=1e-11)
    assert [kept[i].c.item() for i in (0, 1)] == pytest.approx([3 / 4, -3 / 4], abs=1e-10)  # the gradients at 3/4


def test_scaffold_option_one_takes_the_gradient_at_the_received_model() -> None:
    _, kept = states(toy(), "scaffold", 1, option="I")
    assert [kept[i].c.item() for i in (0, 1)] == [0.0, -3.0]
    ((limit,),) = trajectory(toy(), "scaffold", 300, option="I")[-1:]
    assert limit == pytest.approx(3 / 4, abs=1e-11)


@pytest.mark.parametrize("mode", ["outer", "inner"])
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffolds_variates_count_the_weight_decay(option: str, mode: str) -> None:
    """F = x²/2 at w = 1 with a decay of 0.1: the gradient that one step follows is 1.1."""
    training = Training(lr=0.1, weight_decay=0.1, decay_mode=mode, steps=1, batch_size=0)
    here = quadratics([[1]] * 3, [[0]] * 3, [1] * 3, [1.0], training)
    _, kept = states(here, "scaffold", 1, participate=1, option=option)
    assert [state.c.item() for state in kept.values()] == pytest.approx([1.1], abs=1e-12)


# --- FedPVR -----------------------------------------------------------------------------------------------------------


def test_fedpvr_on_a_model_that_is_all_head_is_scaffold() -> None:
    runs = [np.array(trajectory(small(**MOMENTUM), name, 5, participate=3)) for name in ("fedpvr", "scaffold")]
    np.testing.assert_allclose(runs[0], runs[1], rtol=0, atol=1e-14)


def test_fedpvr_on_a_model_without_a_head_is_fedavg_bit_for_bit() -> None:
    assert trajectory(uneven(), "fedpvr", 5) == trajectory(uneven(), "fedavg", 5, weights="uniform")


class TwoParts(nn.Module):
    """TOY twice: once in a parameter of the body, once in the last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        self.last = nn.Linear(1, 1, bias=False, dtype=torch.float64)
        nn.init.zeros_(self.last.weight)

    def forward(self, sample: Tensor) -> Tensor:
        a, b = sample[:, 0], sample[:, 1]
        return 0.5 * a * ((self.body - b) ** 2 + (self.last(torch.ones_like(b)) - b) ** 2)


def test_fedpvr_corrects_the_head_and_nothing_else() -> None:
    here = toy()
    here = replace(here, module=TwoParts())
    ((body, head),) = trajectory(here, "fedpvr", 300)[-1:]
    assert (body, head) == pytest.approx((51 / 70, 3 / 4), abs=1e-11)


# --- FedDyn and FedDC -------------------------------------------------------------------------------------------------


def test_the_first_round_of_feddyn_is_twice_fedprox() -> None:
    here = small(sizes=(8, 8, 8))
    start, _ = here.start()
    (mine,), (theirs,) = trajectory(here, "feddyn", 1, alpha=0.4), trajectory(here, "fedprox", 1, mu=0.4)
    np.testing.assert_allclose(np.array(mine) - start.numpy(), 2 * (np.array(theirs) - start.numpy()), atol=1e-14)


@pytest.mark.parametrize(("alpha", "steps"), [(0.5, 1), (1.0, 5), (3.0, 20)])
def test_feddyn_reaches_the_optimum_for_any_weight_and_number_of_steps(alpha: float, steps: int) -> None:
    ((found,),) = trajectory(toy(steps=steps), "feddyn", 250, alpha=alpha)[-1:]
    assert found == pytest.approx(3 / 4, abs=1e-10)


def test_feddyn_leaves_a_client_that_stays_where_it_was() -> None:
    here = quadratics([[1], [3]], [[2], [1]], [1, 1], [2.0], toy().training)  # the first client starts at its optimum
    _, kept = states(here, "feddyn", 1)
    assert kept[0].lam.item() == 0
    assert kept[1].lam.item() != 0


def test_an_exact_local_solution_makes_the_dual_a_gradient() -> None:
    _, (*_, (_, replies)) = recorded(toy(steps=250), "feddyn", 3, alpha=0.5)
    for reply, a, b in zip(replies, (1, 3), (0, 1), strict=True):
        assert reply.state.lam.item() == pytest.approx(a * (reply.up.x.item() - b), abs=1e-12)


def test_feddyn_refuses_a_weight_of_zero() -> None:
    with pytest.raises(InvalidInput, match=r"alpha = 0.*the server divides by it"):
        play(toy(), "feddyn", 1, alpha=0)


def test_feddyn_shows_the_mean_of_the_cohort_too() -> None:
    (result,) = play(toy(), "feddyn", 1, alpha=1.0)
    found = create("feddyn", alpha=1.0).models(result.snapshot.server)
    assert found["cohort mean"].item() == pytest.approx(6 / 25, abs=1e-15)


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_feddyn_can_follow_the_mean_of_all_clients_last_models(weights: str) -> None:
    here, settings = small(**MOMENTUM), {"weights": weights, "alpha": 0.3}
    method = create("feddyn", follow=True, **settings)
    played, seen = recorded(here, "feddyn", 5, participate=2, follow=True, **settings)
    last = {client: here.start()[0] for client in range(5)}
    n = torch.from_numpy(here.population.samples).double() if weights == "samples" else torch.ones(5).double()
    for result, (_, replies) in zip(played, seen, strict=True):
        last |= {reply.client: reply.up.x for reply in replies}
        mean = (n / n.sum()) @ torch.stack([last[client] for client in range(5)])
        found = method.models(result.snapshot.server)
        torch.testing.assert_close(found["client mean"], mean, rtol=0, atol=1e-14)
        assert not torch.allclose(found["client mean"], found["cohort mean"])
    plain = play(here, "feddyn", 5, participate=2, **settings)
    assert torch.equal(played[-1].snapshot.server.x, plain[-1].snapshot.server.x)
    claimed = method.claims(here.training, here.layout, 7, 3)
    assert (claimed["up"], claimed["kept"]) == (seen[0][1][0].up.moved.numel(), 2 * here.layout.size)
    assert plain[-1].snapshot.server.last.numel() == 0


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_feddc_without_its_correction_is_feddyn(weights: str) -> None:
    mine, other = (
        np.array(trajectory(small(), name, 6, participate=3, weights=weights, alpha=0.3, **settings))
        for name, settings in (("feddc", {"correct": False}), ("feddyn", {}))
    )
    np.testing.assert_allclose(mine, other, rtol=0, atol=1e-13)


def test_the_first_round_of_feddc_is_that_of_feddyn() -> None:
    mine, other = (np.array(trajectory(small(), name, 1, alpha=0.3)) for name in ("feddc", "feddyn"))
    np.testing.assert_allclose(mine, other, rtol=0, atol=1e-14)


def test_the_fixed_point_of_feddc() -> None:
    alpha = 0.7
    server, kept = states(toy(), "feddc", 800, alpha=alpha)
    w = server.x.item()
    (*_, (task, replies)) = recorded(toy(), "feddc", 800, alpha=alpha)[1]
    assert [reply.up.x.item() for reply in replies] == pytest.approx([task.down.x.item()] * 2, abs=1e-9)
    for i, (a, b) in enumerate(((1, 0), (3, 1))):
        expected = (-a * (w - b) + kept[i].c.item() - server.c.item()) / alpha
        assert kept[i].h.item() == pytest.approx(expected, abs=1e-9)
