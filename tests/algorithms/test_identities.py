"""Identities between methods: with some settings one method is another, on minibatches and a part of uneven clients.

``exact`` rows share every floating-point operation and are compared bit for bit; the others compute the same numbers in
another order or in other units, and are compared to a few units in the last place.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from undrift.algorithms import create
from worked import play, small

UNIFORM = {"weights": "uniform"}
EQUAL = {"steps": 3}  # the same K for all clients
ONE = {"steps": 1, "batch_size": 0}
DECAY = {"schedule": "exponential", "lr_decay": 0.7}
SLOW = {"lr": 0.2 * 0.3}

Side = tuple[str, dict[str, Any]]


def run(name: str, settings: dict[str, Any], training: dict[str, Any], participate: int = 3) -> list[list[float]]:
    rounds = play(small(**training), name, 5, participate=participate, **settings)
    models = [create(name, **settings).models(r.snapshot.server) for r in rounds]
    return [(m["last"] if name == "fedexp" else m["global"]).tolist() for m in models]


ROWS: list[tuple[Side, Side, dict[str, Any]]] = [
    (("fedavgm", {"beta": 0}), ("fedavg", {}), {}),
    (("slowmo", {"beta": 0}), ("fedavg", {}), {}),
    (("fedmom", {"beta": 0}), ("fedavg", {}), {}),
    (("fednag", {"gamma": 0}), ("fedavg", {}), {}),
    (("fastslowmo", {"gamma": 0, "gamma_a": 0}), ("fedavg", {}), {}),
    (("domo", {"mu_s": 0, "mu_l": 0, "beta": 0}), ("fedavg", UNIFORM), {"training": EQUAL}),
    (("domos", {"mu_s": 0, "mu_l": 0, "beta": 0}), ("fedavg", UNIFORM), {"training": EQUAL}),
    (("fedadc", {"beta_g": 0, "beta_l": 0}), ("fedavg", UNIFORM), {}),
    (("mimelite", {"beta": 0}), ("fedavg", {}), {}),
    (("fedcm", {"alpha": 1}), ("fedavg", UNIFORM), {}),
    (("fednova", {}), ("fedavg", {}), {"training": EQUAL}),
    (("fednova", {}), ("fedavg", {}), {"training": EQUAL | {"momentum": 0.9}}),
    (("fedsam", {"rho": 0}), ("fedavg", {}), {"exact": True}),
    (("slowmo", {"beta": 0.6, "alpha": 0.8}), ("fedavgm", {"beta": 0.6, "server_lr": 0.8}), {}),
    (("slowmo", {"beta": 0.6}), ("fedavgm", {"beta": 0.6 * 0.7}), {"training": DECAY}),
    (("fastslowmo", {"gamma": 0, "gamma_a": 0.6}), ("fedmom", {"beta": 0.6}), {}),
    (("fastslowmo", {"gamma": 0.6, "gamma_a": 0}), ("fednag", {"gamma": 0.6}), {"exact": True}),
    (("pfedmo", {"gamma": 0.6, "pi": 0, "variant": "literal"}), ("fednag", {"gamma": 0.6}), {"exact": True}),
    (("pfedmo", {"gamma": 0.6, "pi": 0, "variant": "interp"}), ("fednag", {"gamma": 0.6}), {"exact": True}),
    (("pfedmo", {"gamma": 0.6, "pi": 0, "variant": "velocity"}), ("fednag", {"gamma": 0.6}), {"exact": True}),
    (("pfedmo", {"gamma": 0, "pi": 0.7, "variant": "literal"}), ("fedavg", {}), {}),
    (
        ("domo", {"mu_s": 0.6, "mu_l": 0.4, "beta": 0, **UNIFORM}),
        ("slowmo", {"beta": 0.6, **UNIFORM}),
        {"training": EQUAL, "right": {"momentum": 0.4}},
    ),
    (
        ("domo", {"mu_s": 0.6, "mu_l": 0.4, "beta": 0, **UNIFORM}),
        ("slowmo", {"beta": 0.6, **UNIFORM}),
        {"training": EQUAL | DECAY, "right": {"momentum": 0.4}},
    ),
    (
        ("domos", {"mu_s": 0.6, "mu_l": 0, "beta": 0.4}),
        ("fedadc", {"beta_g": 0.6, "beta_l": 0.4}),
        {"training": EQUAL | DECAY},
    ),
    (("fedadc", {"beta_g": 0.6, "beta_l": 0}), ("fedavgm", {"beta": 0.6, **UNIFORM}), {}),
    (
        ("fedcm", {"alpha": 0.3}),
        ("fedadc", {"beta_g": 0.7, "beta_l": 0.7}),
        {"training": EQUAL, "right": SLOW},
    ),
    (("fedcm", {"alpha": 0.3}), ("mime", {"beta": 0.7, **UNIFORM}), {"training": ONE}),
    (("fedcm", {"alpha": 0.3}), ("mimelite", {"beta": 0.7, **UNIFORM}), {"training": ONE}),
    (("mofedsam", {"rho": 0, "alpha": 0.3}), ("fedcm", {"alpha": 0.3}), {"exact": True}),
    (("mofedsam", {"rho": 0.5, "alpha": 1}), ("fedsam", {"rho": 0.5, **UNIFORM}), {}),
    (
        ("fedmrur", {"gamma": 0, "normalise": False, "rho": 0.5, "alpha": 0.3}),
        ("mofedsam", {"rho": 0.5, "alpha": 0.3}),
        {"exact": True},
    ),
    (
        ("fedmrur", {"regulariser": False, "normalise": False, "sam": False, "alpha": 0.3}),
        ("fedcm", {"alpha": 0.3}),
        {"exact": True},
    ),
    (
        ("fedmrur", {"gamma": 0, "normalise": False, "rho": 0, "alpha": 0.3}),
        ("fedcm", {"alpha": 0.3}),
        {"exact": True},
    ),
    (("fedmrur", {"gamma": 0, "normalise": False, "rho": 0, "alpha": 1}), ("fedavg", UNIFORM), {}),
    (
        ("fedmrur", {"regulariser": False, "normalise": False, "sam": False, "momentum": False}),
        ("fedavg", UNIFORM),
        {},
    ),
    (("fedmrur", {"rho": 0.5}), ("fedmrur", {"rho": 0.5, "normalise": False}), {"participate": 1}),
    (("fedexp", {"eps": 1e6}), ("fedavg", {}), {}),
    (
        ("fedspeed", {"lambda_p": 0, "rho": 0}),
        ("fedmom", {"beta": 1, **UNIFORM}),
        {"participate": 5},
    ),
    (("fedsmoo", {"rho": 0}), ("fedspeed", {"rho": 0}), {}),
]


@pytest.mark.filterwarnings("ignore:.*its features are its inputs")  # FedMRUR on a linear model
@pytest.mark.parametrize(
    ("left", "right", "how"), ROWS, ids=[f"{left[0]}-{right[0]}-{i}" for i, (left, right, _) in enumerate(ROWS)]
)
def test_one_method_is_another(left: Side, right: Side, how: dict[str, Any]) -> None:
    training, people = how.get("training", {}), how.get("participate", 3)
    ours = run(*left, training, people)
    theirs = run(*right, training | how.get("right", {}), people)
    if how.get("exact"):
        assert ours == theirs
    else:
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-14)
