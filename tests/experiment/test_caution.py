"""Who was measured to fall far behind FedAvg by default says so at the start, and on its page."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

import undrift
from undrift.algorithms import algorithms

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| \[.*?\]\(algorithms/(\w+)\.md\).*$", re.M)
ROWS = list(ROW.finditer((DOCS / "defaults.md").read_text(encoding="utf-8")))


def said(method: object, **training: float) -> list[str]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        undrift.run(method, clients=4, rounds=1, training=undrift.Training(steps=1, **training))
    return [str(one.message) for one in heard if "far behind FedAvg" in str(one.message)]


def test_defaults_that_fall_behind_are_said_and_others_are_not() -> None:
    assert "beta = 0.5" in said("fedavgm")[0]
    assert said(undrift.algorithms.FedAvgM(beta=0.5)) == []
    assert said("fedavgm", lr=0.01) == []
    assert said("fedavg") == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
def test_whoever_is_bold_in_the_table_warns_and_has_a_sentence(row: re.Match[str]) -> None:
    behind, kind = "**" in row[0], algorithms()[row[1]]
    page = (DOCS / "algorithms" / f"{row[1]}.md").read_text(encoding="utf-8")
    assert ("By default it can end far behind FedAvg" in page) == behind
    if not behind:
        assert not kind.caution
        return
    with pytest.warns(UserWarning, match=rf"^{kind.title}\b.*(far behind FedAvg|public samples)"):
        undrift.run(row[1], clients=4, rounds=1, training=undrift.Training(steps=1))
