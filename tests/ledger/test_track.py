"""Trackers: which numbers go to TensorBoard and MLflow, and what is said where they are not installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import undrift
from ledgers import add_run, entry
from undrift.core.errors import InvalidInput
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.ledger.track import scalars, tracker


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Ledger(tmp_path / "ledger.sqlite", create=True) as book:
        yield add_run(book, "fedavg", 1, [])


def has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def test_all_numbers_of_a_round_by_name() -> None:
    found = dict(scalars(entry(3, 0.75, notes={"xi": 0.5})))
    assert found["accuracy/global model on test"] == 0.75
    assert found["cost/bytes_up"] == 1000
    assert found["drift/amp"] == 1.1
    assert found["notes/xi"] == 0.5


def test_what_is_not_a_number_is_left_out() -> None:
    found = dict(scalars(entry(3, None, notes={"xi": float("nan")})))
    assert "accuracy/global model on test" not in found
    assert "notes/xi" not in found


@pytest.mark.parametrize(("kind", "module"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_a_missing_package_is_a_sentence(run: Run, tmp_path: Path, kind: str, module: str) -> None:
    if has(module):
        pytest.skip(f"{module} is installed")
    with pytest.raises(InvalidInput, match=rf"pip install 'undrift\[{kind}\]'"):
        tracker(kind, run, tmp_path)
    # It is said before a run begins.
    with pytest.raises(InvalidInput, match="pip install"):
        undrift.run(clients=4, rounds=1, track=kind, watch=lambda where: pytest.fail("nothing may be run"))


def test_an_unknown_tracker_is_a_sentence(run: Run) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'mlflow'"):
        tracker("mlflo", run)


@pytest.mark.skipif(not has("tensorboard"), reason="TensorBoard is not installed")
def test_tensorboard_has_every_round_once_also_after_a_restart(run: Run, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for rounds in ((1, 2), (3,)):
        writer = tracker("tensorboard", replace(run, rounds=rounds[0] - 1), tmp_path / "logs")
        for at in rounds:
            writer(entry(at, at / 10))
        writer.close()
    (folder,) = {path.parent for path in (tmp_path / "logs").rglob("events*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("accuracy/global model on test")] == [1, 2, 3]
