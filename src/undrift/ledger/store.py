"""The ledger: every run in one SQLite file, one transaction per round.

A killed process loses at most the rounds that were not yet committed, never what was. The ledger knows records only as
bytes and experiments only as JSON; it decides nothing about training.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undrift.core.client import Kept
from undrift.core.errors import InvalidInput, nearest, unknown
from undrift.core.records import State

VERSION = 1
LISTED = 10  # names of runs that an error lists

_TABLES = """
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
    round INTEGER NOT NULL,
    seconds REAL NOT NULL,             -- wall time of the round, without evaluation
    client_seconds REAL NOT NULL,      -- time the clients worked, summed
    bytes_up INTEGER NOT NULL,
    bytes_down INTEGER NOT NULL,
    gradients INTEGER NOT NULL,        -- samples that went forward and backward
    forwards INTEGER NOT NULL,         -- samples that went forward only
    macs INTEGER NOT NULL,             -- client multiply-accumulates
    participants INTEGER NOT NULL,     -- whose uploads counted
    rejected INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    drift TEXT NOT NULL,               -- JSON: distance, cosine, amp
    notes TEXT NOT NULL,               -- JSON: the method's own series
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
    accuracies TEXT NOT NULL,          -- JSON: {client: accuracy on its own test part}; the latest evaluation only
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


@dataclass(frozen=True)
class Run:
    """A run as the ledger knows it."""

    id: int
    name: str
    status: str
    created: float
    experiment: dict[str, Any]
    facts: dict[str, Any]
    message: str
    rounds: int  # rounds done

    @property
    def label(self) -> str:
        """What to call the run in a table: the method with the settings that were given."""
        return str(self.facts.get("label") or self.experiment.get("algorithm", {}).get("name", self.name))


@dataclass(frozen=True)
class Entry:
    """What one round adds to the ledger."""

    round: int
    row: Mapping[str, Any]  # the columns of ``rounds``
    metrics: Iterable[tuple[str, str, str, float]] = ()  # model, data, metric, value
    clients: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # model -> client -> accuracy
    rejections: Mapping[str, str] = field(default_factory=dict)
    server: State | None = None
    buffers: State | None = None
    kept: Mapping[int, Kept] = field(default_factory=dict)


