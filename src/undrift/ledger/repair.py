"""Back to the last sound round of each run: what is sound goes into a new file, and the damaged one is kept beside it.

A run whose states are lost begins anew when it is resumed. Since a run's bits follow from its description, it comes to
the same end.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from undrift.core.errors import InvalidInput
from undrift.ledger import writing
from undrift.ledger.check import Checked, Examined, check, opened
from undrift.ledger.copying import copy_run
from undrift.ledger.lock import LockFile
from undrift.ledger.opening import connect, explained, is_read_only, transaction, usable


@dataclass(frozen=True)
class Repaired:
    """What was found, and where the damaged file is now; None: there was nothing to repair."""

    found: Checked
    aside: Path | None


def repair(path: Path) -> Repaired:
    path = path.resolve()
    usable(path, create=False)
    if is_read_only(path):
        raise InvalidInput(f"{path} cannot be written, and so not be repaired")
    found = check(path)
    if not found.damage:
        return Repaired(found, None)
    if all(one.run is None for one in found.runs):
        raise InvalidInput(f"{path} is damaged, and no run in it can be read: it stays as it is")
    fresh = path.with_name(f"{path.name}.repaired")
    _remove(fresh)
    with _held(path, (one.number for one in found.runs)):
        with opened(path) as (old, _), closing(connect(fresh, durable=True)) as db, explained(path), transaction(db):
            for one in found.runs:
                _save(old, db, one)
        aside = _aside(path)
        os.replace(path, aside)
        log = Path(f"{path}-wal")
        if log.exists():
            os.replace(log, f"{aside}-wal")
        _remove(path)
        os.replace(fresh, path)
    return Repaired(found, aside)


def outcome(one: Examined) -> str:
    """What a repair makes of a run, in words."""
    if one.run is None:
        return f"{one.name} is lost: its description cannot be read"
    if one.complete:
        more = "" if one.states else "; it would begin anew if it were resumed"
        return f"{one.name} is all there, with its {one.upto} rounds{more}"
    what = "goes on from there" if one.states else "begins anew when it is resumed"
    return f"{one.name} is back at round {one.upto} and {what}"


def _save(old: sqlite3.Connection, db: sqlite3.Connection, one: Examined) -> None:
    if one.run is None:
        return
    number = copy_run(old, db, one.number, rounds=range(1, one.upto + 1), states=one.states, clients=one.clients)
    if one.troubles:
        status = one.run.status if one.complete else "stopped"
        values = (status, f"repaired: {'; '.join(one.troubles)}", number)
        db.execute("UPDATE runs SET status = ?, message = ? WHERE id = ?", values)
        writing.seal_run(db, number)


@contextmanager
def _held(path: Path, runs: Iterable[int]) -> Iterator[None]:
    """Nobody writes to any of the runs meanwhile."""
    lock, mine = LockFile.of(path), []
    try:
        for run in runs:
            if not lock.take_soon(run):
                raise InvalidInput(f"{path} is being written by another process: repair it when that has ended")
            mine.append(run)
        yield
    finally:
        for run in mine:
            lock.release(run)


def _aside(path: Path) -> Path:
    place, count = path.with_name(f"{path.name}.damaged"), 1
    while place.exists():
        count += 1
        place = path.with_name(f"{path.name}.damaged-{count}")
    return place


def _remove(path: Path) -> None:
    for name in (f"{path}", f"{path}-wal", f"{path}-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(name)
