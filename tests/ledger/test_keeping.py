"""Looking after a ledger: deleting and archiving runs, durable ledgers, and going on where something else computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import undrift
from ledgers import add_run
from undrift import History, InvalidInput, Ledger, cli
from undrift.experiment import machine
from undrift.ledger.check import check
from undrift.ledger.rows import Entry, RoundRow

SETTING: dict[str, Any] = {"model": "logistic", "clients": 4, "participate": 2, "seed": 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "l.sqlite"
    with Ledger(place, create=True) as ledger:
        for name in ("compare/fedavg-seed1", "compare/fedavg-seed2", "mine", "mine-too", "other"):
            add_run(ledger, "fedavg", 1, [0.5, 0.6], name=name, clients={0: 0.5})
    return place


def names(path: Path) -> list[str]:
    with Ledger(path) as ledger:
        return [run.name for run in ledger.runs()]


def test_runs_are_deleted_once_that_is_confirmed(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["rm", "compare", "--ledger", str(path)]) == 2  # nobody can be asked here
    assert "say --yes" in capfd.readouterr().err
    assert len(names(path)) == 5
    assert cli.run(["rm", "compare", "m*", "--yes", "--ledger", str(path)]) == 0
    assert "deleted 4 runs" in capfd.readouterr().out
    assert names(path) == ["other"]
    assert not check(path).damage
    assert cli.run(["rm", "nobody", "--yes", "--ledger", str(path)]) == 2
    assert cli.run(["rm", "--yes", "--ledger", str(path)]) == 2
    assert names(path) == ["other"]


def test_deleting_gives_the_room_back(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    undrift.run("scaffold", rounds=3, ledger=place, name="r", clients=20, participate=10, seed=3)
    before = place.stat().st_size
    assert cli.run(["rm", "r", "--yes", "--ledger", str(place)]) == 0
    assert place.stat().st_size < before / 2


def test_a_run_that_is_at_work_is_not_deleted(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Ledger(path) as ledger, ledger.holding(ledger.run("other")):
        assert cli.run(["rm", "other", "--yes", "--ledger", str(path)]) == 2
    assert "being written" in capfd.readouterr().err
    assert "other" in names(path)


def test_an_archived_run_is_all_there_and_goes_on(tmp_path: Path) -> None:
    place, aside = tmp_path / "l.sqlite", tmp_path / "l-archive.sqlite"
    undrift.run("fedavg", rounds=1, ledger=place, name="stays", **SETTING)
    undrift.run("scaffold", rounds=2, ledger=place, name="goes", **SETTING)
    with Ledger(place) as ledger:
        before = ledger.run("goes")
        history, clients = History.of(ledger, before), ledger.client_metrics(before)
    assert cli.run(["archive", "goes", "--ledger", str(place)]) == 0
    assert (names(place), names(aside)) == (["stays"], ["goes"])
    assert not check(place).damage
    assert not check(aside).damage
    with Ledger(aside) as ledger:
        run = ledger.run("goes")
        assert History.of(ledger, run) == history
        assert ledger.client_metrics(run) == clients
        assert (run.created, run.facts) == (before.created, before.facts)
    assert cli.run(["resume", "goes", "--rounds", "4", "--quiet", "--ledger", str(aside)]) == 0
    with Ledger(aside) as ledger:
        again = History.of(ledger, ledger.run("goes"))
    assert set(again.metrics) == set(undrift.run("scaffold", rounds=4, **SETTING).history.metrics)


def test_a_copy_takes_the_place_of_an_older_one_or_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, further = tmp_path / "l.sqlite", tmp_path / "further.sqlite"
    with Ledger(place, create=True) as ledger, Ledger(further, create=True) as other:
        old = add_run(ledger, "fedavg", 1, [0.5], name="it")
        new = add_run(other, "fedavg", 1, [0.5, 0.6, 0.7], name="it")
        with monkeypatch.context() as patch:
            patch.setattr("undrift.ledger.store.copy_run", cut_off)
            with pytest.raises(OSError, match="cut off"):
                other.copy(new, ledger, instead=old)
        assert [(run.name, run.rounds) for run in ledger.runs()] == [("it", 1)]
        other.copy(new, ledger, instead=old)
        assert [(run.name, run.rounds) for run in ledger.runs()] == [("it", 3)]
        assert [(run.name, run.rounds) for run in other.runs()] == [("it", 3)]
    assert not check(place).damage


def cut_off(*given: Any, **more: Any) -> int:
    raise OSError("cut off")


def test_a_run_is_not_archived_where_it_is(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["archive", "other", "--to", str(path), "--ledger", str(path)]) == 2
    assert "choose another file" in capfd.readouterr().err
    assert len(names(path)) == 5


def synchronous(ledger: Ledger) -> list[int]:
    """What SQLite waits for, in the connections that read and that write: 1 is NORMAL, 2 is FULL."""
    ledger.record(ledger.add("r", {}, {}), Entry(RoundRow(1)))
    ledger.flush()
    assert ledger._writer_db is not None
    return [db.execute("PRAGMA synchronous").fetchone()[0] for db in (ledger._db, ledger._writer_db)]


def test_a_durable_ledger_waits_for_the_disk_whoever_writes_to_it(tmp_path: Path) -> None:
    place = tmp_path / "l.sqlite"
    with Ledger(place, create=True) as ledger:
        assert synchronous(ledger) == [1, 1]
    line = ["run", "-m", "logistic", "--rounds", "1", "--quiet", "--ledger", str(place)]
    assert cli.run([*line, "--durable"]) == 0
    with Ledger(place) as ledger:
        assert synchronous(ledger) == [2, 2]
    assert cli.run([*line, "--no-durable"]) == 0
    with Ledger(place) as ledger:
        assert synchronous(ledger) == [1, 1]


@pytest.mark.parametrize("key", ["undrift", "torch", "cpu"])
def test_a_run_that_goes_on_where_something_else_computes_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "l.sqlite"
    undrift.run("fedavg", rounds=1, ledger=place, name="r", **SETTING)
    with Ledger(place) as ledger:
        run = ledger.run("r")
        ledger.set_status(run, "stopped", facts={"versions": machine.versions() | {key: "of another kind"}})
    with pytest.raises(InvalidInput, match="of another kind then"):
        undrift.run("fedavg", rounds=2, ledger=place, name="r", resume=True, strict=True, **SETTING)
    assert cli.run(["resume", "r", "--rounds", "2", "--strict", "--quiet", "--ledger", str(place)]) == 2
    assert "cannot go on with the same bits" in capfd.readouterr().err
    with pytest.warns(UserWarning, match="its bits may differ: .*of another kind then"):
        undrift.run("fedavg", rounds=2, ledger=place, name="r", resume=True, **SETTING)


def test_a_run_that_goes_on_in_the_same_place_says_nothing(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    place = tmp_path / "l.sqlite"
    undrift.run("fedavg", rounds=1, ledger=place, name="r", **SETTING)
    undrift.run("fedavg", rounds=2, ledger=place, name="r", resume=True, strict=True, **SETTING)
    assert not [str(w.message) for w in recwarn if "bits" in str(w.message)]
    with Ledger(place) as ledger:
        assert json.dumps(ledger.run("r").facts["versions"]) == json.dumps(machine.versions())
