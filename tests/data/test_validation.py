"""A share of every client's training data that nobody trains on, and what a model is worth on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import undrift
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.core.figure import VALIDATION, Figure
from undrift.data import PARTITIONERS, load
from undrift.data.public import divide, set_apart
from undrift.ledger.history import History
from undrift.ledger.store import Ledger

DIGITS = load("digits")


def test_a_share_of_everybody() -> None:
    whole = divide(DIGITS, PARTITIONERS["dirichlet"].create(alpha=0.5), 10, 1).partition
    found = divide(DIGITS, PARTITIONERS["dirichlet"].create(alpha=0.5), 10, 1, validation=0.1)
    assert found.validation is not None
    assert not set(found.partition.indices) & set(found.validation.indices)
    for i in range(10):
        assert sorted([*found.partition[i], *found.validation[i]]) == whole[i].tolist()
        assert len(found.validation[i]) == min(int(len(whole[i]) * 0.1 + 0.5), len(whole[i]) - 1)


def test_public_data_are_no_part_of_it() -> None:
    found = divide(DIGITS, PARTITIONERS["iid"].create(), 5, 1, holder="server", share=0.1, validation=0.2)
    assert found.validation is not None
    assert found.public is not None
    assert not set(found.public) & {*found.partition.indices, *found.validation.indices}


def test_nobody_trains_on_what_somebody_set_apart() -> None:
    shared = PARTITIONERS["fedtrip-dirichlet"].create(samples=100).split(DIGITS, 8, 1)
    assert len(np.unique(shared.indices)) < len(shared.indices)
    train, held = set_apart(shared, 0.1, 1)
    assert not set(train.indices) & set(held.indices)
    assert held.sizes.tolist() == [10] * 8


def test_nothing_left() -> None:
    everything = PARTITIONERS["fedadm"].create(case=3).split(np.arange(20) % 2, 20, 1)
    with pytest.raises(InvalidInput, match=r"validation = 0.5: client 0 would have nothing left"):
        set_apart(everything, 0.5, 1)


@pytest.mark.parametrize("runtime", ["serial", "processes", "batched"])
def test_the_model_is_judged_on_it(runtime: str) -> None:
    options: dict[str, Any] = {"model": "logistic", "clients": 5, "rounds": 3, "runtime": runtime}
    result = undrift.run(validation=0.2, **options)
    chosen = result.history.curve(Figure(data=VALIDATION))[1][-1]
    assert chosen != result.history.curve()[1][-1] == result.accuracy
    held = divide(DIGITS, PARTITIONERS["dirichlet"].create(), 5, 1, validation=0.2).validation
    assert held is not None
    right = chosen * len(held.indices)
    assert right == pytest.approx(round(right), abs=1e-6)
    assert 0.5 < chosen <= 1


def test_without_it_nothing_changes() -> None:
    result = undrift.run(model="logistic", clients=5, rounds=2)
    assert not [figure for figure in result.history.figures if figure.data == VALIDATION]


def test_as_a_flag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--model", "logistic", "--clients", "5", "--rounds", "2", "--name", "one"]
    assert command([*words, "--validation", "0.1", "--ledger", str(tmp_path / "runs.db")]) == 0
    with Ledger(tmp_path / "runs.db") as book:
        run = book.run("one")
        assert Figure(data=VALIDATION) in History.of(book, run).figures
    assert run.experiment["validation"] == 0.1
    assert command([*words, "--validation", "1.5", "--ledger", str(tmp_path / "other.db")]) == 2