class Ledger:
    """The run store. Readers and writers of different runs may share the file."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        self.path = Path(path)
        if not self.path.exists() and not create:
            raise InvalidInput(f"there is no ledger at {self.path}")
        if self.path.is_dir():
            raise InvalidInput(f"{self.path} is a folder, not a ledger")
        if create:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InvalidInput(f"{self.path.parent} cannot be made for a ledger ({error.strerror})") from None
        self._db = self._connect()
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._writer_db: sqlite3.Connection | None = None
        self.write_seconds = 0.0
        self.followers: list[Callable[[Run, Entry], None]] = []  # told of every round that is recorded here

    def _connect(self) -> sqlite3.Connection:
        with _explained(self.path):
            db = sqlite3.connect(self.path, timeout=60, isolation_level=None, check_same_thread=False)
        try:
            with _explained(self.path):
                db.execute("PRAGMA foreign_keys = ON")
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = NORMAL")
                db.execute("BEGIN IMMEDIATE")
                known = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
                if not known:
                    if db.execute("SELECT 1 FROM sqlite_master").fetchone():
                        raise InvalidInput(f"{self.path} is an SQLite file, but not a ledger of undrift")
                    for statement in _TABLES.split(";\n"):
                        db.execute(statement)
                    db.execute("INSERT INTO meta VALUES ('version', ?)", (str(VERSION),))
                db.execute("COMMIT")
                (version,) = db.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
                if int(version) > VERSION:
                    raise InvalidInput(
                        f"{self.path} was written by a newer undrift (ledger version {version}, this one reads up to "
                        f"{VERSION}): update undrift, or choose another ledger"
                    )
        except BaseException:
            db.close()
            raise
        return db

    def close(self) -> None:
        self.flush()
        if self._writer is not None:
            self._writer.shutdown()
        for db in (self._writer_db, self._db):
            if db is not None:
                db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- runs ---------------------------------------------------------------------------------------------------------

    def add(self, name: str, experiment: Mapping[str, Any], facts: Mapping[str, Any]) -> Run:
        """A new run; its name gets a number where it is taken."""
        with _explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                taken = {n for (n,) in self._db.execute("SELECT name FROM runs")}
                unique, count = name, 1
                while unique in taken:
                    count += 1
                    unique = f"{name}-{count}"
                cursor = self._db.execute(
                    "INSERT INTO runs (name, status, created, experiment, facts) VALUES (?, 'running', ?, ?, ?)",
                    (unique, time.time(), json.dumps(experiment), json.dumps(facts)),
                )
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
        return self._get(int(cursor.lastrowid or 0))

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        return [self._get(i) for (i,) in self._db.execute("SELECT id FROM runs ORDER BY id").fetchall()]

    def run(self, reference: str | int) -> Run:
        """A run by name, by number, or by the beginning of its name where that is unique."""
        names = dict(self._db.execute("SELECT name, id FROM runs").fetchall())
        text = str(reference)
        if not names:
            raise InvalidInput(f"the ledger {self.path} holds no runs")
        if text in names:
            return self._get(names[text])
        if text.isdigit() and int(text) in names.values():
            return self._get(int(text))
        begins = [name for name in names if name.startswith(text)]
        if len(begins) == 1:
            return self._get(names[begins[0]])
        if begins:
            raise InvalidInput(f"run {text!r} could be any of {', '.join(sorted(begins)[:5])} in {self.path}")
        if nearest(text, names) or len(names) <= LISTED:
            raise unknown(f"run (in {self.path})", text, names)
        raise InvalidInput(f"unknown run {text!r}: {self.path} holds {len(names)}, `undrift show` lists them")

    def _get(self, run: int) -> Run:
        row = self._db.execute(
            "SELECT id, name, status, created, experiment, facts, message, "
            "(SELECT COALESCE(MAX(round), 0) FROM rounds WHERE run = runs.id) FROM runs WHERE id = ?",
            (run,),
        ).fetchone()
        return Run(row[0], row[1], row[2], row[3], json.loads(row[4]), json.loads(row[5]), row[6], row[7])

    def set_status(self, run: Run, status: str, message: str = "", facts: Mapping[str, Any] | None = None) -> None:
        self.flush()
        with _explained(self.path):
            self._db.execute("UPDATE runs SET status = ?, message = ? WHERE id = ?", (status, message, run.id))
            if facts is not None:
                self._db.execute(
                    "UPDATE runs SET facts = ? WHERE id = ?", (json.dumps(dict(run.facts) | dict(facts)), run.id)
                )

    def set_rounds(self, run: Run, rounds: int) -> Run:
        """Plan another number of rounds."""
        with _explained(self.path):
            text = json.dumps(dict(run.experiment) | {"rounds": rounds})
            self._db.execute("UPDATE runs SET experiment = ? WHERE id = ?", (text, run.id))
        return self._get(run.id)

    def delete(self, run: Run) -> None:
        with _explained(self.path):
            self._db.execute("DELETE FROM runs WHERE id = ?", (run.id,))

    # -- rounds -------------------------------------------------------------------------------------------------------

    def record(self, run: Run, entry: Entry) -> None:
        """Write a round in one transaction, while the next round begins. At most one write is under way."""
        self.flush()
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._pending = self._writer.submit(self._write, run.id, entry)
        for follower in self.followers:
            follower(run, entry)

    def flush(self) -> None:
        """Wait until all that was recorded is committed; raises what the write raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, run: int, entry: Entry) -> None:
        began = time.perf_counter()
        if self._writer_db is None:
            self._writer_db = self._connect()
        db = self._writer_db
        with _explained(self.path):
            db.execute("BEGIN IMMEDIATE")
            try:
                self._insert(db, run, entry)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        self.write_seconds += time.perf_counter() - began

    @staticmethod
    def _insert(db: sqlite3.Connection, run: int, entry: Entry) -> None:
        columns = ", ".join(entry.row)
        marks = ", ".join("?" * len(entry.row))
        db.execute(
            f"INSERT INTO rounds (run, round, {columns}) VALUES (?, ?, {marks})",
            (run, entry.round, *entry.row.values()),
        )
        db.executemany(
            "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
            [(run, entry.round, model, data, metric, value) for model, data, metric, value in entry.metrics],
        )
        for model, accuracies in entry.clients.items():
            text = json.dumps({str(k): round(v, 6) for k, v in accuracies.items()})
            db.execute("INSERT OR REPLACE INTO client_metrics VALUES (?, ?, ?, ?)", (run, entry.round, model, text))
        db.executemany(
            "INSERT INTO rejections VALUES (?, ?, ?, ?)",
            [(run, entry.round, client, reason) for client, reason in entry.rejections.items()],
        )
        if entry.server is not None and entry.buffers is not None:
            db.execute(
                "INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)",
                (run, entry.round, entry.server.encode(), entry.buffers.encode()),
            )
        db.executemany(
            "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)",
            ((run, client, kept.encode()) for client, kept in entry.kept.items()),
        )

    def snapshot(self, run: Run) -> tuple[int, bytes, bytes] | None:
        """The last committed round with the bytes of the server's state and the buffers."""
        row = self._db.execute("SELECT round, server, buffers FROM snapshots WHERE run = ?", (run.id,)).fetchone()
        return (int(row[0]), bytes(row[1]), bytes(row[2])) if row else None

    def kept(self, run: Run, client: int) -> bytes | None:
        row = self._db.execute("SELECT data FROM kept WHERE run = ? AND client = ?", (run.id, client)).fetchone()
        return bytes(row[0]) if row else None

    def rounds(self, run: Run) -> list[dict[str, Any]]:
        """The rows of ``rounds``, with JSON columns read."""
        cursor = self._db.execute("SELECT * FROM rounds WHERE run = ? ORDER BY round", (run.id,))
        names = [c[0] for c in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        for row in rows:
            row["drift"], row["notes"] = json.loads(row["drift"]), json.loads(row["notes"])
            del row["run"]
        return rows

    def metrics(self, run: Run) -> list[tuple[int, str, str, str, float | None]]:
        """All evaluations: (round, model, data, metric, value)."""
        return self._db.execute(
            "SELECT round, model, data, metric, value FROM metrics WHERE run = ? ORDER BY round", (run.id,)
        ).fetchall()

    def client_metrics(self, run: Run) -> dict[str, tuple[int, dict[int, float]]]:
        """The latest accuracies on each client's own test part: model -> (round, client -> accuracy)."""
        rows = self._db.execute(
            "SELECT model, round, accuracies FROM client_metrics WHERE run = ?", (run.id,)
        ).fetchall()
        return {model: (at, {int(k): v for k, v in json.loads(text).items()}) for model, at, text in rows}

    def rejections(self, run: Run) -> list[tuple[int, str, str]]:
        return self._db.execute(
            "SELECT round, client, reason FROM rejections WHERE run = ? ORDER BY round, client", (run.id,)
        ).fetchall()

    # -- one process per run ------------------------------------------------------------------------------------------

    @contextmanager
    def holding(self, run: Run) -> Iterator[None]:
        """Hold a run: a second process is refused. The lock ends with the process, however that ends."""
        lock = _LockFile.of(self.path)
        if not lock.take_soon(run.id):
            raise InvalidInput(f"run {run.name!r} in {self.path} is being written by another process")
        try:
            yield
        finally:
            lock.release(run.id)

    def is_held(self, run: Run) -> bool:
        """Is a process at work on this run now?"""
        lock = _LockFile.of(self.path)
        if run.id in lock.mine:
            return True
        if lock.take(run.id):
            lock.release(run.id)
            return False
        return True


class _LockFile:
    """One byte of a lock file per run. POSIX drops all of a process's locks on a file when it closes it anywhere, so
    a process opens each lock file once and keeps it."""

    open_files: dict[Path, _LockFile] = {}  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.mine: set[int] = set()

    @classmethod
    def of(cls, ledger: Path) -> _LockFile:
        path = ledger.resolve().with_name(ledger.name + "-lock")
        if path not in cls.open_files:
            cls.open_files[path] = cls(path)
        return cls.open_files[path]

    def take(self, run: int) -> bool:
        if run in self.mine:
            return False
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, run)
        except OSError:
            return False
        self.mine.add(run)
        return True

    def take_soon(self, run: int) -> bool:
        """Whoever only looks (``is_held``) has the lock for a moment: try again before giving up."""
        for pause in (0.01, 0.05, 0.2):
            if self.take(run):
                return True
            time.sleep(pause)
        return self.take(run)

    def release(self, run: int) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, run)
        self.mine.discard(run)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what SQLite says into a sentence."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "full" in text:
            raise InvalidInput(
                f"the disk is full: {path} could not be written; what was recorded before is safe"
            ) from error
        if "not a database" in text or "malformed" in text:
            raise InvalidInput(f"{path} is not a ledger of undrift ({text})") from error
        if "readonly" in text or "unable to open" in text:
            raise InvalidInput(f"{path} cannot be written ({text})") from error
        if "locked" in text:
            raise InvalidInput(f"{path} is locked by another program for more than a minute") from error
        raise


class LedgerKeep:
    """What clients keep, read from the ledger, with the most recent ones held in memory up to a limit."""

    def __init__(
        self, ledger: Ledger, run: Run, kind: type[State], device: str = "cpu", limit: int = 256 * 2**20
    ) -> None:
        self._ledger, self._run, self._kind, self._device, self._limit = ledger, run, kind, device, limit
        self._recent: dict[int, tuple[Kept, int]] = {}
        self._bytes = 0

    def load(self, client: int) -> Kept | None:
        if client in self._recent:
            return self._recent[client][0]
        data = self._ledger.kept(self._run, client)
        return Kept.decode(self._kind, data).to(self._device) if data is not None else None

    def save(self, kept: Mapping[int, Kept]) -> None:
        """Remember what the ledger has been told to write; older entries give way once they are committed."""
        for client, value in kept.items():
            size = sum(t.numel() * t.element_size() for t in value.tensors().values())
            self._bytes += size - self._recent.pop(client, (value, 0))[1]
            self._recent[client] = (value, size)
        while self._bytes > self._limit and len(self._recent) > len(kept):
            _, size = self._recent.pop(next(iter(self._recent)))
            self._bytes -= size
