"""FedTrip: the oracles of its specification, and its Table V from its Table IV."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import undrift
from undrift.algorithms import create
from undrift.algorithms.fedtrip import Client
from undrift.analysis.groups import grouped
from undrift.core.cohort import Population
from undrift.core.errors import InvalidInput
from undrift.core.profile import convolution_biases, profile
from undrift.core.spent import Spent
from undrift.core.states import Kept
from undrift.core.training import Training
from undrift.core.vector import layout_of
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.models import build
from undrift.runtimes.batched import Batched
from undrift.runtimes.processes import Processes
from worked import play, quadratics, small, toy, trajectory

MOMENTUM: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.01, "lr": 0.05}


def test_without_weight_it_is_fedavg_bit_for_bit() -> None:
    runs = [
        trajectory(small(**MOMENTUM), name, 5, participate=3, **settings)
        for name, settings in (("fedtrip", {"mu": 0}), ("fedavg", {}))
    ]
    assert runs[0] == runs[1]


def test_without_the_historical_model_it_is_fedprox_bit_for_bit() -> None:
    mine = trajectory(small(**MOMENTUM), "fedtrip", 5, participate=3, mu=0.3, xi=0)
    assert mine == trajectory(small(**MOMENTUM), "fedprox", 5, participate=3, mu=0.3)


def test_the_first_participation_is_a_fedprox_round() -> None:
    mine = trajectory(small(**MOMENTUM), "fedtrip", 1, mu=0.3, first="prox")
    assert mine == trajectory(small(**MOMENTUM), "fedprox", 1, mu=0.3)
    mine = trajectory(small(**MOMENTUM), "fedtrip", 1, mu=0.3, first="init")
    assert mine == trajectory(small(**MOMENTUM), "fedavg", 1)


def test_alone_its_regulariser_is_zero_bit_for_bit() -> None:
    mine = trajectory(small(sizes=(13,), **MOMENTUM), "fedtrip", 5, mu=0.3, first="init")
    assert mine == trajectory(small(sizes=(13,), **MOMENTUM), "fedavg", 5)


def test_identical_clients_have_no_regulariser() -> None:
    here = quadratics([[1, 3]] * 3, [[2, -1]] * 3, [1] * 3, [0.0, 0.5], toy().training)
    np.testing.assert_allclose(
        trajectory(here, "fedtrip", 6, mu=1, first="init"), trajectory(here, "fedavg", 6), rtol=1e-14
    )


def test_equal_curvature_gives_the_trajectory_of_fedavg() -> None:
    here = quadratics([[2]] * 3, [[0], [1], [5]], [1, 2, 3], [0.0], toy().training)
    mine, theirs = (
        np.array(trajectory(here, n, 8, **s)) for n, s in (("fedtrip", {"mu": 0.7, "first": "init"}), ("fedavg", {}))
    )
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-15)


def test_its_second_round_can_be_scaffolds() -> None:
    (_, (w2,), (w3,)), (_, (s2,), (s3,)) = (
        trajectory(toy(), "fedtrip", 3, mu=1 / (2 * 0.1), first="init"),
        trajectory(toy(), "scaffold", 3),
    )
    assert (w2, s2) == pytest.approx((867 / 2000, 867 / 2000), abs=1e-15)
    assert (w3, s3) == pytest.approx((0.53601, 0.54876), abs=1e-15)


def test_deviations_in_flat_directions_change_by_minus_mu_eta_a_k() -> None:
    training = Training(lr=0.01, momentum=0.9, batch_size=0, steps=12)
    here = quadratics([[0]] * 3, [[0]] * 3, [1] * 3, [1.0], training)  # F = 0
    deviation = np.array([0.4, -0.1, -0.3])
    keep = {
        i: Kept(Client(torch.tensor([1 + v], dtype=torch.float64), torch.tensor(0.0).double()))
        for i, v in enumerate(deviation)
    }
    mu = 0.4
    c = mu * 0.01 * training.travel(12)
    assert training.travel(12) == pytest.approx(55.4187, abs=1e-4)
    for t, result in enumerate(play(here, "fedtrip", 4, keep=keep, mu=mu, first="init"), 1):
        mean = result.snapshot.server.x.item()
        found = [result.kept[i].state.h.item() - mean for i in range(3)]
        np.testing.assert_allclose(found, (-c) ** t * deviation, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("clients", "mean"), [(10, 0.61086), (50, 0.21963)])
def test_the_mean_of_xi_over_the_rounds(clients: int, mean: float) -> None:
    """xi is 1/gap: with 4 participants its mean is p ln p / (p - 1), with p the share of participants."""
    p = 4 / clients
    assert p * np.log(p) / (p - 1) == pytest.approx(mean, abs=5e-6)
    layout = layout_of(nn.Linear(1, 1), torch.zeros(1, 1))
    population, last, xi = Population(np.ones(clients, np.int64), layout), {}, []
    for t in range(1, 8001):
        for client in population.sample(1, t, 4).tolist():
            if client in last:
                xi.append(1 / (t - last[client]))
            last[client] = t
    assert np.mean(xi) == pytest.approx(mean, abs=0.01)


def test_xi_is_never_above_one_and_is_kept_with_the_round() -> None:
    seen, last = set(), {}
    for t, result in enumerate(play(small(), "fedtrip", 12, participate=2, mu=0.1), 1):
        assert 0 <= result.notes["xi"] <= 1
        ids = result.cohort.ids.tolist()
        gaps = [1 / (t - last[client]) if client in last else 0 for client in ids]
        assert result.notes["xi"] == pytest.approx(np.mean(gaps), abs=1e-15)
        last |= dict.fromkeys(ids, t)
        assert all(kept.state.t.item() == t for kept in result.kept.values())
        seen |= set(result.kept)
    assert seen == set(range(5))


def test_a_fixed_xi_leaves_the_first_participation_as_chosen() -> None:
    mine, other = (trajectory(small(**MOMENTUM), "fedtrip", 1, mu=0.3, xi=0.7, first=f) for f in ("prox", "init"))
    assert mine == trajectory(small(**MOMENTUM), "fedprox", 1, mu=0.3)
    assert mine != other


@pytest.mark.parametrize(
    ("training", "steps", "mu"),
    [
        ({"lr": 0.1}, 5, 0.4),  # the limit is 2
        ({"lr": 0.1}, 100, 0.09),  # the limit is 1/10
        ({"lr": 0.05, "momentum": 0.9}, 40, 0.0578),  # A_40 = 311.33, the limit 0.06424
    ],
)
def test_the_default_weight_is_the_papers_or_a_stable_one(training: dict[str, Any], steps: int, mu: float) -> None:
    layout, how = layout_of(nn.Linear(1, 1), torch.zeros(1, 1)), Training(**training)
    method: Any = create("fedtrip").resolved(how, layout, steps)
    assert method.mu == mu
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.check(how, layout, steps)
    assert method.resolved(how, layout, steps) is method


def test_the_default_weight_gives_the_bits_of_the_same_weight_given() -> None:
    settings: dict[str, Any] = {"lr": 0.4, "epochs": 9}
    auto = play(small(**settings), "fedtrip", 3)
    steps = small(**settings).training.steps_for(int(small(**settings).population.samples.max()))
    given = float(f"{0.9 / (0.4 * steps):.3g}")
    assert given < 0.4
    assert trajectory(small(**settings), "fedtrip", 3) == trajectory(small(**settings), "fedtrip", 3, mu=given)
    for runtime in (lambda f: Processes(f, 2), Batched):
        other = play(small(**settings), "fedtrip", 3, runtime=runtime)
        torch.testing.assert_close(other[-1].snapshot.server.x, auto[-1].snapshot.server.x, rtol=1e-10, atol=1e-12)


def test_the_label_says_the_derived_weight_and_seeds_stay_together(tmp_path: Path) -> None:
    ledger = tmp_path / "l.sqlite"
    for seed in (1, 2):
        training = Training(lr=0.1, epochs=20)
        undrift.run("fedtrip", clients=5, rounds=1, seed=seed, ledger=ledger, training=training)
    with Ledger(ledger) as book:
        runs = [History.of(book, run) for run in book.runs()]
    assert all(re.fullmatch(r"FedTrip \(mu=0\.0\d+\)", run.label) for run in runs)
    first, second = sorted({float(run.label[12:-1]) for run in runs})  # each seed has other clients
    (group,), _ = grouped(runs)
    assert group.label == f"FedTrip (mu={first:g}..{second:g})"
    assert all(run.experiment["algorithm"]["mu"] == "auto" for run in runs)


def test_what_the_analysis_forbids_is_refused_or_warned_of() -> None:
    with pytest.raises(InvalidInput, match=r"xi = 1.5.*unbounded below"):
        play(toy(), "fedtrip", 1, xi=1.5)
    with pytest.raises(InvalidInput, match="mu = -1"):
        play(toy(), "fedtrip", 1, mu=-1)
    with pytest.warns(UserWarning, match=r"mu\*lr\*A_K = 1.2 > 1.*below 5 is stable") as found:
        play(toy(), "fedtrip", 4, mu=6)
    assert len(found) == 1  # once a run, not once a round


# --- Table V from Table IV --------------------------------------------------------------------------------------------

METHODS = ("fedtrip", "fedavg", "fedprox", "slowmo", "moon", "feddyn")
ROUNDS = {  # Table IV: rounds to the target, in the order of METHODS
    "MLP MNIST": (28, 49, 53, 46, 25, 28),
    "MLP FMNIST": (9, 19, 16, 26, 14, 17),
    "CNN MNIST": (24, 39, 41, 40, 46, 40),
    "CNN FMNIST": (19, 52, 45, 65, 35, 51),
    "CNN EMNIST": (32, 45, 45, 92, 44, 97),
    "AlexNet CIFAR": (46, 74, 75, 87, 84, 79),
}
GFLOPS = {  # Table V, per client; "21,822" of the paper is 21.822
    "MLP MNIST": (1.441, 2.334, 2.626, 2.191, 3.573, 1.441),
    "MLP FMNIST": (0.772, 1.509, 1.321, 2.064, 3.335, 1.458),
    "CNN MNIST": (6.161, 9.897, 10.465, 10.151, 35.02, 10.269),
    "CNN FMNIST": (8.13, 21.993, 19.144, 27.491, 44.409, 21.822),
    "CNN EMNIST": (41.077, 57.097, 57.431, 116.733, 167.486, 124.513),
    "AlexNet CIFAR": (13446, 21596, 21906, 25392, 73549, 23091),
}
SAMPLES = {"MNIST": 600, "FMNIST": 1000, "EMNIST": 3000, "CIFAR": 2000}


MODELS = {
    "MLP": ("mlp", (1, 28, 28), 79_510),
    "CNN": ("lenet-plain", (1, 28, 28), 61_706),
    "AlexNet": ("alexnet", (3, 32, 32), 2_729_290),
}


@pytest.mark.parametrize("column", ROUNDS)
def test_table_v_follows_from_table_iv(column: str) -> None:
    """The paper counts forward multiply-accumulates and vector operations; from undrift's figures follow its cells."""
    model, data = column.split()
    name, shape, d = MODELS[model]
    module, sample = build(name, shape, 10), torch.zeros(1, *shape)  # EMNIST too is counted with ten classes
    layout = layout_of(module, sample)
    assert layout.size == d
    n = SAMPLES[data]
    training = Training(lr=0.01, batch_size=50, epochs=1)
    one = profile(module, sample).macs(Spent(forwards=1))
    one += convolution_biases(module, sample) if model == "CNN" else 0  # which the paper counts there alone
    for name, rounds, printed in zip(METHODS, ROUNDS[column], GFLOPS[column], strict=True):
        claims = create(name).claims(training, layout, n, layout.classes)
        operations = claims["flops"] if name in ("fedtrip", "fedprox", "feddyn") else 0  # SlowMo's are the server's
        cost = rounds * ((n + claims["forwards"]) * one + operations)
        assert cost / 1e9 == pytest.approx(printed, rel=5e-4), name
