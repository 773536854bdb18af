"""Every method of the momentum family against its naive second implementation, over five rounds."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import reference_momentum as reference
from reference_momentum import Array, Problem

from undrift.core.federation import PUBLIC, SCORING, Federation
from worked import batches, play, small, trajectory

pytestmark = pytest.mark.filterwarnings("ignore:pFedMo. variant = literal")
ROUNDS, PARTICIPATE = 5, 3
DECAY = {"schedule": "exponential", "lr_decay": 0.8}
PLAIN = [
    {},
    {"weight_decay": 0.05} | DECAY,
    {"weight_decay": 0.05, "decay_mode": "inner"} | DECAY,
    {"weight_decay": 0.05, "clip": 0.4},
]
MOMENTUM = [
    {"momentum": 0.6, "weight_decay": 0.05} | DECAY,
    {"momentum": 0.6, "nesterov": True, "weight_decay": 0.05, "decay_mode": "inner"},
]


def naive(here: Federation, hidden: int = 0) -> Problem:
    """What the reference may know of a federation."""
    population, training = here.population, here.training
    drawn = lru_cache(lambda t, client: batches(here, client, t + 1))
    return Problem(
        X=here.x.numpy(),
        y=here.y.numpy(),
        start=here.start()[0].numpy(),
        sizes=population.samples.tolist(),
        cohorts=[population.sample(here.seed, t + 1, PARTICIPATE).tolist() for t in range(ROUNDS)],
        rates=[training.lr * training.lr_decay**t for t in range(ROUNDS)],
        batches=drawn,
        public=lambda t, steps: batches(here, PUBLIC, t + 1, steps),
        scoring=here.rows(SCORING).numpy(),
        hidden=hidden,
        decay=training.weight_decay,
        inner=training.decay_mode == "inner",
        momentum=training.momentum,
        nesterov=training.nesterov,
        clip=training.clip or np.inf,
    )


def adaptive(kind: str, beta1: float, v0: float | None = None) -> Callable[[Problem], list[Array]]:
    return lambda p: reference.adaptive(p, kind, 0.1, beta1, 0.95, 1e-2, v0)


SAMPLES, UNIFORM = {"weights": "samples"}, {"weights": "uniform"}
CASES: list[tuple[str, dict[str, Any], Callable[[Problem], list[Array]], bool]] = [  # the last: takes local momentum
    ("fedavgm", {"beta": 0.6, "server_lr": 0.9}, lambda p: reference.fedavgm(p, 0.6, 0.9), True),
    ("slowmo", {"beta": 0.6, "alpha": 0.9}, lambda p: reference.slowmo(p, 0.6, 0.9), True),
    ("fedmom", {"beta": 0.6, "server_lr": 0.9}, lambda p: reference.fedmom(p, 0.6, 0.9), True),
    ("fedadam", {"server_lr": 0.1, "beta1": 0.7, "beta2": 0.95, "tau": 1e-2}, adaptive("adam", 0.7), True),
    ("fedyogi", {"server_lr": 0.1, "beta1": 0.7, "beta2": 0.95, "tau": 1e-2}, adaptive("yogi", 0.7), True),
    ("fedadagrad", {"server_lr": 0.1, "tau": 1e-2}, adaptive("adagrad", 0.0), True),
    ("fedexp", {"eps": 1e-3}, lambda p: reference.fedexp(p, 1e-3), True),
    ("fednova", {}, lambda p: reference.fednova(p, 0.0), True),
    ("fednova", {"mu": 0.3}, lambda p: reference.fednova(p, 0.3), False),
    ("fednag", {"gamma": 0.6}, lambda p: reference.fastslowmo(p, 0.6, 0.0, False), False),
    (
        "fastslowmo",
        {"gamma": 0.6, "gamma_a": 0.3, "form": "position"},
        lambda p: reference.fastslowmo(p, 0.6, 0.3, False),
        False,
    ),
    (
        "fastslowmo",
        {"gamma": 0.6, "gamma_a": 0.7, "form": "velocity"},
        lambda p: reference.fastslowmo(p, 0.6, 0.7, True),
        False,
    ),
    ("domo", {"mu_s": 0.6, "mu_l": 0.4, "beta": 0.7}, lambda p: reference.domo(p, 0.6, 0.4, 0.7, False), False),
    ("domos", {"mu_s": 0.6, "mu_l": 0.4, "beta": 0.7}, lambda p: reference.domo(p, 0.6, 0.4, 0.7, True), False),
    ("fedadc", {"beta_g": 0.7, "beta_l": 0.4}, lambda p: reference.fedadc(p, 0.7, 0.4, False), False),
    (
        "fedadc",
        {"beta_g": 0.7, "beta_l": 0.4, "form": "nesterov"},
        lambda p: reference.fedadc(p, 0.7, 0.4, True),
        False,
    ),
    ("fedcm", {"alpha": 0.3}, lambda p: reference.fedmrur(p, 0.3), False),
    ("mofedsam", {"alpha": 0.3, "rho": 0.2}, lambda p: reference.fedmrur(p, 0.3, 0.2), False),
    ("fedsam", {"rho": 0.2}, lambda p: reference.fedsam(p, 0.2), True),
    ("fedspeed", {"rho": 0.2, "lambda_p": 0.3}, lambda p: reference.fedsmoo(p, 0.2, 0.3, False), True),
    ("fedsmoo", {"rho": 0.2, "lambda_p": 0.3}, lambda p: reference.fedsmoo(p, 0.2, 0.3, True), True),
    (
        "fedmrur",
        {"regulariser": False, "alpha": 0.3, "rho": 0.2},
        lambda p: reference.fedmrur(p, 0.3, 0.2, normalise=True),
        False,
    ),
    ("mime", {"beta": 0.6}, lambda p: [w for w, _ in reference.mime(p, 0.6, False)], False),
    ("mimelite", {"beta": 0.6}, lambda p: [w for w, _ in reference.mime(p, 0.6, True)], False),
]

# Options: each once, with decaying rates and weight decay.
OPTIONS: list[tuple[str, dict[str, Any], Callable[[Problem], list[Array]]]] = [
    ("fedadam", {"server_lr": 0.1, "beta1": 0.7, "beta2": 0.95, "tau": 1e-2, "v0": 0.0}, adaptive("adam", 0.7, 0.0)),
    ("fedyogi", {"server_lr": 0.1, "beta1": 0.7, "beta2": 0.95, "tau": 1e-2, "v0": 0.3}, adaptive("yogi", 0.7, 0.3)),
    ("fedadagrad", {"server_lr": 0.1, "beta1": 0.7, "tau": 1e-2, "v0": 0.3}, adaptive("adagrad", 0.7, 0.3)),
    ("fedexp", {"eps": 1e-3, "eps_scale": "one"}, lambda p: reference.fedexp(p, 1e-3, printed=True)),
    ("fednova", {"gmf": 0.6}, lambda p: reference.fednova(p, 0.0, 0.6)),
    ("fednova", {"gmf": 0.6, "mu": 0.3}, lambda p: reference.fednova(p, 0.3, 0.6)),
    (
        "domo",
        {"mu_s": 0.6, "mu_l": 0.4, "beta": 0.7, "alpha": 0.8, **SAMPLES},
        lambda p: reference.domo(p, 0.6, 0.4, 0.7, False, 0.8, uniform=False),
    ),
    (
        "domos",
        {"mu_s": 0.6, "mu_l": 0.4, "beta": 0.7, "alpha": 0.8, **SAMPLES},
        lambda p: reference.domo(p, 0.6, 0.4, 0.7, True, 0.8, uniform=False),
    ),
    (
        "fedadc",
        {"beta_g": 0.7, "beta_l": 0.4, "alpha": 0.8, **SAMPLES},
        lambda p: reference.fedadc(p, 0.7, 0.4, False, 0.8, uniform=False),
    ),
    (
        "mime",
        {"beta": 0.6, "server_lr": 0.8, **UNIFORM},
        lambda p: [w for w, _ in reference.mime(p, 0.6, False, 0.8, uniform=True)],
    ),
    (
        "mimelite",
        {"beta": 0.6, "server_lr": 0.8, **UNIFORM},
        lambda p: [w for w, _ in reference.mime(p, 0.6, True, 0.8, uniform=True)],
    ),
    (
        "fedcm",
        {"alpha": 0.3, "server_lr": 0.8, **SAMPLES},
        lambda p: reference.fedmrur(p, 0.3, server_lr=0.8, uniform=False),
    ),
    (
        "mofedsam",
        {"alpha": 0.3, "rho": 0.2, "server_lr": 0.8, **SAMPLES},
        lambda p: reference.fedmrur(p, 0.3, 0.2, server_lr=0.8, uniform=False),
    ),
    (
        "fedmrur",
        {"regulariser": False, "alpha": 0.3, "rho": 0.2, "server_lr": 0.8, **SAMPLES},
        lambda p: reference.fedmrur(p, 0.3, 0.2, normalise=True, server_lr=0.8, uniform=False),
    ),
    (
        "fedspeed",
        {"rho": 0.2, "lambda_p": 0.3, **SAMPLES},
        lambda p: reference.fedsmoo(p, 0.2, 0.3, False, uniform=False),
    ),
    (
        "fedsmoo",
        {"rho": 0.2, "lambda_p": 0.3, **SAMPLES},
        lambda p: reference.fedsmoo(p, 0.2, 0.3, True, uniform=False),
    ),
]


@pytest.mark.parametrize(
    ("name", "settings", "second", "training"),
    [
        pytest.param(name, settings, second, training, id=f"{name}-{i}-{j}")
        for i, (name, settings, second, momentum) in enumerate(CASES)
        for j, training in enumerate(PLAIN + (MOMENTUM if momentum else []))
    ],
)
def test_softmax_regression(
    name: str, settings: dict[str, Any], second: Callable[[Problem], list[Array]], training: dict[str, Any]
) -> None:
    here = small(**training)
    mine = trajectory(here, name, ROUNDS, participate=PARTICIPATE, **settings)
    np.testing.assert_allclose(mine, second(naive(here)), rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "settings", "second"), OPTIONS, ids=[f"{name}-{i}" for i, (name, _, _) in enumerate(OPTIONS)]
)
def test_options(name: str, settings: dict[str, Any], second: Callable[[Problem], list[Array]]) -> None:
    here = small(weight_decay=0.05, **DECAY)
    mine = trajectory(here, name, ROUNDS, participate=PARTICIPATE, **settings)
    np.testing.assert_allclose(mine, second(naive(here)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("training", [{}, {"weight_decay": 0.05} | DECAY, *MOMENTUM])
def test_fedexp_extrapolates_in_these_comparisons(training: dict[str, Any]) -> None:
    here = small(**training)
    rates, printed = (
        [r.notes["server_lr"] for r in play(here, "fedexp", ROUNDS, PARTICIPATE, eps=1e-3, eps_scale=scale)]
        for scale in ("cohort", "one")
    )
    assert max(rates) > 1.05
    assert np.max(np.abs(np.subtract(rates, printed))) > 1e-3  # and ε matters


@pytest.mark.parametrize("lite", [False, True])
def test_mimes_momentum(lite: bool) -> None:
    here = small(weight_decay=0.05, decay_mode="inner", **DECAY)
    rounds = play(here, "mimelite" if lite else "mime", ROUNDS, participate=PARTICIPATE, beta=0.6)
    momenta = [m for _, m in reference.mime(naive(here), 0.6, lite)]
    np.testing.assert_allclose([r.snapshot.server.m.tolist() for r in rounds], momenta, rtol=0, atol=1e-11)


ALONE: list[tuple[str, dict[str, Any]]] = [  # what one part of FedMRUR is, without the other three
    ("regulariser", {"alpha": 1.0, "gamma": 0.5}),
    ("sam", {"alpha": 1.0, "rho": 0.2}),
    ("momentum", {"alpha": 0.3}),
    ("normalise", {"alpha": 1.0, "normalise": True}),
]


@pytest.mark.parametrize(("part", "without"), ALONE, ids=[part for part, _ in ALONE])
def test_the_parts_of_fedmrur_alone(part: str, without: dict[str, Any]) -> None:
    here, settings = small(hidden=5), {"gamma": 0.5, "sigma": 3.0, "beta": 0.7, "rho": 0.2, "alpha": 0.3}
    switches = {name: name == part for name, _ in ALONE}
    mine = trajectory(here, "fedmrur", ROUNDS, participate=PARTICIPATE, **switches, **settings)
    second = reference.fedmrur(naive(here, 5), **{"sigma": 3.0, "beta": 0.7} | without)
    np.testing.assert_allclose(mine, second, rtol=0, atol=1e-11)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("training", PLAIN)
def test_fedmrur_on_a_net(reduction: str, training: dict[str, Any]) -> None:
    here = small(hidden=5, **training)
    settings = {"gamma": 0.5, "sigma": 3.0, "beta": 0.7, "rho": 0.2, "alpha": 0.3}
    mine = trajectory(here, "fedmrur", ROUNDS, participate=PARTICIPATE, reduction=reduction, **settings)
    second = reference.fedmrur(naive(here, 5), normalise=True, mean=reduction == "mean", **settings)
    np.testing.assert_allclose(mine, second, rtol=0, atol=1e-11)
    without = trajectory(here, "fedmrur", ROUNDS, participate=PARTICIPATE, **settings | {"gamma": 0.0})
    assert not np.allclose(mine, without, atol=1e-4)  # the regulariser matters here


@pytest.mark.parametrize("variant", ["literal", "interp", "velocity"])
@pytest.mark.parametrize("training", PLAIN)
def test_pfedmo_on_a_net(variant: str, training: dict[str, Any]) -> None:
    here = small(hidden=5, **training)
    settings = {"gamma": 0.6, "pi": 0.8, "variant": variant}
    rounds = play(here, "pfedmo", ROUNDS, participate=PARTICIPATE, **settings)
    mine = trajectory(here, "pfedmo", ROUNDS, participate=PARTICIPATE, **settings)
    path, representation, scores = reference.pfedmo(naive(here, 5), **settings)
    servers = [r.snapshot.server for r in rounds]
    np.testing.assert_allclose([s.s.tolist() for s in servers], scores, rtol=0, atol=1e-11)
    np.testing.assert_allclose([s.x_r.tolist() for s in servers], representation, rtol=0, atol=1e-11)
    np.testing.assert_allclose(mine, path, rtol=0, atol=1e-11)
    assert np.max(scores) > 0.01  # the representation model matters here


@pytest.mark.parametrize("variant", ["literal", "interp", "velocity"])
@pytest.mark.parametrize(("option", "value"), [("repr_reset", True), ("weights", "uniform")])
def test_options_of_pfedmo(variant: str, option: str, value: Any) -> None:
    here, settings = small(hidden=5, **DECAY), {"gamma": 0.6, "pi": 0.8, "variant": variant}
    rounds = play(here, "pfedmo", ROUNDS, participate=PARTICIPATE, **settings, **{option: value})
    mine = trajectory(here, "pfedmo", ROUNDS, participate=PARTICIPATE, **settings, **{option: value})
    with_option = {"uniform": True} if option == "weights" else {option: value}
    path, representation, scores = reference.pfedmo(naive(here, 5), **settings, **with_option)
    np.testing.assert_allclose([r.snapshot.server.s.tolist() for r in rounds], scores, rtol=0, atol=1e-11)
    np.testing.assert_allclose([r.snapshot.server.x_r.tolist() for r in rounds], representation, rtol=0, atol=1e-11)
    np.testing.assert_allclose(mine, path, rtol=0, atol=1e-11)
    usual = trajectory(here, "pfedmo", ROUNDS, participate=PARTICIPATE, **settings)
    assert not np.allclose(mine, usual, rtol=0, atol=1e-5)  # the option matters here
