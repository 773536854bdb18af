"""The ledger: every run in one SQLite file, one transaction per round.

A killed process loses at most the rounds that were not yet committed, never what was. The ledger knows records only as
bytes and experiments only as JSON; it decides nothing about training.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from undrift.core.errors import InvalidInput, nearest, unknown
from undrift.core.figure import Figure
from undrift.ledger.lock import LockFile, is_taken
from undrift.ledger.opening import clear_log, connect, connect_to_look, explained, is_read_only, transaction, usable
from undrift.ledger.rows import Entry, RoundRow, Run

LISTED = 10  # names of runs that an error lists

_RUNS = (
    "SELECT id, name, status, created, experiment, facts, message, "
    "(SELECT COALESCE(MAX(round), 0) FROM rounds WHERE run = runs.id) FROM runs"
)


def _run(row: tuple[Any, ...]) -> Run:
    return Run(row[0], row[1], row[2], row[3], json.loads(row[4]), json.loads(row[5]), row[6], row[7])


class Ledger:
    """The run store. Readers and writers of different runs may share the file."""

    def __init__(self, path: str | Path, *, create: bool = False, durable: bool = False) -> None:
        """``durable``: a round that was committed survives a power cut too; otherwise the last few may be lost then."""
        self.path, self._durable = Path(path), durable
        usable(self.path, create)
        self._copy: TemporaryDirectory[str] | None = None
        if is_read_only(self.path):
            self._db, self._copy = connect_to_look(self.path)
        else:
            self._db = connect(self.path, durable)
        self._writer: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None
        self._writer_db: sqlite3.Connection | None = None
        self._committed: dict[int, int] = {}  # run -> the last round that was written from here
        self.write_seconds = 0.0

    def close(self) -> None:
        self.flush()
        if self._writer is not None:
            self._writer.shutdown()
        for db in (self._writer_db, self._db):
            if db is not None:
                db.close()
        if self._copy is not None:
            self._copy.cleanup()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """All that is read within is of one moment, whatever others write meanwhile. May be nested."""
        if self._db.in_transaction:
            yield
            return
        with explained(self.path):
            self._db.execute("BEGIN")
        try:
            yield
        finally:
            self._db.execute("ROLLBACK")

    # -- runs ---------------------------------------------------------------------------------------------------------

    def add(self, name: str, experiment: Mapping[str, Any], facts: Mapping[str, Any]) -> Run:
        """A new run; its name gets a number where it is taken."""
        with explained(self.path), transaction(self._db):
            taken = {n for (n,) in self._db.execute("SELECT name FROM runs")}
            unique, count = name, 1
            while unique in taken:
                count += 1
                unique = f"{name}-{count}"
            cursor = self._db.execute(
                "INSERT INTO runs (name, status, created, experiment, facts) VALUES (?, 'running', ?, ?, ?)",
                (unique, time.time(), json.dumps(experiment), json.dumps(facts)),
            )
        return self._get(int(cursor.lastrowid or 0))

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        with explained(self.path):
            return [_run(row) for row in self._db.execute(f"{_RUNS} ORDER BY id").fetchall()]

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
        with explained(self.path):
            return _run(self._db.execute(f"{_RUNS} WHERE id = ?", (run,)).fetchone())

    def set_status(self, run: Run, status: str, message: str = "", facts: Mapping[str, Any] | None = None) -> None:
        self.flush()
        with explained(self.path):
            self._db.execute("UPDATE runs SET status = ?, message = ? WHERE id = ?", (status, message, run.id))
            if facts is not None:
                self._db.execute(
                    "UPDATE runs SET facts = ? WHERE id = ?", (json.dumps(dict(run.facts) | dict(facts)), run.id)
                )

    def set_rounds(self, run: Run, rounds: int) -> Run:
        """Plan another number of rounds."""
        with explained(self.path):
            text = json.dumps(dict(run.experiment) | {"rounds": rounds})
            self._db.execute("UPDATE runs SET experiment = ? WHERE id = ?", (text, run.id))
        return self._get(run.id)

    def delete(self, run: Run) -> None:
        with explained(self.path):
            self._db.execute("DELETE FROM runs WHERE id = ?", (run.id,))

    # -- rounds -------------------------------------------------------------------------------------------------------

    def record(self, run: Run, entry: Entry) -> None:
        """Write a round in one transaction, while the next round begins. At most one write is under way."""
        self.flush()
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._pending = self._writer.submit(self._write, run.id, entry)

    def committed(self, run: Run) -> int:
        """The last round of a run whose transaction has ended, of those recorded here; 0: none."""
        return self._committed.get(run.id, 0)

    def flush(self) -> None:
        """Wait until all that was recorded is committed; raises what the write raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _write(self, run: int, entry: Entry) -> None:
        began = time.perf_counter()
        if self._writer_db is None:
            self._writer_db = connect(self.path, self._durable)
        db = self._writer_db
        with explained(self.path):
            with transaction(db):
                self._insert(db, run, entry)
            clear_log(db, self.path)
        self._committed[run] = entry.round
        self.write_seconds += time.perf_counter() - began

    @staticmethod
    def _insert(db: sqlite3.Connection, run: int, entry: Entry) -> None:
        columns = ", ".join(RoundRow.COLUMNS)
        marks = ", ".join("?" * len(RoundRow.COLUMNS))
        db.execute(f"INSERT INTO rounds (run, {columns}) VALUES (?, {marks})", (run, *entry.row.values()))
        db.executemany(
            "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)",
            [(run, entry.round, f.model, f.data, f.metric, value) for f, value in entry.metrics],
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

    def rounds(self, run: Run) -> list[RoundRow]:
        columns = ", ".join(RoundRow.COLUMNS)
        rows = self._db.execute(f"SELECT {columns} FROM rounds WHERE run = ? ORDER BY round", (run.id,))
        return [RoundRow.of(row) for row in rows]

    def metrics(self, run: Run) -> list[tuple[int, Figure, float | None]]:
        """All evaluations: (round, what the number is of, the number)."""
        rows = self._db.execute(
            "SELECT round, model, data, metric, value FROM metrics WHERE run = ? ORDER BY round", (run.id,)
        )
        return [(at, Figure(model, data, metric), value) for at, model, data, metric, value in rows]

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
        try:
            lock = LockFile.of(self.path)
        except OSError as error:
            raise InvalidInput(f"{self.path} cannot be written ({error.strerror})") from None
        if not lock.take_soon(run.id):
            raise InvalidInput(f"run {run.name!r} in {self.path} is being written by another process")
        try:
            yield
        finally:
            lock.release(run.id)

    def is_held(self, run: Run) -> bool:
        """Is a process at work on this run now?"""
        return is_taken(self.path, run.id)
