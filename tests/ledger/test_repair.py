"""A damaged ledger: the check names the damage, the repair goes back to the last sound round, and the run goes on."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import undrift
from undrift import History, Ledger, cli
from undrift.ledger.check import check
from undrift.ledger.repair import repair

SETTING: dict[str, Any] = {"model": "logistic", "clients": 4, "participate": 2, "seed": 3}
ROUNDS = 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger with a run that was killed after four rounds, and one that is finished."""
    place = tmp_path / "l.sqlite"
    undrift.run("scaffold", rounds=4, ledger=place, name="killed", **SETTING)
    undrift.run("fedavg", rounds=3, ledger=place, name="done", **SETTING)
    with Ledger(place) as ledger:
        ledger.set_rounds(ledger.run("killed"), ROUNDS)
        ledger.set_status(ledger.run("killed"), "running")
    return place


def damage(path: Path, statement: str) -> None:
    """Change a row behind the ledger's back."""
    db = sqlite3.connect(path)
    assert db.execute(statement).rowcount == 1
    db.commit()
    db.close()


STATE = "UPDATE pieces SET data = substr(data, 1, 200) || x'7f7f' || substr(data, 203) WHERE run = 1"
CASES = {
    "the server's last state": (f"{STATE} AND owner = -1 AND round = 4", 3),
    "the server's state of a round ago": (f"{STATE} AND owner = -1 AND round = 3", None),
    "the last round": ("UPDATE rounds SET macs = macs + 1 WHERE run = 1 AND round = 4", 3),
    "a figure of the last round": ("UPDATE metrics SET value = value / 2 WHERE run = 1 AND round = 4 "
                                   "AND data = 'test' AND metric = 'accuracy'", 3),
    "a figure of the second round": ("UPDATE metrics SET value = value / 2 WHERE run = 1 AND round = 2 "
                                     "AND data = 'test' AND metric = 'accuracy'", 1),
    "a round that is gone": ("DELETE FROM rounds WHERE run = 1 AND round = 4", 3),
    "the number of rounds": ("UPDATE heads SET round = 5 WHERE run = 1", 4),
    "the clients' figures": ("UPDATE client_metrics SET round = 3 WHERE run = 1 AND model = 'global'", 4),
    "the list of states": ("DELETE FROM states WHERE run = 1 AND owner = "
                           "(SELECT max(owner) FROM states WHERE run = 1 AND until IS NULL AND round = 4)"
                           " AND round = 4", 3),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_run_goes_back_to_its_last_sound_round_and_on_to_the_same_end(
    path: Path, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    statement, upto = CASES[case]
    whole = undrift.run("scaffold", rounds=ROUNDS, **SETTING)
    damage(path, statement)
    if upto is None:  # nothing that is needed now
        assert cli.run(["check", str(path)]) == 0
        return
    assert cli.run(["check", str(path)]) == 2
    assert "run 'killed'" in capfd.readouterr().err
    assert cli.run(["repair", str(path)]) == 0
    assert "run 'killed' is back at round" in " ".join(capfd.readouterr().out.split())
    assert cli.run(["check", str(path)]) == 0
    with Ledger(path) as ledger:
        assert [run.name for run in ledger.runs()] == ["killed", "done"]
        assert ledger.run("killed").rounds == upto
        assert ledger.run("killed").status == "stopped"
        assert ledger.run("done").status == "finished"
    assert cli.run(["resume", "killed", "--quiet", "--ledger", str(path)]) == 0
    with Ledger(path) as ledger:
        again = History.of(ledger, ledger.run("killed"))
    assert set(again.metrics) == set(whole.history.metrics)
    assert (path.parent / "l.sqlite.damaged").exists()


def test_a_finished_run_keeps_its_rounds_though_its_states_are_lost(path: Path) -> None:
    damage(path, STATE.replace("run = 1", "run = 2 AND owner = -1 AND round = 3"))
    whole = undrift.run("fedavg", rounds=ROUNDS, **SETTING)
    with Ledger(path) as ledger:
        before = History.of(ledger, ledger.run("done"))
    assert repair(path).aside is not None
    with Ledger(path) as ledger:
        assert History.of(ledger, ledger.run("done")) == before
        assert ledger.snapshot(ledger.run("done")) is None
    assert cli.run(["resume", "done", "--rounds", str(ROUNDS), "--quiet", "--ledger", str(path)]) == 0
    with Ledger(path) as ledger:
        again = History.of(ledger, ledger.run("done"))
    assert set(again.metrics) == set(whole.history.metrics)
    assert len(again.rounds) == ROUNDS


def test_a_run_without_a_description_is_lost_and_said_to_be(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damage(path, "UPDATE runs SET experiment = replace(experiment, 'scaffold', 'scaffole') WHERE id = 1")
    assert cli.run(["repair", str(path)]) == 0
    assert "run 1 is lost" in capfd.readouterr().out
    with Ledger(path) as ledger:
        assert [run.name for run in ledger.runs()] == ["done"]
    assert not check(path).damage


def test_a_sound_ledger_is_left_alone(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = path.read_bytes()
    assert cli.run(["check", str(path)]) == 0
    assert "2 runs, 7 rounds" in " ".join(capfd.readouterr().out.split())
    assert cli.run(["repair", str(path)]) == 0
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.damaged*"))


def test_a_ledger_that_is_being_written_is_not_repaired(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    damage(path, "UPDATE rounds SET macs = macs + 1 WHERE run = 1 AND round = 4")
    with Ledger(path) as ledger, ledger.holding(ledger.run("done")):
        assert cli.run(["repair", str(path)]) == 2
    assert "being written by another process" in capfd.readouterr().err


@pytest.mark.parametrize("what", ["absent.sqlite", "notes.txt", "."])
def test_what_is_no_ledger_gets_a_sentence(tmp_path: Path, what: str, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to look like something at least" * 20)
    for command in ("check", "repair"):
        assert cli.run([command, str(tmp_path / what)]) == 2
        assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_flipped_a_repaired_ledger_is_sound(path: Path, seed: int) -> None:
    """And of what it still holds, all that it says is right."""
    rng = random.Random(seed)
    sound = path.read_bytes()
    with Ledger(path) as ledger:
        before = {run.name: History.of(ledger, run) for run in ledger.runs()}
    repaired = 0
    for _ in range(40):
        data = bytearray(sound)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            aside = repair(path).aside
        except undrift.InvalidInput:
            continue  # nothing could be read
        repaired += aside is not None
        assert not check(path).damage
        with Ledger(path) as ledger:
            for run in ledger.runs():
                found = History.of(ledger, run)
                assert found.rounds == before[run.name].rounds[: run.rounds]
                assert found.metrics == [m for m in before[run.name].metrics if m[0] <= run.rounds]
                ledger.verify(run)
        for file in path.parent.glob("l.sqlite*.damaged*"):
            file.unlink()
    assert repaired > 5
