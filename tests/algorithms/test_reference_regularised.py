"""undrift against the naive implementations: uneven clients, partial participation, momentum and weight decay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference_regularised as reference

from recording import states
from worked import batches, play, small

ROUNDS, PARTICIPATE = 5, 3
PLAIN: dict[str, Any] = {"weight_decay": 0.02, "lr": 0.05}  # for methods that refuse momentum
USUAL: dict[str, Any] = PLAIN | {"momentum": 0.9}
SLOWER: dict[str, Any] = {"schedule": "exponential", "lr_decay": 0.8}  # every rule uses the rate of its round
ADM: dict[str, Any] = {"alpha": 0.3, "xi": 0.1, "mu": 0.2, "phi": 0.025, "tau_max": 20}
COSTS: dict[str, Any] = {"step_cost": (0.2,), "step_sd": (0.0,), "round_cost": (0.9,), "round_sd": (0.0,)}
TWO: dict[str, Any] = {"step_cost": (0.2, 1.0), "step_sd": (0.0, 0.0), "round_cost": (0.9, 0.3), "round_sd": (0.0, 0.0)}

Row = tuple[str, int, dict[str, Any], dict[str, Any]]
ROWS: list[Row] = [
    ("fedavg", 0, USUAL, {}),
    ("fedavg", 5, USUAL, {}),
    ("fedavg", 0, USUAL, {"server_lr": 0.7, "weights": "uniform"}),
    ("central", 5, USUAL, {}),
    ("fedprox", 0, USUAL, {"mu": 0.4}),
    ("fedtrip", 0, USUAL, {"mu": 0.3}),
    ("fedtrip", 0, USUAL, {"mu": 0.3, "first": "init"}),
    ("fedtrip", 0, USUAL, {"mu": 0.3, "first": "init", "xi": 0.7}),
    ("fedtrip", 0, USUAL, {"mu": 0.3, "first": "prox", "xi": 0.7}),
    ("scaffold", 0, USUAL, {}),
    ("scaffold", 0, USUAL, {"weights": "samples", "server_lr": 0.7}),
    ("scaffold", 0, USUAL, {"option": "I"}),
    ("fedpvr", 5, USUAL, {}),
    ("fedpvr", 5, USUAL, {"weights": "samples"}),
    ("feddyn", 0, USUAL, {"alpha": 0.4}),
    ("feddyn", 0, USUAL, {"alpha": 0.4, "weights": "samples"}),
    ("feddyn", 0, USUAL, {"alpha": 0.4, "follow": True}),
    ("feddc", 0, USUAL, {"alpha": 0.4}),
    ("feddc", 0, USUAL, {"alpha": 0.4, "weights": "samples"}),
    ("feddc", 0, USUAL, {"alpha": 0.4, "correct": False}),
    ("feddane", 0, USUAL, {"mu": 0.3}),
    ("mime", 0, PLAIN, {"beta": 0.6}),
    ("mime", 0, PLAIN, {"beta": 0.6, "server_lr": 0.7}),
    ("mimelite", 0, PLAIN, {"beta": 0.6}),
    ("mimelite", 0, PLAIN, {"beta": 0.6, "server_lr": 0.7}),
    ("moon", 5, USUAL, {"mu": 0.8, "temperature": 0.5}),
    ("moon", 5, USUAL, {"mu": 0.8, "temperature": 0.5, "history": 2}),
    ("fedntd", 5, USUAL, {"beta": 0.8, "temperature": 1.5}),
    ("fedgkd", 5, USUAL, {"gamma": 0.8, "temperature": 1.5, "history": 1}),
    ("fedgkd", 5, USUAL, {"gamma": 0.8, "temperature": 1.5, "history": 3}),
    ("fedgkd", 5, USUAL, {"gamma": 0.8, "temperature": 1.5, "history": 2, "distance": "mse"}),
    ("fedtr", 5, USUAL, {"alpha": 0.4, "lam_r": 0.9, "eta_d": 0.05}),
    ("fedtr", 5, USUAL, {"alpha": 0.4, "lam_r": 0.9, "eta_d": 0.05, "order": "together"}),
    ("fedtr", 5, USUAL, {"alpha": 0.4, "lam_r": 0.9, "drift": "dual", "reduction": "mean"}),
    ("fedtr", 5, USUAL, {"alpha": 0.4, "lam_r": 0.2, "eta_d": 0.05, "share": "extractor", "reduction": "sum"}),
    ("fedtr", 5, USUAL, {"alpha": 0.4, "lam_r": 0.9, "drift": "dual", "share": "extractor"}),
    ("fedrep", 5, USUAL, {"head_epochs": 3}),
    ("fedrep", 5, USUAL, {"head_epochs": 1, "body_epochs": 3}),
    ("fedproto", 5, USUAL, {"lam": 0.9}),
    ("fedproto", 5, USUAL, {"lam": 0.9, "average": "samples"}),
    ("local", 5, USUAL, {}),
    ("fedadm", 0, PLAIN, ADM | {"tau": 3}),
    ("fedadm", 0, PLAIN, ADM | {"anchor": "latest"}),
    ("fedadm", 5, PLAIN, ADM),
    ("fedadm", 0, PLAIN, ADM | {"form": "printed"}),
    ("fedadm", 0, PLAIN, ADM | {"budget": (7.0,)}),
    ("fedadm", 0, PLAIN, ADM | {"weights": "uniform"}),
    ("fedadm", 0, PLAIN, ADM | TWO | {"budget": (60.0, 40.0)}),
]


def title(row: Row) -> str:
    name, hidden, _, settings = row
    return "-".join([name, "net" if hidden else "softmax", *[f"{k}={v}" for k, v in settings.items()]])


@pytest.mark.parametrize("schedule", [{}, SLOWER], ids=["constant", "slower"])
@pytest.mark.parametrize(("name", "hidden", "training", "settings"), ROWS, ids=[title(row) for row in ROWS])
def test_agrees_with_plain_numpy(
    name: str, hidden: int, training: dict[str, Any], settings: dict[str, Any], schedule: dict[str, Any]
) -> None:
    here = small(hidden, **training | schedule)
    here = here.pooled() if name == "central" else here
    problem = reference.Problem(
        X=here.x.numpy(),
        y=here.y.numpy(),
        rows=[here.rows(i).numpy() for i in range(here.population.size)],
        cohorts=[here.population.sample(here.seed, t, PARTICIPATE).tolist() for t in range(1, ROUNDS + 1)],
        batches=lambda client, t, steps: batches(here, client, t, steps),
        w0=here.start()[0].numpy(),
        hidden=hidden,
        lr=here.training.lr,
        rho=here.training.momentum,
        decay=here.training.weight_decay,
        lr_decay=here.training.lr_decay,
    )
    theirs = dict(settings)
    if name == "fedadm":
        settings = {"budget": (60.0,)} | COSTS | settings
        theirs = {k: v for k, v in settings.items() if k not in TWO}
        theirs |= {"c": settings["step_cost"], "b": settings["round_cost"]}
    servers, kept = getattr(reference, name)(problem, **theirs)
    played = play(here, name, ROUNDS, PARTICIPATE, **settings)
    for result, expected in zip(played, servers, strict=True):
        for field, value in expected.items():
            found = getattr(result.snapshot.server, field)
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-11, err_msg=field)
    _, states_ = states(here, name, ROUNDS, PARTICIPATE, **settings)
    for client, fields in kept.items():
        for field, value in fields.items():
            np.testing.assert_allclose(getattr(states_[client], field), value, rtol=0, atol=1e-11, err_msg=field)


def test_the_reference_has_correct_gradients() -> None:
    here = small(5)
    problem = reference.Problem(
        here.x.numpy(), here.y.numpy(), [], [], lambda *_: [], here.start()[0].numpy(), 5, 0.1, 0.0, 0.0
    )
    rows, w, e = np.arange(6), problem.w0, 1e-6
    for k in range(len(w)):
        step = e * (np.arange(len(w)) == k)
        slope = (problem.loss(w + step, rows) - problem.loss(w - step, rows)) / (2 * e)
        assert problem.grad(w, rows)[k] == pytest.approx(slope, abs=1e-8)
