"""FedProx: switched off, with one step, and with exact local solutions."""

from __future__ import annotations

import numpy as np
import pytest

from worked import quadratics, small, toy, trajectory

A, B = np.array([1.0, 3.0]), np.array([0.0, 1.0])


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_without_weight_or_with_one_step_it_is_fedavg_bit_for_bit(mu: float) -> None:
    training = {"momentum": 0.9, "weight_decay": 0.01} | ({"steps": 1} if mu else {})
    mine = trajectory(small(**training), "fedprox", 4, participate=3, mu=mu)
    assert mine == trajectory(small(**training), "fedavg", 4, participate=3)


def test_exact_local_solutions() -> None:
    mu, w = 0.5, 0.2
    here = quadratics([[1], [3]], [[0], [1]], [1, 1], [w], toy(steps=250).training)
    (first,), *_, (last,) = trajectory(here, "fedprox", 25, mu=mu)
    assert first == pytest.approx(np.mean((A * B + mu * w) / (A + mu)), abs=1e-14)
    assert last == pytest.approx(np.sum(A * B / (A + mu)) / np.sum(A / (A + mu)), abs=1e-12)


def test_an_infinite_weight_stops_the_clients() -> None:
    mu = 1e5
    here = quadratics([[1], [3]], [[0], [1]], [1, 1], [2.0], toy(steps=1000, lr=1e-6).training)
    ((w,),) = trajectory(here, "fedprox", 1, mu=mu)
    assert 0 < 2 - w < 10 / mu
