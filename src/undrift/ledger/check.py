"""Is a ledger what was written?

A round is sound if its seal and those of all rounds before it are right. A run can go on from a sound round if the
states of that round are sound as well; a ledger has those of the last round and of the one before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from undrift.ledger import reading
from undrift.ledger.digest import NONE, NotAsWritten
from undrift.ledger.opening import UNREADABLE, Damaged, brief, connect, connect_to_look, explained, is_read_only, usable
from undrift.ledger.reading import State
from undrift.ledger.rows import Run

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Examined:
    """What is sound of a run."""

    number: int
    run: Run | None  # None: not even its description
    upto: int = 0  # the last sound round
    complete: bool = False  # it was finished, and all its rounds are sound
    states: tuple[State, ...] = ()  # to go on from there
    clients: bool = True  # are the clients' figures sound?
    troubles: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"run {self.number}" if self.run is None else f"run {self.run.name!r}"


@dataclass(frozen=True)
class Checked:
    """What a check found."""

    path: Path
    runs: tuple[Examined, ...]
    troubles: tuple[str, ...]  # of the file as a whole

    @property
    def damage(self) -> list[str]:
        return [*self.troubles, *(f"{one.name}: {text}" for one in self.runs for text in one.troubles)]


def check(path: Path) -> Checked:
    """Read all that a ledger holds."""
    usable(path, create=False)
    with opened(path) as (db, trouble):
        found, broken = _tried(reading.integrity, db, 3)
        _, uncounted = _tried(reading.names, db)
        whole = dict.fromkeys(text for text in (trouble, *(found or ()), broken, uncounted) if text)
        runs = tuple(examined(db, number) for number in _numbers(db))
    return Checked(path, runs, tuple(whole))


@contextmanager
def opened(path: Path) -> Iterator[tuple[sqlite3.Connection, str]]:
    """The file, also one that is too damaged to be opened as a ledger; and what is wrong with it then."""
    copy, trouble = None, ""
    try:
        db, copy = connect_to_look(path) if is_read_only(path) else (connect(path), None)
    except Damaged as error:
        trouble = error.what
        with explained(path):
            db = sqlite3.connect(path, isolation_level=None)
    try:
        yield db, trouble
    finally:
        db.close()
        if copy is not None:
            copy.cleanup()


def examined(db: sqlite3.Connection, number: int) -> Examined:
    """Read all of a run."""
    run, trouble = _tried(reading.described, db, number)
    if run is None:
        return Examined(number, None, troubles=(trouble,))
    head, lost = _tried(reading.head, db, number)
    rounds, trouble = _tried(reading.recorded, db, number)
    upto = _sound_rounds(db, number) if rounds is None or head is None else head.round
    clients, unclear = _tried(reading.client_metrics, db, number)
    troubles = [lost, trouble, "" if head is None else unclear]
    states: tuple[State, ...] | None = None
    if head is not None and upto == head.round:
        states, trouble = _tried(_sound_states, db, number, 0)
        troubles.append(trouble)
    complete = run.status == "finished" and head is not None and upto == head.round
    if states is None and head is not None and upto >= head.round - 1 and not complete:
        states, _ = _tried(_sound_states, db, number, 1)
        upto = head.round - 1 if states is not None else upto
    told = tuple(dict.fromkeys(filter(None, troubles)))
    return Examined(number, run, upto, complete, states or (), clients is not None, told)


def _sound_rounds(db: sqlite3.Connection, number: int) -> int:
    """The last round that is sound with all before it."""
    chain, last = NONE, 0
    while True:
        found, _ = _tried(_link, db, number, last + 1)
        if found is None or found.sealed(chain) != found.seal:
            return last
        chain, last = found.seal, last + 1


def _link(db: sqlite3.Connection, number: int, at: int) -> reading.Link | None:
    return next(reading.links(db, number, at), None)


def _sound_states(db: sqlite3.Connection, number: int, ago: int) -> tuple[State, ...]:
    """The states of the last round or of the one before, all of whose pieces were read."""
    found = tuple(reading.states(db, number, ago).values())
    for state in found:
        for _ in reading.pieces(db, number, state):
            pass
    return found


def _numbers(db: sqlite3.Connection) -> list[int]:
    """All numbers of runs that can be found, in whatever table."""
    found: set[int] = set()
    for table, column in (("runs", "id"), ("heads", "run"), ("rounds", "run")):
        rows = db.cursor()
        try:
            for (number,) in rows.execute(f"SELECT DISTINCT {column} FROM {table}"):
                found |= {number} if isinstance(number, int) else set()
        except UNREADABLE:
            continue  # what came before is known
    return sorted(found)


def _tried(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T | None, str]:
    """What a reading gives, or what is wrong."""
    try:
        return call(*args, **kwargs), ""
    except NotAsWritten as error:
        return None, str(error)
    except UNREADABLE as error:
        return None, f"SQLite cannot read it ({brief(error)})"
