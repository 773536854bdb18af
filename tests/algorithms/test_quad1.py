"""QUAD-1: three rounds of every method of the momentum family on two quadratics, against numbers worked by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor, float64, tensor, zeros_like

from undrift.algorithms import create
from undrift.algorithms.pfedmo import PFedMo
from undrift.core.federation import Federation
from worked import play, quad1, trajectory

Pair = tuple[float, float]
TOLERANCE = {"rtol": 0, "atol": 1e-11}
UNIFORM = {"weights": "uniform"}
SAMPLES = {"weights": "samples"}
HALF = {"mu_s": 0.5, "mu_l": 0.5, "beta": 0.5, **SAMPLES}
ADAPTIVE = {"server_lr": 0.1, "tau": 1e-3}


def uneven_steps(**training: Any) -> Federation:
    """QUAD-1 with K = (2, 5): 5 and 15 equal samples in batches of 3."""
    return quad1((5, 15), steps=None, epochs=1, batch_size=3, **training)


ROWS: list[tuple[str, Callable[[], Federation], str, dict[str, Any], list[Pair]]] = [
    ("FedAvg", quad1, "fedavg", {}, [(1.4125, 0.625), (1.01153125, 0.3371875), (0.737870078125, 0.11629140625)]),
    ("FedAvg (u)", quad1, "fedavg", UNIFORM, [(1.545, 0.63), (1.215125, 0.36175), (0.975965625, 0.16726875)]),
    (
        "FedAvgM beta .5", quad1, "fedavgm", {"beta": 0.5},
        [(1.4125, 0.625), (0.71778125, 0.1496875), (0.190026328125, -0.26527109375)],
    ),
    (
        "SlowMo beta .5", quad1, "slowmo", {"beta": 0.5},
        [(1.4125, 0.625), (0.71778125, 0.1496875), (0.190026328125, -0.26527109375)],
    ),
    (
        "SlowMo beta .5, r = .5", lambda: quad1(schedule="exponential", lr_decay=0.5), "slowmo", {"beta": 0.5},
        [(1.4125, 0.625), (1.0542890625, 0.382734375), (0.886971309814, 0.261634436035)],
    ),
    (
        "FedMom beta .5", quad1, "fedmom", {"beta": 0.5},
        [(1.11875, 0.4375), (0.5103203125, -0.022578125), (0.188166982422, -0.336383691406)],
    ),
    (
        "FedNAG gamma .5", quad1, "fednag", {"gamma": 0.5},
        [(1.084375, 0.40625), (0.500740234375, -0.05580078125), (0.241794095459, -0.335762829590)],
    ),
    (
        "FastSlowMo .5/.5 position", quad1, "fastslowmo", {"gamma": 0.5, "gamma_a": 0.5, "form": "position"},
        [(0.6265625, 0.109375), (-0.562348144531, -0.861000976563), (-0.986561572113, -1.505222682190)],
    ),
    (
        "FastSlowMo .5/.5 velocity", quad1, "fastslowmo", {"gamma": 0.5, "gamma_a": 0.5, "form": "velocity"},
        [(0.6265625, 0.109375), (-0.137440917969, -0.568764648438), (-0.209636352386, -0.845358180237)],
    ),
    ("DOMO", quad1, "domo", HALF, [(1.25, 0.525), (0.580625, 0.0226875), (0.2063328125, -0.34107046875)]),
    ("DOMO-S", quad1, "domos", HALF, [(1.25, 0.525), (0.4615625, -0.03253125), (-0.025094921875, -0.464277304688)]),
    (
        "FedADC-HB .5/.5", quad1, "fedadc", {"beta_g": 0.5, "beta_l": 0.5, **SAMPLES},
        [(1.4125, 0.625), (0.743484375, 0.16140625), (0.249689707031, -0.235930273438)],
    ),
    (
        "FedADC-HB .7/.5", quad1, "fedadc", {"beta_g": 0.7, "beta_l": 0.5, **SAMPLES},
        [(1.4125, 0.625), (0.625984375, 0.08640625), (-0.041416542969, -0.436367773438)],
    ),
    (
        "FedADC-Nesterov .5/.5", quad1, "fedadc", {"beta_g": 0.5, "beta_l": 0.5, "form": "nesterov", **SAMPLES},
        [(1.4125, 0.625), (0.7901171875, 0.183203125), (0.352194458008, -0.183304443359)],
    ),
    (
        "Mime beta .9", quad1, "mime", {"beta": 0.9, **SAMPLES},
        [(1.93556875, 0.96025), (1.815384736680, 0.885712539062), (1.649192870483, 0.781718153326)],
    ),
    (
        "MimeLite beta .9", quad1, "mimelite", {"beta": 0.9, **SAMPLES},
        [(1.935625, 0.96025), (1.815494078125, 0.88571179375), (1.649349452607, 0.781715283626)],
    ),
    (
        "FedAdam", quad1, "fedadam", {"beta1": 0.9, "beta2": 0.99, **ADAPTIVE},
        [(1.901687502522, 0.902630780456), (1.768880947548, 0.770801343167), (1.614160410484, 0.617186735720)],
    ),
    (
        "FedYogi", quad1, "fedyogi", {"beta1": 0.9, "beta2": 0.99, **ADAPTIVE},
        [(1.901687642516, 0.902631117430), (1.769227541333, 0.771145889664), (1.615337531572, 0.618360399250)],
    ),
    (
        "FedAdagrad", quad1, "fedadagrad", {"beta1": 0.0, **ADAPTIVE},
        [(1.900170067904, 0.900266311112), (1.831531041232, 0.831979319024), (1.776486612258, 0.777374078334)],
    ),
    (
        "FedCM alpha .1 (u)", quad1, "fedcm", {"alpha": 0.1},
        [(1.95045, 0.9603), (1.858113575, 0.88631905), (1.730305184513, 0.783917574675)],
    ),
    (
        "FedSAM rho .5 (u)", quad1, "fedsam", {"rho": 0.5, **UNIFORM},
        [(1.442930941723, 0.528941040611), (1.042438260071, 0.184279150717), (0.764392932589, -0.073913273357)],
    ),
    (
        "MoFedSAM rho .5 (u)", quad1, "mofedsam", {"rho": 0.5, "alpha": 0.1},
        [(1.939367249862, 0.949223531314), (1.826412206024, 0.854567596793), (1.670148199532, 0.723466123144)],
    ),
    (
        "FedMRUR gamma 0, rho .5 (u)", quad1, "fedmrur", {"gamma": 0, "rho": 0.5, "alpha": 0.1},
        [(1.935303234987, 0.945820150739), (1.816935807778, 0.846626097784), (1.654912590795, 0.710683074143)],
    ),
    (
        "FedMRUR gamma 0, rho 0 (u)", quad1, "fedmrur", {"gamma": 0, "rho": 0, "alpha": 0.1},
        [(1.948119721431, 0.958432955415), (1.852731270783, 0.882006689205), (1.721720035685, 0.777039059873)],
    ),
    (
        "FedAvg K=(2,5)", uneven_steps, "fedavg", {},
        [(0.94402, 0.295735), (0.4706664052, -0.128843479888), (0.258480922795, -0.384808046611)],
    ),
    (
        "FedNova K=(2,5)", uneven_steps, "fednova", {},
        [(1.0418545, 0.28662475), (0.591086805288, -0.104081868062), (0.379019311786, -0.318066950104)],
    ),
    (
        "FedNova K=(2,5), momentum .9", lambda: uneven_steps(momentum=0.9), "fednova", {},
        [(-0.164184835009, -0.735614732504), (0.289902662712, -0.537515901458), (0.194626394137, -0.560126418716)],
    ),
    (
        "FedSpeed lambda_p .1, rho 0 (u)", quad1, "fedspeed", {"lambda_p": 0.1, "rho": 0},
        [(1.095, 0.264), (0.2489235, -0.4238556), (-0.324078002250, -0.889424819760)],
    ),
    (
        "FedSpeed lambda_p .1, rho .5 (u)", quad1, "fedspeed", {"lambda_p": 0.1, "rho": 0.5},
        [(0.891979917435, 0.063000115212), (-0.018514368210, -0.669390157408), (-0.462012596989, -1.030374406214)],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("federation", "name", "settings", "expected"), [r[1:] for r in ROWS], ids=[r[0] for r in ROWS]
)
def test_three_rounds(
    federation: Callable[[], Federation], name: str, settings: dict[str, Any], expected: list[Pair]
) -> None:
    np.testing.assert_allclose(trajectory(federation(), name, 3, **settings), expected, **TOLERANCE)


def test_fedexp_steps_like_fedavg_while_the_clients_agree_and_evaluates_the_mean_of_two_models() -> None:
    models = [create("fedexp").models(r.snapshot.server) for r in play(quad1(), "fedexp", 3, eps=0)]
    averaged = trajectory(quad1(), "fedavg", 3)
    np.testing.assert_allclose([m["last"].tolist() for m in models], averaged, **TOLERANCE)
    halves = (np.array([[2, 1], *averaged[:-1]]) + np.array(averaged)) / 2
    np.testing.assert_allclose([m["global"].tolist() for m in models], halves, **TOLERANCE)


def worked_scores(self: PFedMo, server: Any, x: Tensor, x_r: Tensor, cohort: Any) -> tuple[Tensor, Tensor]:
    """Scores given by hand: nothing in the first round, then (0.2, 0.6)."""
    return server.worst, zeros_like(server.s) if cohort.round == 1 else tensor([0.2, 0.6], dtype=float64)


@pytest.mark.filterwarnings("ignore:pFedMo. variant = literal")
@pytest.mark.parametrize(
    ("variant", "expected"),
    [
        ("literal", [(1.084375, 0.40625), (0.514924902344, -0.055382714844), (0.169035342285, -0.313189391846)]),
        ("interp", [(1.084375, 0.40625), (0.692481738281, -0.085788769531), (0.492578179614, -0.355093364429)]),
        ("velocity", [(1.084375, 0.40625), (0.664112402344, -0.086624902344), (0.465041004639, -0.363301680176)]),
    ],
)
def test_pfedmo_with_given_scores(monkeypatch: pytest.MonkeyPatch, variant: str, expected: list[Pair]) -> None:
    monkeypatch.setattr(PFedMo, "scores", worked_scores)
    method = PFedMo(gamma=0.5, pi=1, variant=variant)
    rounds = play(quad1(), "pfedmo", 3, gamma=0.5, pi=1, variant=variant)
    reached = [method.models(r.snapshot.server)["global"].tolist() for r in rounds]
    np.testing.assert_allclose(reached, expected, **TOLERANCE)
    if variant == "literal":
        server = rounds[1].snapshot.server
        models = [method.mix(server, s) for s in server.s]
        points = [x + 0.1 * 0.5 * u for x, u in models]  # y = x + ηγu
        personal = [(0.5064141015625, -0.0556335546875), (0.5177618359375, -0.0552991015625)]
        np.testing.assert_allclose([x.tolist() for x, _ in models], personal, **TOLERANCE)
        momenta = [(0.711386015625, 0.044126640625), (0.853431484375, 0.019801796875)]
        np.testing.assert_allclose([y.tolist() for y in points], momenta, **TOLERANCE)


FEDAVG = (0.149606299213, -0.612903225806)
FEDNAG = (0.153349200952, -0.619880349747)
DOMO = (0.148148148148, -0.610169491525)


@pytest.mark.parametrize(
    ("federation", "name", "settings", "point"),
    [
        (quad1, "fedavg", {}, FEDAVG),
        (quad1, "fedavgm", {"beta": 0.5}, FEDAVG),
        (quad1, "slowmo", {"beta": 0.5}, FEDAVG),
        (quad1, "fedmom", {"beta": 0.5}, FEDAVG),
        (quad1, "fedadc", SAMPLES, FEDAVG),
        (quad1, "fednag", {}, FEDNAG),
        (quad1, "fastslowmo", {}, FEDNAG),
        (quad1, "domo", HALF, DOMO),
        (quad1, "domos", HALF, DOMO),
        (quad1, "fedcm", {"alpha": 0.1, **SAMPLES}, (0.143475126172, -0.601208459215)),
        (quad1, "mime", {"beta": 0.9, **SAMPLES}, (1 / 7, -3 / 5)),
        (quad1, "mimelite", {"beta": 0.9, **SAMPLES}, (0.142918911128, -0.600120763831)),
        (uneven_steps, "fednova", {}, (0.190613011445, -0.577172978534)),
        (quad1, "fedcm", {"alpha": 0.1}, (0.334453781513, -0.334453781513)),
        (quad1, "fedspeed", {"lambda_p": 1, "rho": 0}, (1 / 3, -1 / 3)),
    ],
)
def test_fixed_points(federation: Callable[[], Federation], name: str, settings: dict[str, Any], point: Pair) -> None:
    rounds = 500 if name in ("fedcm", "mime", "mimelite") else 200
    reached = trajectory(federation(), name, rounds, **settings)[-1]
    np.testing.assert_allclose(reached, point, **TOLERANCE)
