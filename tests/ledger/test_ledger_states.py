"""What clients keep in a ledger: read back as it was kept, whatever leaves memory and however slow the disk."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import undrift
from undrift import Ledger
from undrift.core.records import Nothing
from undrift.core.states import Kept, elsewhere
from undrift.core.vector import Buffers
from undrift.ledger import states as module
from undrift.ledger import writing
from undrift.ledger.rows import Entry, RoundRow
from undrift.ledger.states import LedgerStates


def kept(value: float, round: int) -> Kept:
    return Kept(Buffers(torch.full((100,), float(value)), torch.empty(0)), None, round)


def test_nothing_that_is_not_yet_committed_leaves_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 1000)  # two and a half states
    free = threading.Event()
    put = writing.put_round

    def slow(*args: Any) -> None:
        free.wait(10)
        put(*args)

    monkeypatch.setattr(writing, "put_round", slow)
    with Ledger(tmp_path / "l.db", create=True) as book:
        run = book.add("r", {}, {})
        states = LedgerStates(book, run, Buffers)
        for round, clients in ((1, range(8)), (2, range(4, 12))):
            for client in clients:
                states.hold(client, kept(10 * round + client, round))
            states.commit(clients, round)
            found = {client: float(states.load(client).state.floats[0]) for client in clients}  # type: ignore
            assert found == {client: 10.0 * round + client for client in clients}
            if round == 1:
                book.record(run, Entry(RoundRow(1), kept=states.unwritten()))
        assert float(states.load(0).state.floats[0]) == 10.0  # type: ignore[union-attr]  # its write is under way
        free.set()
        book.record(run, Entry(RoundRow(2), kept=states.unwritten()))
        book.flush()
        for client in range(12, 16):
            states.hold(client, kept(client, 3))
        states.commit(range(12, 16), 3)
        assert states._bytes <= 4 * 400, "what is committed gave way"
        again = [float(states.load(client).state.floats[0]) for client in range(16)]  # type: ignore[union-attr]
        assert again == [10, 11, 12, 13, *range(24, 32), *range(12, 16)]


def test_personal_figures_do_not_depend_on_the_memory_for_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures(**where: Any) -> Any:
        return undrift.run("local", clients=12, participate=6, rounds=6, seed=3, **where).history.metrics

    expected = figures()
    monkeypatch.setattr(module, "LIMIT", 1)
    assert figures(ledger=tmp_path / "l.db") == expected


def test_rounds_of_clients_that_keep_their_states_themselves_are_recorded(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.db", create=True) as book:
        run = book.add("r", {}, {})
        states = LedgerStates(book, run, Nothing, rounds=True)
        states.hold(3, elsewhere(5))
        states.commit([3], 5)
        book.record(run, Entry(RoundRow(5), kept=states.unwritten()))
        book.flush()
        again = LedgerStates(book, run, Nothing, rounds=True)
        assert (again.accepted(3), again.accepted(4)) == (5, 0)
