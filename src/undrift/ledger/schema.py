"""The tables of a ledger, and the way from each older version to the present one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from undrift.core.errors import InvalidInput
from undrift.ledger.rows import RoundRow

TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL,              -- running, stopped, finished, failed
    created REAL NOT NULL,
    experiment TEXT NOT NULL,          -- JSON: what was asked for
    facts TEXT NOT NULL,               -- JSON: fingerprints, versions, sizes, the runtime chosen
    message TEXT NOT NULL DEFAULT ''
);
CREATE TABLE rounds (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    {RoundRow.SQL},
    PRIMARY KEY (run, round)
) WITHOUT ROWID;
CREATE TABLE metrics (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    round INTEGER NOT NULL,
    model TEXT NOT NULL,               -- which model: global, personal, ...
    data TEXT NOT NULL,                -- on what: test, own test (mean), own test (worst decile)
    metric TEXT NOT NULL,              -- accuracy, loss
    value REAL,                        -- NULL: not a number
    PRIMARY KEY (run, round, model, data, metric)
) WITHOUT ROWID;
CREATE TABLE client_metrics (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    round INTEGER NOT NULL,
    model TEXT NOT NULL,
    accuracies TEXT NOT NULL,          -- JSON: {{client: accuracy on its own test part}}; the latest evaluation only
    PRIMARY KEY (run, model)
) WITHOUT ROWID;
CREATE TABLE rejections (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    round INTEGER NOT NULL,
    client TEXT NOT NULL,
    reason TEXT NOT NULL
);
CREATE TABLE snapshots (               -- what is needed to go on
    run INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE,
    round INTEGER NOT NULL,
    server BLOB NOT NULL,
    buffers BLOB NOT NULL
);
CREATE TABLE kept (                    -- what each client keeps between rounds
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    client INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, client)
);
"""


def _head_gradients(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE rounds ADD COLUMN head_gradients INTEGER NOT NULL DEFAULT 0")


# What leads from a version to the next one.
STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _head_gradients}
VERSION = 1 + len(STEPS)


def is_current(db: sqlite3.Connection, path: Path) -> bool:
    """Has the file the tables of this version? Refuses a file that is not a ledger, and one from the future."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return False
    if "meta" not in tables:
        raise InvalidInput(f"{path} is an SQLite file, but not a ledger of undrift")
    version = version_of(db)
    if version > VERSION:
        raise InvalidInput(
            f"{path} was written by a newer undrift (ledger version {version}, this one reads up to {VERSION}): "
            "update undrift, or choose another ledger"
        )
    return version == VERSION


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables where there are none, and bring older ones up to date, in the caller's transaction."""
    if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        for statement in TABLES.split(";\n"):
            db.execute(statement)
        db.execute("INSERT INTO meta VALUES ('version', ?)", (str(VERSION),))
    is_current(db, path)  # another process may have been faster
    while (version := version_of(db)) < VERSION:
        STEPS[version](db)
        db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(version + 1),))


def version_of(db: sqlite3.Connection) -> int:
    (value,) = db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    return int(value)
