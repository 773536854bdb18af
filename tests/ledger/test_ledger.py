"""The ledger: nothing recorded is lost, a killed run goes on with the same bits, two writers are refused."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import undrift
from undrift import InvalidInput, Ledger
from undrift.core.figure import Figure
from undrift.ledger import store
from undrift.ledger.rows import Entry, RoundRow

ROUNDS = 8

# A run that prints each round; argv: ledger, method, runtime, and where to kill itself: nowhere (0), or in the middle
# of the transaction of a round.
CHILD = """
import os, signal, sys
import undrift
from undrift.ledger import writing
path, method, runtime, deadly, resume = sys.argv[1:6]
if deadly != "0":
    put = writing.put_round
    def half(db, run, entry, states):
        if entry.round == int(deadly):
            db.execute("DELETE FROM states")  # a change that must not survive
            db.execute("INSERT INTO rejections VALUES (?, 99, 'x', 'half a transaction')", (run,))
            os.kill(os.getpid(), signal.SIGKILL)
        put(db, run, entry, states)
    writing.put_round = half
def watch(where):
    print(where.round, flush=True)
    if "UNDRIFT_TEST_PAUSE" in os.environ:
        sys.stdin.readline()
undrift.run(method, clients=12, participate=4, rounds=8, seed=3, eval_every=2, ledger=path, name="r", watch=watch,
            runtime=runtime, resume=resume == "yes")
