"""Momentum on the server and on the clients, adaptive servers, sharpness-aware methods."""

from __future__ import annotations

from conformance.table import Row

MOMENTUM = {"momentum": 0.5}
EQUAL = {"steps": 3}  # the same K for all clients
UNIFORM = {"weights": "uniform"}
ROUNDING = 2e-6  # the same sums in another order, in single precision

ROWS: list[Row] = [
    Row("fedavgm", {"beta": 0.5}, MOMENTUM, off={"beta": 0.0}, tolerance=ROUNDING),
    Row("slowmo", {"beta": 0.5}, MOMENTUM, off={"beta": 0.0}, tolerance=ROUNDING),
    Row("fedmom", {"beta": 0.5}, MOMENTUM, off={"beta": 0.0}, tolerance=ROUNDING),
    Row("fednag", {"gamma": 0.5}, off={"gamma": 0.0}, tolerance=ROUNDING),
    Row(
        "fastslowmo",
        {"gamma": 0.3, "gamma_a": 0.3},
        off={"gamma_a": 0.0},
        equals="fednag",
        equals_settings={"gamma": 0.3},
    ),
    Row(
        "domo",
        off={"mu_s": 0.0, "mu_l": 0.0, "beta": 0.0},
        equals_settings=UNIFORM,
        off_training=EQUAL,
        tolerance=ROUNDING,
    ),
    Row(
        "domos",
        off={"mu_s": 0.0, "mu_l": 0.0, "beta": 0.0},
        equals_settings=UNIFORM,
        off_training=EQUAL,
        tolerance=ROUNDING,
    ),
    Row(
        "fedadc", {"form": "nesterov"}, off={"beta_g": 0.0, "beta_l": 0.0}, equals_settings=UNIFORM, tolerance=ROUNDING
    ),
    Row("fedadagrad", training=MOMENTUM, always_on="its step is adaptive for every setting"),
    Row("fedadam", training=MOMENTUM, always_on="its step is adaptive for every setting"),
    Row("fedyogi", training=MOMENTUM, always_on="its step is adaptive for every setting"),
    Row("fedexp", {"eps": 1e-6}, MOMENTUM, model="last", off={"eps": 1e6}, tolerance=ROUNDING),
    Row("fedcm", {"alpha": 0.3}, off={"alpha": 1.0}, equals_settings=UNIFORM, tolerance=ROUNDING),
    Row("fedsam", {"rho": 0.1}, MOMENTUM, off={"rho": 0.0}),
    Row("mofedsam", {"rho": 0.1, "alpha": 0.3}, off={"rho": 0.0}, equals="fedcm", equals_settings={"alpha": 0.3}),
    Row("fednova", training=MOMENTUM, off={}, off_training=EQUAL, tolerance=ROUNDING),
    Row(
        "fedspeed",
        {"rho": 0.1, "lambda_p": 0.1},
        MOMENTUM,
        off={"lambda_p": 0.0, "rho": 0.0},
        equals="fedmom",
        equals_settings={"beta": 1.0, **UNIFORM},
        off_participate=6,
        tolerance=ROUNDING,
    ),
    Row(
        "fedsmoo",
        {"rho": 0.1, "lambda_p": 0.1},
        MOMENTUM,
        off={"rho": 0.0},
        equals="fedspeed",
        equals_settings={"rho": 0.0, "lambda_p": 0.1},
        tolerance=ROUNDING,
    ),
    Row(
        "fedmrur",
        {"gamma": 0.5, "sigma": 10.0, "rho": 0.1, "alpha": 0.3},
        off={"gamma": 0.0, "normalise": False},
        equals="mofedsam",
        equals_settings={"rho": 0.1, "alpha": 0.3},
    ),
    Row("pfedmo", {"variant": "velocity"}, off={"pi": 0.0}, equals="fednag"),
]
