"""What happens to uploads is part of the description: a section of the file, flags, an object in Python."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import undrift
from undrift import cli
from undrift.cli.flags import as_changes
from undrift.experiment.description import Experiment, differences
from undrift.ledger.store import Ledger

SMALL = ["--clients", "4", "--rounds", "2", "--runtime", "serial"]


def test_a_section_goes_to_a_file_and_back() -> None:
    described = Experiment.build({"uploads": {"clip": "median", "guard": 50}})
    assert described.uploads == undrift.Uploads(clip="median", guard=50)
    assert Experiment.build(tomllib.loads(described.to_toml())) == described


def test_a_description_without_it_stays_as_it_was() -> None:
    plain = Experiment.build({})
    assert "uploads" not in plain.values()
    assert differences(plain.values(), Experiment.build({"uploads": {"clip": 3}}).values()) == ["uploads"]


def test_the_short_flag_is_that_of_local_training() -> None:
    names = {"algorithm": ["fedavg"]}
    assert as_changes({"clip": "10"}, names) == {"train": {"clip": 10.0}}
    assert as_changes({"uploads.clip": "median", "guard": "none"}, names) == {
        "uploads": {"clip": "median", "guard": None}
    }


def test_flags_and_python_give_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["run", "--uploads.clip", "0.1", "--name", "mine", "--ledger", "l.db", *SMALL]) == 0
    with Ledger(tmp_path / "l.db") as book:
        run = book.run("mine")
        assert run.experiment["uploads"]["clip"] == 0.1
        notes = [dict(row.notes) for row in book.rounds(run)]
    assert [note["clipped"] for note in notes] == [1.0, 1.0]
    same = undrift.run("fedavg", data="digits", clients=4, rounds=2, uploads=undrift.Uploads(clip=0.1))
    assert [dict(row.notes) for row in same.history.rounds] == notes


def test_anything_else_in_its_place_is_refused() -> None:
    with pytest.raises(undrift.InvalidInput, match=r"uploads must be an undrift.Uploads\(clip="):
        undrift.run("fedavg", data="digits", uploads={"clip": 3})  # type: ignore[arg-type]