"""


def child(path: Path, method: str, deadly: int = 0, resume: bool = False) -> subprocess.Popen[str]:
    arguments = [str(path), method, "serial", str(deadly), "yes" if resume else "no"]
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)


def finish(path: Path, method: str, resume: bool = False) -> None:
    with child(path, method, resume=resume) as process:
        process.communicate()
        assert process.returncode == 0


def contents(path: Path) -> dict[str, Any]:
    """All that a run left behind, without the clock."""
    db = sqlite3.connect(path)
    timed = {"seconds", "client_seconds", "seal"}  # the seal covers the clock
    cursor = db.execute("SELECT * FROM rounds ORDER BY round")
    names = [c[0] for c in cursor.description]
    found: dict[str, Any] = {
        "rounds": [{n: v for n, v in zip(names, row, strict=True) if n not in timed} for row in cursor.fetchall()]
    }
    for table in ("metrics", "client_metrics", "rejections", "states", "pieces"):
        found[table] = sorted(map(repr, db.execute(f"SELECT * FROM {table}").fetchall()))
    found["status"] = db.execute("SELECT status FROM runs").fetchall()
    db.close()
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = {}
    for method in ("scaffold", "fedtrip"):
        path = tmp_path_factory.mktemp("whole") / f"{method}.sqlite"
        finish(path, method)
        found[method] = contents(path)
        assert len(found[method]["rounds"]) == ROUNDS
        assert found[method]["pieces"]
    return found


MOMENTS = [("scaffold", "round 2"), ("fedtrip", "round 5"), ("scaffold", "inside 4"), ("fedtrip", "inside 1")]


@pytest.mark.parametrize(("method", "moment"), MOMENTS)
def test_killed_and_resumed_ends_as_if_never_killed(
    tmp_path: Path, undisturbed: dict[str, dict[str, Any]], method: str, moment: str
) -> None:
    path = tmp_path / "l.sqlite"
    where, number = moment.split()
    with child(path, method, deadly=int(number) if where == "inside" else 0) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if where == "round" and line.strip() == number:
                os.kill(process.pid, signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    with Ledger(path) as ledger:
        done = ledger.run("r").rounds
        assert int(number) - 2 <= done <= int(number) + 1
        assert done < ROUNDS
        assert not ledger.rejections(ledger.run("r"))
    finish(path, method, resume=True)
    assert contents(path) == undisturbed[method]


def test_two_processes_on_one_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    arguments = [sys.executable, "-c", CHILD, str(path), "fedavg", "serial", "0"]
    with subprocess.Popen(
        [*arguments, "no"],
        env={**os.environ, "UNDRIFT_TEST_PAUSE": "1"},  # it waits between two rounds, until its stdin is closed
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with Ledger(path) as ledger:
            assert ledger.is_held(ledger.run("r"))
        second = subprocess.run([*arguments, "yes"], capture_output=True, text=True)
        assert second.returncode != 0
        assert "is being written by another process" in second.stderr
        process.communicate()
    assert process.returncode == 0
    assert len(contents(path)["rounds"]) == ROUNDS


def test_a_run_on_other_data_or_settings_cannot_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    undrift.run("fedavg", clients=12, participate=4, rounds=2, seed=3, ledger=path, name="r")
    with pytest.raises(InvalidInput, match="partition"):
        undrift.run("fedavg", clients=11, participate=4, rounds=4, seed=3, ledger=path, name="r", resume=True)
    with pytest.raises(InvalidInput, match="method's settings"):
        undrift.run("fedprox", clients=12, participate=4, rounds=4, seed=3, ledger=path, name="r", resume=True)
    slower = undrift.Training(lr=0.01)
    with pytest.raises(InvalidInput, match="training settings"):
        undrift.run(
            "fedavg", training=slower, clients=12, participate=4, rounds=4, seed=3, ledger=path, name="r", resume=True
        )
    longer = undrift.run("fedavg", clients=12, participate=4, rounds=4, seed=3, ledger=path, name="r", resume=True)
    assert len(longer.history.rounds) == 4


def test_a_full_disk_is_said_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "l.sqlite"
    connect = store.connect

    def small(path: Path, durable: bool | None = None) -> sqlite3.Connection:
        db = connect(path, durable)
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages + 60}")
        return db

    monkeypatch.setattr(store, "connect", small)
    with pytest.raises(InvalidInput, match="disk is full"):
        undrift.run("scaffold", clients=12, participate=4, rounds=30, seed=3, ledger=path, name="r")
    monkeypatch.undo()
    with Ledger(path) as ledger:
        run = ledger.run("r")
        assert 0 < run.rounds < 30
        snapshot = ledger.snapshot(run)
        assert snapshot is not None
        assert snapshot[0] == run.rounds == len(ledger.rounds(run))
    whole = undrift.run("scaffold", clients=12, participate=4, rounds=30, seed=3, ledger=path, name="r", resume=True)
    fresh = undrift.run("scaffold", clients=12, participate=4, rounds=30, seed=3)
    assert whole.history.curve() == fresh.history.curve()


def test_a_ledger_of_a_newer_version_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    Ledger(path, create=True).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '99'")
    with pytest.raises(InvalidInput, match="newer undrift"):
        Ledger(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT value FROM meta").fetchone() == ("99",)


@pytest.mark.parametrize("path", ["/proc/ledger.sqlite", "/proc/nowhere/ledger.sqlite"])
def test_a_folder_that_takes_no_files_is_named(path: str) -> None:
    with pytest.raises(InvalidInput, match=r"/proc\S* cannot be"):
        Ledger(path, create=True)


def test_of_many_runs_an_unknown_one_gets_a_hint_and_no_list(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite", create=True) as ledger:
        for number in range(30):
            ledger.add(f"fedavg-{number:02}", {}, {})
        with pytest.raises(InvalidInput, match="did you mean 'fedavg-07'"):
            ledger.run("fedavf-07")
        with pytest.raises(InvalidInput, match="holds 30, `undrift show` lists them"):
            ledger.run("x")


def test_a_file_that_is_no_ledger_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look like something at least" * 20)
    with pytest.raises(InvalidInput, match="not a ledger"):
        Ledger(text)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE mine (x)")
    with pytest.raises(InvalidInput, match="not a ledger of undrift"):
        Ledger(other)
    with pytest.raises(InvalidInput, match="no ledger at"):
        Ledger(tmp_path / "absent.sqlite")


def test_runs_are_found_by_name_number_or_beginning(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite", create=True) as ledger:
        with pytest.raises(InvalidInput, match="holds no runs"):
            ledger.run("x")
        first = ledger.add("alpha", {"rounds": 1}, {})
        again = ledger.add("alpha", {"rounds": 1}, {})
        beta = ledger.add("beta", {"rounds": 1}, {})
        assert again.name == "alpha-2"
        assert ledger.run("alpha").id == first.id
        assert ledger.run(beta.id).name == ledger.run("be").name == "beta"
        with pytest.raises(InvalidInput, match="did you mean 'beta'"):
            ledger.run("betta")


def test_not_a_number_is_stored_as_such(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.sqlite", create=True) as ledger:
        run = ledger.add("r", {"rounds": 1}, {})
        ledger.record(run, Entry(RoundRow(1), [(Figure(), float("nan"))]))
        ledger.flush()
        assert ledger.metrics(run) == [(1, Figure(), None)]


def test_a_run_from_python_with_names_alone_can_be_resumed_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    undrift.run("scaffold", clients=12, participate=4, rounds=2, seed=3, ledger=path, name="r")
    command = [sys.executable, "-m", "undrift", "resume", "r", "--rounds", "5", "--ledger", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    whole = undrift.run("scaffold", clients=12, participate=4, rounds=5, seed=3)
    with Ledger(path) as ledger:
        assert undrift.History.of(ledger, ledger.run("r")).curve() == whole.history.curve()
