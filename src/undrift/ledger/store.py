"""The ledger: every run in one SQLite file, one transaction per round.

A killed process loses at most the rounds that were not yet committed, never what was; what is read is what was written,
or it is said that it is not. The ledger knows states only as tensors and experiments only as JSON; it decides nothing
about training.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from torch import Tensor

from undrift.core.errors import InvalidInput, nearest, unknown
from undrift.ledger import pieces, reading, writing
from undrift.ledger.copying import copy_run
from undrift.ledger.digest import NotAsWritten
from undrift.ledger.lock import LockFile, is_taken
from undrift.ledger.opening import clear_log, connect, connect_to_look, explained, is_read_only, transaction, usable
from undrift.ledger.reading import Metrics, Recorded, State
from undrift.ledger.rows import BEST, BEST_BUFFERS, BUFFERS, SERVER, Entry, RoundRow, Run

LISTED = 10  # names of runs that an error lists


class Stored(NamedTuple):
    """What the server held after a round."""

    round: int
    server: dict[str, Tensor]
    buffers: dict[str, Tensor]


class Ledger:
    """The run store. Readers and writers of different runs may share the file."""

    def __init__(self, path: str | Path, *, create: bool = False, durable: bool | None = None) -> None:
        """In a ``durable`` ledger a round that was committed survives a power cut too; otherwise the last few may be
        lost then. The ledger remembers it; None: as it is, and a new one is not."""
        self.path = Path(path)
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
        self._read: tuple[str, Recorded] | None = None  # the rounds read last, by their chain
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
            number = writing.add_run(self._db, name, experiment, facts)
        return self._get(number)

    def runs(self) -> list[Run]:
        """All runs, oldest first."""
        with self.reading(), explained(self.path):
            return reading.runs(self._db)

    def run(self, reference: str | int) -> Run:
        """A run by name, by number, or by the beginning of its name where that is unique."""
        with self.reading(), explained(self.path):
            names = reading.names(self._db)
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
            return reading.run(self._db, run)

    def set_status(self, run: Run, status: str, message: str = "", facts: Mapping[str, Any] | None = None) -> None:
        self.flush()
        more = {} if facts is None else {"facts": json.dumps(dict(run.facts) | dict(facts))}
        self._change(run, status=status, message=message, **more)

    def set_rounds(self, run: Run, rounds: int) -> Run:
        """Plan another number of rounds."""
        self._change(run, experiment=json.dumps(dict(run.experiment) | {"rounds": rounds}))
        return self._get(run.id)

    def _change(self, run: Run, **columns: str) -> None:
        with explained(self.path), transaction(self._db):
            reading.run(self._db, run.id)  # what is damaged must not be sealed anew
            changes = ", ".join(f"{name} = ?" for name in columns)
            self._db.execute(f"UPDATE runs SET {changes} WHERE id = ?", (*columns.values(), run.id))
            writing.seal_run(self._db, run.id)

    def delete(self, run: Run) -> None:
        with explained(self.path), transaction(self._db):
            writing.delete_run(self._db, run.id, run.name)

    def copy(self, run: Run, other: Ledger, instead: Run | None = None) -> Run:
        """Copy a run, with all that belongs to it, to another ledger: there in the place of ``instead``, at once."""
        with self.reading(), explained(self.path, run.name):
            rounds = [row.round for row in reading.recorded(self._db, run.id).rounds]
            states = reading.states(self._db, run.id).values()
            with explained(other.path), transaction(other._db):
                if instead is not None:
                    writing.delete_run(other._db, instead.id, instead.name)
                number = copy_run(self._db, other._db, run.id, rounds=rounds, states=states)
        return other.run(number)

    def move(self, run: Run, other: Ledger) -> Run:
        """Move a run, with all that belongs to it, to another ledger. It is nowhere for not one moment."""
        with self.holding(run):
            moved = self.copy(run, other)
        self.delete(run)
        return moved

    def compact(self) -> None:
        """Give the room of what was deleted back to the disk, unless somebody is at work here."""
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute("VACUUM")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def restart(self, run: Run) -> None:
        """Forget the rounds of a run, which then begins anew."""
        with explained(self.path), transaction(self._db):
            writing.restart(self._db, run.id)

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
            self._writer_db = connect(self.path)
        db = self._writer_db
        with explained(self.path), transaction(db):
            writing.put_round(db, run, entry, list(self._saved(db, run, entry)))
        clear_log(db, self.path)
        self._committed[run] = entry.round
        self.write_seconds += time.perf_counter() - began

    def _saved(self, db: sqlite3.Connection, run: int, entry: Entry) -> Iterator[writing.Saved]:
        """Write the pieces of a round's states. Large ones go ahead of the round, in transactions of a piece, so that
        neither memory nor the log has to hold a large state; they count for nothing until the round names them."""
        size = 0
        for owner, tensors, header in writing.tensors_of(entry):
            digests = []
            writing.drop_pieces(db, run, owner, entry.round)  # of a try that did not come to its end
            for number, data in enumerate(pieces.cut(tensors, header, pieces.PIECE)):
                if size + len(data) > 2 * pieces.PIECE:
                    db.execute("COMMIT")
                    clear_log(db, self.path)
                    db.execute("BEGIN IMMEDIATE")
                    size = 0
                digests.append(writing.put_piece(db, run, owner, entry.round, number, data))
                size += len(data)
            yield writing.Saved(owner, entry.round, digests)

    def recorded(self, run: Run) -> Recorded:
        """All rounds of a run, with their figures and rejections, of one moment."""
        with self.reading(), explained(self.path, run.name):
            chain = reading.head(self._db, run.id).chain
            if self._read is None or self._read[0] != chain:
                self._read = chain, reading.recorded(self._db, run.id)
            return self._read[1]

    def rounds(self, run: Run) -> list[RoundRow]:
        return self.recorded(run).rounds

    def metrics(self, run: Run) -> Metrics:
        """All evaluations: (round, what the number is of, the number)."""
        return self.recorded(run).metrics

    def rejections(self, run: Run) -> list[tuple[int, str, str]]:
        """Round, client and reason."""
        return self.recorded(run).rejections

    def client_metrics(self, run: Run) -> dict[str, tuple[int, dict[int, float]]]:
        """The latest accuracies on each client's own test part: model -> (round, client -> accuracy)."""
        return {name: found for name, found in self.kept_figures(run).items() if ": " not in name}

    def kept_figures(self, run: Run) -> dict[str, tuple[int, dict[int, float]]]:
        """The latest figures of each client, and counts, by ``figure.kept_as``: (round, client or place -> value)."""
        with self.reading(), explained(self.path, run.name):
            return reading.client_metrics(self._db, run.id)

    # -- states -------------------------------------------------------------------------------------------------------

    def snapshot(self, run: Run, best: bool = False) -> Stored | None:
        """What the server held after the last round, or after the best one, where that is kept; None: it is not."""
        with self.reading(), explained(self.path, run.name):
            stands = reading.head(self._db, run.id).round
            found = [
                reading.state(self._db, run.id, owner)
                for owner in ((BEST, BEST_BUFFERS) if best else (SERVER, BUFFERS))
            ]
            if found == [None, None]:
                return None
            stands = found[0].round if best and found[0] is not None else stands
            if any(state is None or state.round != stands for state in found):
                raise NotAsWritten(f"the server's state is not that of round {stands}")
            server, buffers = (self._tensors(run, state)[0] for state in found if state is not None)
            return Stored(stands, server, buffers)

    def kept(self, run: Run, client: int) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What a client keeps: its tensors, and the header they were kept with."""
        with explained(self.path, run.name):
            state = reading.state(self._db, run.id, client)
            return None if state is None else self._tensors(run, state)

    def _tensors(self, run: Run, state: State) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return pieces.joined(reading.pieces(self._db, run.id, state))

    def verify(self, run: Run) -> None:
        """Before a run goes on: are the file, the run's rounds and the list of its states what was written?"""
        with explained(self.path):
            found = reading.integrity(self._db)
            if found:
                raise NotAsWritten(found[0])
        with self.reading(), explained(self.path, run.name):
            reading.recorded(self._db, run.id)
            reading.client_metrics(self._db, run.id)  # the next round seals them anew
            reading.states(self._db, run.id)

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
