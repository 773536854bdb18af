"""Recorders: what a run leaves behind in memory, in a ledger and at a tracker is the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import undrift
from undrift.core.errors import InvalidInput
from undrift.experiment import recorder
from undrift.ledger.rows import Entry, Run
from undrift.ledger.store import Ledger

SMALL: dict[str, Any] = {"clients": 4, "participate": 2, "rounds": 3, "seed": 1}


class Notes:
    """A tracker that keeps what it hears."""

    def __init__(self, run: Run) -> None:
        self.run, self.heard, self.closed = run, list[int](), ""

    def __call__(self, entry: Entry) -> None:
        self.heard.append(entry.round)

    def close(self, status: str = "finished") -> None:
        self.closed = status


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[Notes]:
    """The trackers that were made, instead of packages that may not be installed."""
    made: list[Notes] = []

    def make(kind: str, run: Run) -> Notes:
        made.append(Notes(run))
        return made[-1]

    monkeypatch.setattr(recorder, "available", lambda kind: None)
    monkeypatch.setattr(recorder, "tracker", make)
    return made


def test_memory_and_ledger_remember_the_same(tmp_path: Path) -> None:
    here = undrift.run("scaffold", **SMALL)
    there = undrift.run("scaffold", ledger=tmp_path / "l.sqlite", **SMALL)
    assert sorted(here.history.metrics) == sorted(there.history.metrics)
    assert here.history.label == there.history.label
    for mine, theirs in zip(here.history.rounds, there.history.rounds, strict=True):
        assert replace(mine, seconds=0, client_seconds=0) == replace(theirs, seconds=0, client_seconds=0)


@pytest.mark.parametrize("stored", [False, True])
def test_a_tracker_hears_every_round_with_a_ledger_and_without(
    tmp_path: Path, notes: list[Notes], stored: bool
) -> None:
    undrift.run("fedavg", track="mlflow", name="mine", ledger=tmp_path / "l.sqlite" if stored else None, **SMALL)
    (one,) = notes
    assert one.heard == [1, 2, 3]
    assert one.closed == "finished"
    assert one.run.name == "mine"
    assert one.run.experiment["algorithm"]["name"] == "fedavg"


def test_a_tracker_hears_only_what_is_played_when_a_run_goes_on(tmp_path: Path, notes: list[Notes]) -> None:
    def stop(where: Any) -> None:
        if where.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        undrift.run("fedavg", track="mlflow", name="mine", ledger=tmp_path / "l.sqlite", watch=stop, **SMALL)
    undrift.run("fedavg", track="mlflow", name="mine", ledger=tmp_path / "l.sqlite", resume=True, **SMALL)
    assert [(one.heard, one.closed, one.run.rounds) for one in notes] == [([1, 2], "stopped", 0), ([3], "finished", 2)]


def test_a_run_that_fails_is_recorded_as_failed(tmp_path: Path) -> None:
    def fail(where: Any) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        undrift.run("fedavg", name="mine", ledger=tmp_path / "l.sqlite", watch=fail, **SMALL)
    with Ledger(tmp_path / "l.sqlite") as book:
        assert (book.run("mine").status, book.run("mine").message) == ("failed", "RuntimeError: no more")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"algorithm": undrift.algorithms.algorithms()["fedprox"]}, r"FedProx is a class: give an object"),
        ({"algorithm": 3}, "a name or a method's object"),
        ({"training": {}}, r"training must be an undrift.Training\(lr=..., epochs=...\), not dict"),
        ({"data": ([[1.0]], [0])}, r"Dataset.from_arrays\(x, y\)"),
        ({"data": 3}, "a name or a Dataset"),
        ({"partition": 3}, "a partitioner's object"),
        ({"track": "mlflo"}, "did you mean 'mlflow'"),
    ],
)
def test_what_cannot_be_used_in_python_gets_a_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        undrift.run(**given, rounds=1)


def test_a_regression_has_a_value_and_no_accuracy() -> None:
    import numpy as np

    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    data = undrift.Dataset.from_arrays(x, x.sum(axis=1, keepdims=True), regression=True)
    result = undrift.run("fedavg", data=data, model="mlp", partition="iid", clients=3, rounds=2)
    assert result.value == result.history.final
    assert result.figure.metric == "loss"
    with pytest.raises(InvalidInput, match="this run has no accuracy: it is judged by the loss of the global model"):
        _ = result.accuracy
    assert "%" not in repr(result)
    assert "accuracy" in repr(undrift.run("fedavg", **SMALL))
