"""TOY: two scalar clients with losses x²/2 and 3/2 (x - 1)², two steps of 0.1, exact rationals worked out by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from worked import toy, trajectory

F = Fraction
ROWS: list[tuple[str, dict[str, Any], list[Fraction | str], float | None]] = [
    ("fedavg", {}, [F(51, 200), F(1683, 4000), "0.5284875"], 51 / 70),
    ("fedprox", {"mu": 1}, [F(6, 25), F(501, 1250), "0.508536"], 8 / 11),
    ("fedprox", {"mu": 2}, [F(9, 40), F(1521, 4000), F(194949, 400000)], None),
    ("fedtrip", {"mu": 1, "first": "prox"}, [F(6, 25), F(2067, 5000), "0.525444"], 0.7319102749638205),
    ("fedtrip", {"mu": 1, "first": "init"}, [F(51, 200), F(4233, 10000), "0.531828"], 0.7319102749638205),
    ("scaffold", {"server_lr": 1}, [F(51, 200), F(867, 2000), "0.54876"], 3 / 4),
    ("feddyn", {"alpha": 1}, [F(12, 25), F(504, 625), "0.94848"], 3 / 4),
    ("feddyn", {"alpha": 2}, [F(9, 20), F(711, 1000), F(20511, 25000)], 3 / 4),
    ("feddc", {"alpha": 1}, [F(12, 25), F(519, 625), "0.97704"], 3 / 4),
    ("feddane", {"mu": 0}, [F(27, 100), F(1107, 2500), "0.553392"], 3 / 4),
    ("feddane", {"mu": 1}, [F(51, 200), F(4233, 10000), "0.534378"], 3 / 4),
    ("mime", {"beta": 0}, [F(27, 100), F(1107, 2500), "0.553392"], 3 / 4),
    ("mime", {"beta": 0.5}, [F(57, 400), F(13167, 40000), F(2009877, 4000000)], 3 / 4),
    ("mimelite", {"beta": 0.5}, [F(111, 800), F(4131, 12800), F(2532687, 5120000)], None),
    (
        "fedtr",
        {"alpha": 2, "eta_d": 0.05, "lam_r": 0},
        [F(1917, 10000), F(15594903, 50000000), "0.387827542188"],
        None,
    ),
    (
        "fedtr",
        {"alpha": 2, "eta_d": 0.05, "lam_r": 0, "order": "together"},
        [F(21, 100), F(7017, 20000), F(223137, 500000)],
        None,
    ),
    ("fedtr", {"alpha": 2, "eta_d": 0, "lam_r": 0}, [F(9, 40), F(1521, 4000), F(194949, 400000)], None),
    ("fedtr", {"drift": "dual", "alpha": 2, "lam_r": 0}, [F(9, 20), F(711, 1000), F(20511, 25000)], 3 / 4),
]


@pytest.mark.parametrize(("name", "settings", "values"), [row[:3] for row in ROWS])
def test_the_first_rounds(name: str, settings: dict[str, Any], values: list[Fraction | str]) -> None:
    found = [w for (w,) in trajectory(toy(), name, len(values), **settings)]
    assert found == pytest.approx([float(F(v)) for v in values], rel=0, abs=1e-11)


@pytest.mark.parametrize(("name", "settings", "limit"), [(n, s, lim) for n, s, _, lim in ROWS if lim is not None])
def test_the_limit(name: str, settings: dict[str, Any], limit: float) -> None:
    ((found,),) = trajectory(toy(), name, 300, **settings)[-1:]
    assert found == pytest.approx(limit, rel=0, abs=1e-11)


def test_mimelite_is_biased() -> None:
    ((found,),) = trajectory(toy(), "mimelite", 300, beta=0.5)[-1:]
    assert abs(found - 3 / 4) > 1e-3
