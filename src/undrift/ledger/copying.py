"""A run out of one ledger into another, as it is stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from undrift.ledger import reading, writing
from undrift.ledger.reading import State
from undrift.ledger.rows import RoundRow


def copy_run(
    source: sqlite3.Connection,
    target: sqlite3.Connection,
    run: int,
    *,
    rounds: Iterable[int],
    states: Iterable[State],
    clients: bool = True,
) -> int:
    """Copy these rounds and states of a run, and its clients' figures; its number in the other ledger."""
    columns = "status, created, experiment, facts, message"
    row = source.execute(f"SELECT name, {columns} FROM runs WHERE id = ?", (run,)).fetchone()
    number = writing.add_run(target, row[0], {}, {})
    target.execute(f"UPDATE runs SET ({columns}) = (?, ?, ?, ?, ?) WHERE id = ?", (*row[1:], number))
    last = 0
    for last in rounds:
        (link,) = reading.links(source, run, last)
        _put(target, "rounds", ("run", *RoundRow.COLUMNS), [(number, *link.row)])
        _put(target, "metrics", ("run", "round", "model", "data", "metric", "value"), link.metrics, number, last)
        _put(target, "rejections", ("run", "round", "client", "reason"), link.rejections, number, last)
    if clients:
        figures = ("model", "round", "accuracies")
        query = f"SELECT {', '.join(figures)} FROM client_metrics WHERE run = ? AND round <= ?"
        found = source.execute(query, (run, last)).fetchall()
        _put(target, "client_metrics", ("run", *figures), found, number)
    for state in states:
        digests = [
            writing.put_piece(target, number, state.owner, state.round, place, data)
            for place, data in enumerate(reading.pieces(source, run, state))
        ]
        writing.put_state(target, number, writing.Saved(state.owner, state.round, digests))
    writing.seal_all(target, number)
    return number


def _put(
    db: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: Iterable[tuple[object, ...]], *before: int
) -> None:
    marks = ", ".join("?" * len(columns))
    db.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", ((*before, *row) for row in rows))
