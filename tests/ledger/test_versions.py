"""Ledgers of older versions open, report and go on, with the bits they would have had."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

import undrift
from undrift import History, Ledger
from undrift.ledger import schema

VERSIONS = ("version1", "version2")
SETTING = {"model": "logistic", "clients": 3, "participate": 2, "seed": 3}


@pytest.fixture(params=VERSIONS)
def old(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A ledger that an older version wrote."""
    path = tmp_path / "old.sqlite"
    db = sqlite3.connect(path)
    db.executescript(Path(__file__).with_name(f"{request.param}.sql").read_text(encoding="utf-8"))
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    return path


def test_an_old_ledger_opens_and_reports(old: Path) -> None:
    fresh = undrift.run("scaffold", rounds=2, **SETTING)  # type: ignore[arg-type]
    with Ledger(old) as ledger:
        history = History.of(ledger, ledger.run("old"))
    assert history.curve() == fresh.history.curve()
    assert [row.bytes_up for row in history.rounds] == [row.bytes_up for row in fresh.history.rounds]
    assert [row.head_gradients for row in history.rounds] == [0, 0]
    with sqlite3.connect(old) as db:
        assert schema.version_of(db) == schema.VERSION


def test_an_old_ledger_goes_on_with_the_same_bits(old: Path) -> None:
    with pytest.warns(UserWarning, match=rf"its bits may differ: .*undrift 0\.1\.0 then, {undrift.__version__} now"):
        undrift.run("scaffold", rounds=5, ledger=old, name="old", resume=True, **SETTING)  # type: ignore[arg-type]
    fresh = undrift.run("scaffold", rounds=5, **SETTING)  # type: ignore[arg-type]
    with Ledger(old) as ledger:
        assert History.of(ledger, ledger.run("old")).curve() == fresh.history.curve()


def test_what_the_head_alone_was_trained_on_has_its_column(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    result = undrift.run("fedrep", rounds=2, ledger=path, name="r", clients=6, participate=2)
    with Ledger(path) as ledger:
        stored = ledger.rounds(ledger.run("r"))
    assert all(row.head_gradients > 0 for row in stored)
    assert list(result.history.rounds) == stored
