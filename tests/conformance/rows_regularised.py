"""Averaging, regularisation, control variates, personal heads; and the two reference lines."""

from __future__ import annotations

from conformance.table import Row

MOMENTUM = {"momentum": 0.5}
FULL_BATCH = {"batch_size": 0, "steps": 3, "epochs": 1}
ROUNDING = 2e-6  # the same sums in another order, in single precision

ROWS = [
    Row("fedavg", training=MOMENTUM, always_on="it is what the others are compared with"),
    Row("fedprox", {"mu": 0.3}, MOMENTUM, off={"mu": 0.0}),
    Row("fedtrip", {"mu": 0.3}, MOMENTUM, off={"mu": 0.0}),
    Row("moon", {"mu": 0.5}, MOMENTUM, off={"mu": 0.0}),
    Row("fedntd", {"beta": 0.5}, MOMENTUM, off={"beta": 0.0}),
    Row("fedgkd", {"gamma": 0.5, "history": 2}, MOMENTUM, off={"gamma": 0.0}),
    Row(
        "fedtr",
        {"alpha": 0.2, "lam_r": 0.5, "eta_d": 0.05},
        MOMENTUM,
        off={"alpha": 0.0, "lam_r": 0.0},
    ),
    Row(
        "fedadm",
        {"tau": 3, "alpha": 0.1, "xi": 0.05, "budget": (1e6,)},
        model="latest",
        off={"alpha": 0.0},
        off_training=FULL_BATCH,
        tolerance=ROUNDING,  # its first batch has another order than FedAvg's
    ),
    Row(
        "scaffold",
        training=MOMENTUM,
        off={},
        equals_settings={"weights": "uniform"},
        off_rounds=1,  # with all variates 0
        tolerance=ROUNDING,
    ),
    Row(
        "feddyn",
        {"alpha": 0.3},
        off={},
        equals="feddc",
        equals_settings={"alpha": 0.3, "correct": False},
        tolerance=ROUNDING,
    ),
    Row(
        "feddc",
        {"alpha": 0.3},
        MOMENTUM,
        off={"correct": False},
        equals="feddyn",
        equals_settings={"alpha": 0.3},
        tolerance=ROUNDING,
    ),
    Row("fedpvr", training=MOMENTUM, off={}, equals="scaffold", off_problem="logistic", tolerance=ROUNDING),
    Row(
        "feddane",
        {"mu": 0.1},
        off={"mu": 0.0},
        equals="mime",
        equals_settings={"beta": 0.0},
        off_training=FULL_BATCH,
        tolerance=ROUNDING,
    ),
    Row(
        "mime",
        {"beta": 0.5},
        off={"beta": 0.0},
        equals="feddane",
        equals_settings={"mu": 0.0},
        off_training=FULL_BATCH,
        tolerance=ROUNDING,
    ),
    Row("mimelite", {"beta": 0.5}, off={"beta": 0.0}),
    Row("fedrep", {"head_epochs": 2}, MOMENTUM, always_on="its heads are never shared"),
    Row("fedproto", {"lam": 0.5}, MOMENTUM, off={"lam": 0.0}, equals="local"),
    Row("local", training=MOMENTUM, always_on="a reference line"),
    Row("central", training=MOMENTUM, always_on="a reference line"),
]
