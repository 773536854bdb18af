"""The cluster of the examples: two nodes by Ray's own command, a comparison over them, and nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from undrift.ledger.store import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.sh"
PATIENCE = 60


@pytest.mark.cluster
def test_the_example_runs_and_leaves_nothing_running(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "undrift").write_text(f'#!/bin/sh\nexec {sys.executable} -m undrift "$@"\n')
    (commands / "undrift").chmod(0o755)
    paths = os.pathsep.join([str(commands), str(Path(sys.executable).parent), os.environ["PATH"]])
    usual = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment = usual | {"PATH": paths, "PORT": str(port), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(["bash", EXAMPLE, tmp_path], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SCAFFOLD" in done.stdout
    with Ledger(tmp_path / "cluster.sqlite") as book:
        assert {(run.status, run.rounds, run.facts["runtime"]) for run in book.runs()} == {("finished", 15, "serial")}
        assert len(book.runs()) == 12
    left = [p for p in psutil.process_iter() if is_of(p, f"127.0.0.1:{port}")]
    _, alive = psutil.wait_procs(left, timeout=PATIENCE)
    assert alive == []


def is_of(process: psutil.Process, address: str) -> bool:
    try:
        return address in " ".join(process.cmdline())
    except psutil.Error:
        return False
