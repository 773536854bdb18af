"""The commands as an operator types them: what they show, what they refuse, and the demonstration as a whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from undrift.cli import run
from undrift.deploy import kits
from undrift.deploy.journal import Journal
from undrift.deploy.policy import Approvals


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints, in one line."""
    assert run(list(words)) == code
    printed = capsys.readouterr()
    return " ".join((printed.err if code else printed.out).split())


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A site's kit, but for its keys."""
    folder = tmp_path / "north"
    folder.mkdir(mode=0o700)
    about = {"role": "site", "name": "north", "federation": "clinics", "host": "fl.example.org", "port": 8002}
    (folder / "kit.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    dice = np.random.default_rng(1)
    rows = [f"{a:.2f},{b:.2f},{'ill' if a > 0 else 'well'}" for a, b in dice.normal(size=(60, 2))]
    path.write_text("\n".join(["age,weight,outcome", *rows]))
    return path


def test_a_check_shows_the_data_and_what_would_be_told(capsys: pytest.CaptureFixture[str], visits: Path) -> None:
    shown = said(capsys, "site", "check", "--data", "csv", "--path", str(visits), "--label", "outcome")
    assert "training samples 48" in shown
    assert "test samples 12" in shown
    assert '["ill", "well"]' in shown
    assert "a hash of the data" in shown
    assert "number of samples of each class" not in shown


def test_a_check_remembers_the_data_in_the_kit(capsys: pytest.CaptureFixture[str], kit: Path, visits: Path) -> None:
    said(capsys, "site", "check", str(kit), "--data", "csv", "--path", str(visits), "--label", "outcome")
    assert (kit / "site.toml").stat().st_mode & 0o777 == 0o600
    assert "training samples 48" in said(capsys, "site", "check", str(kit))
    assert 'experiments = "ask"' in (kit / "policy.toml").read_text()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "csv", "--path", "nowhere.csv", "--label", "y"], "nowhere.csv"),
        (["--data", "cvs", "--path", "x"], "did you mean 'csv'"),
        (["--data", "csv", "--label", "y"], "needs path"),
        (["--data", "digits", "--rounds", "5"], "only settings of the data"),
    ],
)
def test_data_that_cannot_be_used_get_one_sentence(
    capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    assert sentence in said(capsys, "site", "check", *words, code=2)


def test_a_site_without_data_does_not_start(capsys: pytest.CaptureFixture[str], kit: Path) -> None:
    assert "does not know its data" in said(capsys, "site", "start", str(kit), code=2)
    assert "is not a kit" in said(capsys, "site", "start", str(kit.parent), code=2)
    assert "is the kit of a site" in said(capsys, "deploy", "run", "--resume", "x", "--kit", str(kit), code=2)


def test_an_approval_is_listed_and_given(capsys: pytest.CaptureFixture[str], kit: Path) -> None:
    assert "Nothing was asked for" in said(capsys, "site", "approve", str(kit))
    approvals = Approvals(kit / "approvals")
    experiment = {"name": "heart", "algorithm": {"name": "fedtrip", "mu": 0.4}, "rounds": 9, "cohort": 2, "sites": 3}
    key = approvals.key(experiment, "ab" * 32)
    approvals.ask(key, experiment, "ab" * 32)
    shown = said(capsys, "site", "approve", str(kit))
    assert f"{key} waits heart: fedtrip (mu=0.4), file abababababababab, 9 rounds, 2 or more of 3 sites" in shown
    assert "nothing that was asked for begins" in said(capsys, "site", "approve", str(kit), "zzz", code=2)
    assert "Approved" in said(capsys, "site", "approve", str(kit), key[:6])
    assert "approved heart" in said(capsys, "site", "approve", str(kit))
    assert approvals.approved(key)


def test_a_log_is_shown_and_checked(capsys: pytest.CaptureFixture[str], kit: Path) -> None:
    journal = Journal(kit / "journal.jsonl")
    journal.add("answered", run="heart", round=3)
    journal.add("refused", why="does not allow the method fedleak")
    journal.close()
    assert "answered run heart, round 3" in said(capsys, "site", "log", str(kit))
    assert "2 lines, none of them changed" in said(capsys, "site", "log", str(kit), "--verify")
    path = kit / "journal.jsonl"
    path.write_text(path.read_text().replace("heart", "heard"))
    assert "line 2 does not follow" in said(capsys, "site", "log", str(kit), "--verify", code=2)


def test_a_unit_names_the_kit_and_restarts_for_ever(capsys: pytest.CaptureFixture[str], kit: Path) -> None:
    unit = said(capsys, "site", "install", str(kit), "--print")
    assert f"site start {kit}" in unit
    assert "Restart=always" in unit


def test_an_example_of_a_federation_can_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["deploy", "init", "--example"]) == 0
    (tmp_path / "federation.toml").write_text(capsys.readouterr().out)
    assert kits.Federation.read(tmp_path / "federation.toml").sites == ("north", "south", "west")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("partition = 'iid'", "partition has no place in a deployment"),
        ("clients = 4", "the sites are the clients"),
        ("[deploy]\ndead_line = 3", "[deploy]: unknown setting of Rules 'dead_line': did you mean 'deadline'"),
        ("[deploy]\nquorum = 0", "quorum = 0"),
        ("deploy = 3", "[deploy] must be a table"),
        ("rounds = 0", "rounds = 0"),
    ],
)
def test_an_experiment_that_sites_cannot_play_gets_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, sentence: str
) -> None:
    path = tmp_path / "trial.toml"
    path.write_text(text)
    assert sentence in said(capsys, "deploy", "run", str(path), code=2)


@pytest.mark.deploy
def test_the_demonstration_ends_with_the_bits_of_the_simulation(tmp_path: Path, environment: Path) -> None:
    """Five processes and the engine's over mutual TLS; a site and the engine are killed; every round is compared."""
    import os

    done = subprocess.run(
        [sys.executable, "-m", "undrift", "deploy", "demo", "--folder", tmp_path / "demo", "--rounds", "12"],
        capture_output=True, text=True, env={**os.environ, "UNDRIFT_ENGINE": str(environment)}, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("kill -9") == 2
    assert re.findall(r"(\w+): 12 of 12 rounds have the bits", done.stdout) == ["fedtrip", "scaffold"]
    for site in ("east", "north", "south", "west"):
        log = subprocess.run(
            [sys.executable, "-m", "undrift", "site", "log", tmp_path / "demo" / site, "--verify"],
            capture_output=True, text=True,
        )  # fmt: skip
        assert "none of them changed" in " ".join(log.stdout.split())
