"""From ledgers without digests (versions 1 and 2) to those with them: what is there is taken as right, and sealed."""

from __future__ import annotations

import sqlite3

from undrift.ledger import schema, writing
from undrift.ledger.rows import BUFFERS, SERVER, RoundRow

OLD = ("kept", "snapshots", "rejections", "client_metrics", "metrics", "rounds", "runs", "meta")


def with_digests(db: sqlite3.Connection) -> None:
    """Move all into new tables. States stay the bytes they are: a piece each."""
    for table in OLD:
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    schema.create(db)
    db.execute("UPDATE meta SET value = '2' WHERE key = 'version'")
    columns = "id, name, status, created, experiment, facts, message"
    db.execute(f"INSERT INTO runs ({columns}) SELECT {columns} FROM old_runs")
    columns = f"run, {', '.join(RoundRow.COLUMNS)}"
    db.execute(f"INSERT INTO rounds ({columns}) SELECT {columns} FROM old_rounds")
    for table, columns in (
        ("metrics", "run, round, model, data, metric, value"),
        ("client_metrics", "run, round, model, accuracies"),
        ("rejections", "run, round, client, reason"),
    ):
        db.execute(f"INSERT OR REPLACE INTO {table} ({columns}) SELECT {columns} FROM old_{table}")
    for run, name in db.execute("SELECT id, name FROM runs ORDER BY id").fetchall():
        _states(db, run)
        writing.seal_all(db, run)
        writing.count_run(db, run, name)
    for table in OLD:
        db.execute(f"DROP TABLE old_{table}")


def _states(db: sqlite3.Connection, run: int) -> None:
    at = db.execute("SELECT round FROM old_snapshots WHERE run = ?", (run,)).fetchone()
    if at is None:
        return
    for owner, column in ((SERVER, "server"), (BUFFERS, "buffers")):
        (data,) = db.execute(f"SELECT {column} FROM old_snapshots WHERE run = ?", (run,)).fetchone()
        _state(db, run, owner, at[0], data)
    for (client,) in db.execute("SELECT client FROM old_kept WHERE run = ?", (run,)).fetchall():
        (data,) = db.execute("SELECT data FROM old_kept WHERE run = ? AND client = ?", (run, client)).fetchone()
        _state(db, run, client, at[0], data)


def _state(db: sqlite3.Connection, run: int, owner: int, round: int, data: bytes) -> None:
    digest = writing.put_piece(db, run, owner, round, 0, data)
    writing.put_state(db, run, writing.Saved(owner, round, [digest]))
