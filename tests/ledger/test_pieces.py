"""Large states: cut into pieces, put together again, and never twice in memory or in the log."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift
from undrift import Ledger
from undrift.core.states import Kept
from undrift.core.vector import Buffers
from undrift.ledger import opening, pieces, writing
from undrift.ledger.check import check
from undrift.ledger.pieces import cut, joined
from undrift.ledger.rows import Entry, RoundRow


@pytest.mark.parametrize("limit", [1, 8, 100, 1000, 10_000])
def test_tensors_come_back_as_they_were_cut(limit: int) -> None:
    tensors = {
        "w": torch.randn(31, 7),
        "empty": torch.empty(0),
        "count": torch.tensor(3),
        "half": torch.randn(50).to(torch.float16),
        "turned": torch.randn(6, 5).T,
        "yes": torch.tensor([True, False]),
    }
    parts = list(cut(tensors, {"round": 4}, limit))
    assert len(parts) == 1 or limit < sum(t.nbytes for t in tensors.values())
    again, header = joined(parts)
    assert header == {"round": 4}
    assert set(again) == set(tensors)
    for name, tensor in tensors.items():
        assert again[name].dtype == tensor.dtype
        assert torch.equal(again[name], tensor)


def test_nothing_has_a_piece_too() -> None:
    assert joined(list(cut({}, {"round": 2}, 8))) == ({}, {"round": 2})


@pytest.mark.parametrize("method", ["scaffold", "local"])
def test_a_run_whose_states_are_cut_goes_on_with_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1000)
    plan: dict[str, Any] = {"clients": 6, "participate": 3, "seed": 3, "ledger": tmp_path / "l.sqlite", "name": "r"}
    undrift.run(method, rounds=3, **plan)
    with sqlite3.connect(tmp_path / "l.sqlite") as db:
        assert db.execute("SELECT max(number), max(length(data)) < 1500 FROM pieces").fetchone() > (2, 0)
    again = undrift.run(method, rounds=6, resume=True, **plan)
    whole = undrift.run(method, rounds=6, clients=6, participate=3, seed=3)
    assert set(again.history.metrics) == set(whole.history.metrics)


def state(size: int, value: float) -> Buffers:
    return Buffers(torch.full((size,), value), torch.empty(0))


def test_a_large_state_does_not_swell_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty times what the log may hold passes through it, and what was written is there again."""
    monkeypatch.setattr(pieces, "PIECE", 50_000)
    monkeypatch.setattr(opening, "LOG", 100_000)
    log, seen = tmp_path / "l.sqlite-wal", []
    put = writing.put_piece

    def watched(*args: Any) -> str:
        seen.append(log.stat().st_size)
        return put(*args)

    monkeypatch.setattr(writing, "put_piece", watched)
    with Ledger(tmp_path / "l.sqlite", create=True) as ledger:
        run = ledger.add("r", {}, {})
        for at in (1, 2):
            kept = {7: Kept(state(500_000, at), None, at)}
            ledger.record(run, Entry(RoundRow(at), server=state(500_000, 10 + at), buffers=state(3, 0), kept=kept))
        ledger.flush()
        found, mine = ledger.snapshot(run), ledger.kept(run, 7)
        assert found is not None
        assert mine is not None
        assert torch.equal(found.server["floats"], torch.full((500_000,), 12.0))
        assert torch.equal(mine[0]["state.floats"], torch.full((500_000,), 2.0))
    assert len(seen) > 100
    assert max(seen) < 400_000


def test_pieces_of_a_round_that_was_never_committed_count_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "PIECE", 1000)
    with Ledger(tmp_path / "l.sqlite", create=True) as ledger:
        run = ledger.add("r", {}, {})
        ledger.record(run, Entry(RoundRow(1), server=state(5000, 1.0), buffers=state(3, 0)))
        ledger.flush()
        monkeypatch.setattr(writing, "put_round", None)  # the round is lost after most of its pieces were committed
        ledger.record(run, Entry(RoundRow(2), server=state(5000, 2.0), buffers=state(3, 0)))
        with pytest.raises(TypeError):
            ledger.flush()
        monkeypatch.undo()
        monkeypatch.setattr(pieces, "PIECE", 1500)  # so that the second try has fewer
        ledger.verify(run)
        found = ledger.snapshot(run)
        assert found is not None
        assert (found.round, float(found.server["floats"].sum())) == (1, 5000.0)
        ledger.record(run, Entry(RoundRow(2), server=state(5000, 3.0), buffers=state(3, 0)))
        ledger.flush()
        ledger.verify(run)
        found = ledger.snapshot(run)
        assert found is not None
        assert (found.round, float(found.server["floats"].sum())) == (2, 15000.0)


# A run whose states are cut small, and which kills itself between two pieces of its fourth round.
KILLED = """
import os, signal, sys
import undrift
from undrift.ledger import pieces, writing
pieces.PIECE = 1000
put = writing.put_piece
def deadly(db, run, owner, round, number, data):
    if (round, number) == (4, 5):
        os.kill(os.getpid(), signal.SIGKILL)
    return put(db, run, owner, round, number, data)
writing.put_piece = deadly
undrift.run("scaffold", rounds=6, clients=6, participate=3, seed=3, ledger=sys.argv[1], name="r")
"""


def test_a_run_killed_between_two_pieces_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode == -signal.SIGKILL
    with Ledger(path) as ledger:
        assert ledger.run("r").rounds == 3
        ledger.verify(ledger.run("r"))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM pieces WHERE round = 4").fetchone() > (0,)  # left behind
    plan: dict[str, Any] = {"clients": 6, "participate": 3, "seed": 3, "rounds": 6, "name": "r"}
    again = undrift.run("scaffold", ledger=path, resume=True, **plan)
    whole = undrift.run("scaffold", ledger=tmp_path / "whole.sqlite", **plan)
    assert set(again.history.metrics) == set(whole.history.metrics)
    with Ledger(path) as one, Ledger(tmp_path / "whole.sqlite") as other:
        left, right = one.snapshot(one.run("r")), other.snapshot(other.run("r"))
        assert left is not None
        assert right is not None
        assert all(torch.equal(left.server[name], tensor) for name, tensor in right.server.items())
    assert not check(path).damage
