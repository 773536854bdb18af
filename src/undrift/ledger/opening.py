"""Opening the file of a ledger, for writing or only to look, and what SQLite's errors are in words.

Looking writes nothing: not to an empty file, not to another program's, and not on a read-only disk.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from undrift.core.errors import InvalidInput
from undrift.ledger import schema
from undrift.ledger.digest import NotAsWritten

WAIT = 300  # seconds that one waits for another's transaction; SQLite lets nobody queue, so with many it may take long
PATIENCE = 0.2, 20.0  # and for those who read, when the log is to be cleared: first a little, and then in earnest
PAUSE = 60.0  # seconds in which nobody tries in earnest again, when one who reads did not come to an end
LOG = 16 << 20  # bytes of the write-ahead log beyond which whoever writes clears it


BRIEF = 120  # characters of an error that are quoted
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)  # what a damaged file can cause; even the error's text may be damaged


class Damaged(InvalidInput):
    """What is stored is not what was written."""

    def __init__(self, path: Path, what: str, run: str = "") -> None:
        where = f"run {run!r} in {path}" if run else f"{path}"
        super().__init__(f"{where} is damaged: {what} (`undrift check {path}` says more, `undrift repair` mends it)")
        self.what = what


def usable(path: Path, create: bool) -> None:
    """Refuse what cannot be a ledger, before anything is written."""
    if not path.exists():
        if not create:
            raise InvalidInput(f"there is no ledger at {path}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path.parent} cannot be made for a ledger ({error.strerror})") from None
    elif path.is_dir():
        raise InvalidInput(f"{path} is a folder, not a ledger")
    elif not path.is_file():
        raise InvalidInput(f"{path} is not a file, so it is no ledger")
    elif not create and path.stat().st_size == 0:
        raise InvalidInput(f"{path} is empty: no run has been recorded there")


def connect(path: Path, durable: bool | None = None) -> sqlite3.Connection:
    """A connection that may write. In a ``durable`` ledger a committed round survives a power cut too, at the price of
    waiting for the disk once a round; otherwise the last few may be lost then, though never to a killed process. The
    ledger remembers it for all who write to it; None: as it is."""
    with explained(path):
        db = sqlite3.connect(path, timeout=WAIT, isolation_level=None, check_same_thread=False)
    try:
        with explained(path):
            db.execute("PRAGMA foreign_keys = ON")
            db.execute("PRAGMA cell_size_check = ON")
            current = schema.is_current(db, path)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA journal_size_limit = {LOG}")
            if not current:
                with transaction(db):
                    schema.prepare(db, path)
            if durable is not None and durable != is_durable(db):
                db.execute("INSERT OR REPLACE INTO meta VALUES ('durable', ?)", ("yes" if durable else "no",))
            db.execute(f"PRAGMA synchronous = {'FULL' if is_durable(db) else 'NORMAL'}")
    except BaseException:
        db.close()
        raise
    return db


def is_durable(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT 1 FROM meta WHERE key = 'durable' AND value = 'yes'").fetchone())


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def is_read_only(path: Path) -> bool:
    """May the file or its folder not be written? SQLite needs both."""
    return path.exists() and not (os.access(path, os.W_OK) and os.access(path.resolve().parent, os.W_OK))


def connect_to_look(path: Path) -> tuple[sqlite3.Connection, TemporaryDirectory[str] | None]:
    """A connection to a file that cannot be written. One that has to be changed first, since an older undrift wrote it
    or the last rounds are still in its log, is copied; the copy's folder is to be removed in the end."""
    log = Path(f"{path.resolve()}-wal")
    with explained(path):
        db = sqlite3.connect(
            f"{path.resolve().as_uri()}?immutable=1", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA cell_size_check = ON")
            if schema.is_current(db, path) and not (log.exists() and log.stat().st_size):
                return db, None
        except BaseException:
            db.close()
            raise
        db.close()
    folder = TemporaryDirectory(prefix="undrift-")
    copy = Path(folder.name) / path.name
    shutil.copyfile(path, copy)
    if log.exists():
        shutil.copyfile(log, f"{copy}-wal")
    try:
        db = connect(copy)
        db.execute("PRAGMA query_only = ON")
        return db, folder
    except BaseException:
        folder.cleanup()
        raise


def clear_log(db: sqlite3.Connection, path: Path) -> None:
    """Empty the write-ahead log where it has grown: with many at work it may never come to an end by itself.

    All who read must have ended for it, and all who write wait meanwhile. So the waiting is short until the log is
    large; and one who reads for ever must not hold up the others for ever, which the time of the lock file tells them.
    """
    real, size = path.resolve(), 0
    tried = Path(f"{real}-lock")
    with contextlib.suppress(OSError):
        size = os.stat(f"{real}-wal").st_size
    if size <= LOG:
        return
    earnest = size > 2 * LOG and not (tried.exists() and time.time() - tried.stat().st_mtime < PAUSE)
    db.execute(f"PRAGMA busy_timeout = {int(1000 * PATIENCE[earnest])}")
    (busy, *_), *_ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    db.execute(f"PRAGMA busy_timeout = {1000 * WAIT}")
    if busy and earnest and tried.exists():
        os.utime(tried)


@contextmanager
def explained(path: Path, run: str = "") -> Iterator[None]:
    """Turn what SQLite or a digest says into a sentence."""
    try:
        yield
    except NotAsWritten as error:
        raise Damaged(path, str(error), run) from None
    except UNREADABLE as error:
        text = brief(error)
        if "full" in text:
            raise InvalidInput(
                f"the disk is full: {path} could not be written; what was recorded before is safe"
            ) from error
        if "not a database" in text:
            raise InvalidInput(f"{path} is not a ledger of undrift ({text})") from error
        if "readonly" in text or "unable to open" in text:
            raise InvalidInput(f"{path} cannot be written ({text})") from error
        if "locked" in text:
            raise InvalidInput(f"{path} is locked by another program for more than {WAIT // 60} minutes") from error
        if isinstance(error, sqlite3.ProgrammingError):
            raise  # a mistake of ours, not of the file
        raise Damaged(path, text, run) from error


def brief(error: Exception) -> str:
    """What an error says, in one line that can be printed, though it may quote what is damaged."""
    text = " ".join(str(error).split())
    return "".join(c if c.isprintable() else "?" for c in text[:BRIEF]) + ("..." if len(text) > BRIEF else "")
