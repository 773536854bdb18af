"""Where one begins: `undrift` alone, and `undrift init`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from undrift import cli
from undrift.cli.ending import OK
from undrift.ledger.store import Ledger

SMALL = ["--clients", "4", "--rounds", "2", "--runtime", "serial", "--quiet"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("UNDRIFT_DATA", "UNDRIFT_LEDGER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert cli.run(list(args)) == OK
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert cli.run(list(args)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    return err


def visits(folder: Path) -> None:
    rows = [f"{30 + i},{100 + i % 7},{'north' if i % 3 else 'south'},{'ill' if i % 2 else 'well'}" for i in range(60)]
    (folder / "visits.csv").write_text("\n".join(["age,pressure,hospital,outcome", *rows]))


def test_alone_it_says_where_to_begin(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys)
    assert "Nothing has been run here yet" in text
    assert "undrift demo" in text
    assert "undrift init" in text
    assert list(folder.iterdir()) == []


def test_alone_it_says_what_was_done_and_what_comes_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["run", "-a", "fedprox", "--name", "mine", *SMALL]) == OK
    text = said(capsys)
    assert "1 run in runs/ledger.sqlite: 1 finished." in text
    assert "mine, FedProx" in text
    assert "accuracy of the global model on the test set after 2 of 2 rounds" in text
    assert "undrift compare -a fedavg,fedprox --seeds 1..3" in text
    assert cli.run(["run", "-a", "fedavg", "--name", "other", *SMALL]) == OK
    with Ledger("runs/ledger.sqlite") as ledger:
        ledger.set_status(ledger.run("other"), "stopped")
    text = said(capsys)
    assert "2 runs in runs/ledger.sqlite: 1 finished, 1 unfinished." in text
    assert "undrift resume other" in text
    assert "undrift compare" not in text


def test_alone_in_another_ledger(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDRIFT_LEDGER", "no.sqlite")
    assert "there is no no.sqlite" in said(capsys)
    (folder / "no.sqlite").write_text("this is no ledger, and it is long enough to be looked at")
    assert cli.run([]) == 2


@pytest.mark.parametrize(("goal", "command"), [("compare", "compare"), ("train", "run"), ("personal", "compare")])
def test_what_init_writes_runs(goal: str, command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "init", "--data", "digits", "--clients", "6", "--goal", goal)
    assert f"undrift {command} experiment.toml" in text
    made = tomllib.loads((folder / "experiment.toml").read_text())
    assert (made["clients"], made["data"]) == (6, {"name": "digits"})
    few = ["--rounds", "1", "--quiet", "--runtime", "serial", *(["--seeds", "1"] if command == "compare" else [])]
    assert cli.run([command, "experiment.toml", *few]) == OK


def test_init_takes_a_table_and_its_columns(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    visits(folder)
    said(
        capsys, "init", "wards.toml", "--data", "visits.csv", "--label", "outcome", "--clients", "hospital",
        "--goal", "train",
    )  # fmt: skip
    made = tomllib.loads((folder / "wards.toml").read_text())
    assert made["data"] == {"name": "csv", "path": "visits.csv", "label": "outcome", "client": "hospital"}
    assert made["partition"] == {"name": "column"}
    assert cli.run(["run", "wards.toml", "--rounds", "2", "--quiet"]) == OK


def test_init_asks_and_asks_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    visits(folder)
    monkeypatch.setattr("undrift.cli.beginning.asking", lambda: True)  # the runner's input is no terminal
    done = CliRunner().invoke(cli.app, ["init"], input="visit.csv\nvisits.csv\noutcome\nhospital\ntrian\ntrain\n")
    assert done.exit_code == 0, done.output
    assert "age, pressure, hospital, outcome" in done.output
    made = tomllib.loads((folder / "experiment.toml").read_text())
    assert made["algorithm"] == {"name": "fedavgm"}
    assert made["data"]["client"] == "hospital"


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--data", "digts", "--clients", "4", "--goal", "train"], "did you mean 'digits'"),
        (["--data", "digits", "--clients", "4", "--goal", "trian"], "did you mean 'train'"),
        (["--data", "digits", "--clients", "0", "--goal", "train"], "at least one is needed"),
        (["--data", "digits", "--clients", "ward", "--goal", "train"], "a whole number is needed"),
        (["--data", "digits", "--clients", "9999", "--goal", "train"], "9999"),
        (["--data", "none.csv", "--clients", "4", "--goal", "train"], "there is no file none.csv"),
        (["--data", "csv", "--clients", "4", "--goal", "train"], "name the file itself"),
        (["--data", "digits", "--label", "x", "--clients", "4", "--goal", "train"], "is a column of a table"),
        (["--data", "visits.csv", "--label", "outcom", "--clients", "2", "--goal", "train"], "did you mean 'outcome'"),
        (["--data", "digits", "--clients", "4"], "without one give --data, --clients and --goal"),
    ],
)
def test_init_writes_nothing_that_would_not_run(
    args: list[str], sentence: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    visits(folder)
    assert sentence in refused(capsys, "init", *args)
    assert [path.name for path in folder.iterdir()] == ["visits.csv"]


def test_init_replaces_nothing_unasked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "experiment.toml").write_text("mine")
    asked = ["init", "--data", "digits", "--clients", "4", "--goal", "train"]
    assert "exists" in refused(capsys, *asked)
    assert (folder / "experiment.toml").read_text() == "mine"
    said(capsys, *asked, "--force")
    assert "fedavgm" in (folder / "experiment.toml").read_text()
