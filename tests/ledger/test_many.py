"""Many who write to one ledger and some who read it: nothing is lost, and the log of the ledger stays small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from undrift import History, Ledger
from undrift.ledger.check import check

# A run of some rounds, each with a state of 400 kB; argv: ledger, name, rounds, where the tests are.
WRITER = """
import sys
sys.path.insert(0, sys.argv[4])
import torch
from dataclasses import replace
from ledgers import entry
from undrift import Ledger
from undrift.core.vector import Buffers
with Ledger(sys.argv[1]) as book:
    run = book.add(sys.argv[2], {"rounds": int(sys.argv[3])}, {"label": "x"})
    with book.holding(run):
        for at in range(1, int(sys.argv[3]) + 1):
            state = Buffers(torch.full((100_000,), float(at)), torch.empty(0))
            book.record(run, replace(entry(at, at / 100), server=state, buffers=state))
        book.set_status(run, "finished")
"""


def crowd(path: Path, writers: int, rounds: int) -> int:
    """Let many processes write while this one reads; the most bytes that were seen in the log."""
    tests, largest = str(Path(__file__).resolve().parents[1]), 0
    with Ledger(path, create=True) as ledger:
        processes = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(path), f"run {i}", str(rounds), tests])
            for i in range(writers)
        ]
        while any(process.poll() is None for process in processes):
            with ledger.reading():
                for run in ledger.runs():
                    history = History.of(ledger, run)
                    assert len(history.rounds) == run.rounds
                    assert len(history.metrics) == 2 * run.rounds
            largest = max(largest, Path(f"{path}-wal").stat().st_size)
        assert [process.returncode for process in processes] == [0] * writers
        runs = ledger.runs()
        assert [run.rounds for run in runs] == [rounds] * writers
        assert {run.name for run in runs} == {f"run {i}" for i in range(writers)}
    assert not check(path).damage
    return largest


def test_a_few_writers_and_a_reader(tmp_path: Path) -> None:
    assert crowd(tmp_path / "l.sqlite", 3, 20) < 64 << 20


@pytest.mark.faults
def test_fifty_writers_and_a_reader(tmp_path: Path) -> None:
    """800 MB go through a log that stays under 64 MB."""
    assert crowd(tmp_path / "l.sqlite", 50, 20) < 64 << 20
