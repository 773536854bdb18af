"""What was started ends: Ctrl-C, SIGTERM and a killed parent leave no process, and a restart goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger

SWEEP = [
    *("sweep", "-a", "fedavg,fedprox", "--over", "lr=0.02,0.1", "--seeds", "1", "--clients", "6"),
    *("--rounds", "400", "--workers", "2"),
]
ADVISE = [
    *("advise", "-a", "fedprox,scaffold", "--budget", "rounds=4000", "--pilot", "0.5", "--seeds", "1,2"),
    *("--clients", "6", "--workers", "2"),
]
COMPARE = ["compare", "-a", "fedavg,fedprox", "--seeds", "1..2", "--clients", "6", "--rounds", "600"]
PATIENCE = 60  # seconds after which a process that should have ended has not


@contextmanager
def under_way(command: list[str], path: Path) -> Iterator[subprocess.Popen[str]]:
    """A study, at the moment when two runs have a round behind them."""
    line = [sys.executable, "-m", "undrift", *command, "--ledger", str(path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            while sum(run.rounds > 0 and run.status == "running" for run in runs(path)) < 2:
                assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def runs(path: Path) -> list[Run]:
    if not path.exists() or not path.stat().st_size:
        return []
    with Ledger(path) as book:
        return book.runs()


@pytest.mark.parametrize(
    ("command", "how"),
    [
        pytest.param(SWEEP, signal.SIGINT, id="sweep, Ctrl-C"),
        pytest.param(SWEEP, signal.SIGTERM, id="sweep, SIGTERM", marks=pytest.mark.slow),
        pytest.param(SWEEP, signal.SIGKILL, id="sweep, SIGKILL", marks=pytest.mark.slow),
        pytest.param(ADVISE, signal.SIGINT, id="advise, Ctrl-C", marks=pytest.mark.slow),
        pytest.param(ADVISE, signal.SIGKILL, id="advise, SIGKILL", marks=pytest.mark.slow),
        pytest.param(COMPARE, signal.SIGTERM, id="compare, SIGTERM", marks=pytest.mark.slow),
    ],
)
def test_a_study_that_is_stopped_leaves_no_process(command: list[str], how: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with under_way(command, path) as process:
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        os.kill(process.pid, how)
        _, said = process.communicate(timeout=PATIENCE)
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
    assert alive == []
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    if how != signal.SIGKILL:
        assert "Traceback" not in said
        assert f"To go on: undrift {command[0]}" in " ".join(said.split())
        assert "failed" not in said
        assert {run.status for run in runs(path)} <= {"stopped", "finished"}


@pytest.mark.slow
def test_a_restart_goes_on_and_counts_nothing_that_was_cancelled_as_failed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with under_way(SWEEP, path) as process:
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    before = {run.name: run for run in runs(path)}
    line = [sys.executable, "-m", "undrift", *SWEEP, "--ledger", str(path), "--quiet"]
    again = subprocess.run(line, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    after = {run.name: run for run in runs(path)}
    assert {(run.status, run.rounds) for run in after.values()} == {("finished", 400)}
    assert all(after[name].created == run.created for name, run in before.items())


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told_of_and_the_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with under_way(SWEEP, path) as process:
        victim, *_ = psutil.Process(process.pid).children()
        victim.kill()
        out, said = process.communicate(timeout=10 * PATIENCE)
    assert process.returncode == 3
    words = " ".join((out + said).replace("│", " ").split())
    assert "1 of the runs failed" in words
    assert "its process ended by signal 9" in words
    assert sorted(run.status for run in runs(path)) == ["finished", "finished", "finished", "running"]
