"""The tables of a ledger, and the way from each older version to the present one."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path

from undrift.core.errors import InvalidInput
from undrift.ledger.digest import NONE, NotAsWritten
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
    message TEXT NOT NULL DEFAULT '',
    seal TEXT NOT NULL DEFAULT ''      -- of the row
);
CREATE TABLE heads (                   -- where each run stands
    run INTEGER PRIMARY KEY REFERENCES runs(id) ON DELETE CASCADE,
    round INTEGER NOT NULL,            -- the last one recorded
    chain TEXT NOT NULL,               -- its seal, which covers all before it
    clients TEXT NOT NULL,             -- the seal of the rows in client_metrics
    states TEXT NOT NULL,              -- what is in states now: the digests mixed
    before TEXT NOT NULL,              -- and what was there a round ago
    seal TEXT NOT NULL
);
CREATE TABLE rounds (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    {RoundRow.SQL},
    seal TEXT NOT NULL DEFAULT '',     -- of the row, its metrics and rejections, and the seal of the round before
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
    accuracies TEXT NOT NULL,          -- JSON: {{client: accuracy on its own test part}}, the latest evaluation only
    PRIMARY KEY (run, model)
) WITHOUT ROWID;
CREATE TABLE rejections (
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    round INTEGER NOT NULL,
    client TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (run, round, client)
) WITHOUT ROWID;
CREATE TABLE states (                  -- what is needed to go on, now and a round ago
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    owner INTEGER NOT NULL,            -- a client; -1: the server; -2: the buffers
    round INTEGER NOT NULL,            -- that it was written in
    until INTEGER,                     -- the round that replaced it; NULL: none yet
    pieces INTEGER NOT NULL,
    digest TEXT NOT NULL,              -- of the digests of the pieces
    PRIMARY KEY (run, owner, round)
) WITHOUT ROWID;
CREATE INDEX replaced ON states (run, until) WHERE until IS NOT NULL;
CREATE TABLE pieces (                  -- the bytes of states; those that no state names are not there yet
    run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,
    owner INTEGER NOT NULL,
    round INTEGER NOT NULL,
    number INTEGER NOT NULL,
    digest TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, owner, round, number)
);
"""


def _head_gradients(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE rounds ADD COLUMN head_gradients INTEGER NOT NULL DEFAULT 0")


def _digests(db: sqlite3.Connection) -> None:
    from undrift.ledger.migrate import with_digests

    with_digests(db)


# What leads from a version to the next one.
STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {1: _head_gradients, 2: _digests}
VERSION = 1 + len(STEPS)


def create(db: sqlite3.Connection) -> None:
    """The tables of an empty ledger."""
    for statement in TABLES.split(";\n"):
        db.execute(statement)
    db.execute("INSERT INTO meta VALUES ('version', ?), ('census', ?)", (str(VERSION), NONE))


def is_current(db: sqlite3.Connection, path: Path) -> bool:
    """Has the file the tables of this version? Refuses a file that is not a ledger, and one from the future."""
    found = _described(db)
    if not found:
        if db.execute("PRAGMA page_count").fetchone()[0] > 1:
            raise NotAsWritten("there are no tables in it")
        return False
    names = {name for _, name, _ in found}
    if "meta" not in names:
        raise InvalidInput(f"{path} is an SQLite file, but not a ledger of undrift")
    version = version_of(db)
    if version > VERSION:
        raise InvalidInput(
            f"{path} was written by a newer undrift (ledger version {version}, this one reads up to {VERSION}): "
            "update undrift, or choose another ledger"
        )
    if (version == VERSION) != (_expected() <= found) or (version < VERSION and "heads" in names):
        raise NotAsWritten(f"its tables are not those of version {version}")
    return version == VERSION


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables where there are none, and bring older ones up to date, in the caller's transaction."""
    if not _described(db):
        create(db)
    if is_current(db, path):  # another process may have been faster
        return
    while (version := version_of(db)) < VERSION:
        STEPS[version](db)
        db.execute("UPDATE meta SET value = ? WHERE key = 'version'", (str(version + 1),))


def version_of(db: sqlite3.Connection) -> int:
    found = db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    if found is None or not str(found[0]).isdigit():
        raise NotAsWritten("it does not say its version")
    return int(found[0])


def _described(db: sqlite3.Connection) -> set[tuple[str, str, str]]:
    return set(db.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


@functools.cache
def _expected() -> frozenset[tuple[str, str, str]]:
    db = sqlite3.connect(":memory:")
    create(db)
    found = frozenset(_described(db))
    db.close()
    return found
