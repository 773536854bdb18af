"""Reading what a ledger holds and checking it against its digests. Whatever does not agree is never given back.

The functions take a connection and raise ``NotAsWritten``; which file it was is known to whoever calls.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from undrift.core.figure import Figure
from undrift.ledger.digest import NONE, NotAsWritten, mixed, of_bytes, seal
from undrift.ledger.rows import Head, RoundRow, Run

Metrics = list[tuple[int, Figure, float | None]]

_RUNS = (
    "SELECT id, name, status, created, experiment, facts, message, runs.seal, "
    "heads.round, chain, clients, states, before, heads.seal FROM runs LEFT JOIN heads ON run = id"
)


class Recorded(NamedTuple):
    """The rounds of a run and what belongs to them."""

    rounds: list[RoundRow]
    metrics: Metrics  # round, what the number is of, the number
    rejections: list[tuple[int, str, str]]  # round, client, reason


class Link(NamedTuple):
    """A round as it is stored, with the seal that was stored beside it."""

    row: tuple[Any, ...]
    metrics: list[tuple[Any, ...]]
    rejections: list[tuple[Any, ...]]
    seal: str

    def sealed(self, before: str) -> str:
        """The seal that it should have, given that of the round before."""
        return seal(before, self.row, self.metrics, self.rejections)


class State(NamedTuple):
    """A state of the server or a client: where its pieces are."""

    owner: int
    round: int
    until: int | None
    pieces: int
    digest: str


def integrity(db: sqlite3.Connection, most: int = 1) -> list[str]:
    """What SQLite finds wrong with the file as such."""
    found = [" ".join(str(text).split()) for (text,) in db.execute(f"PRAGMA integrity_check({most})")]
    return [] if found == ["ok"] else found


# --- runs -------------------------------------------------------------------------------------------------------------


def names(db: sqlite3.Connection) -> dict[str, int]:
    """The numbers of all runs by name."""
    found = db.execute("SELECT id, name FROM runs ORDER BY id").fetchall()
    (census,) = db.execute("SELECT value FROM meta WHERE key = 'census'").fetchone() or ("",)
    if mixed(seal(*one) for one in found) != census:
        raise NotAsWritten("its list of runs is not what was written")
    return {name: number for number, name in found}


def runs(db: sqlite3.Connection) -> list[Run]:
    """All runs, oldest first."""
    names(db)
    return [_run(row) for row in db.execute(f"{_RUNS} ORDER BY id").fetchall()]


def run(db: sqlite3.Connection, number: int) -> Run:
    row = db.execute(f"{_RUNS} WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise NotAsWritten(f"there is no run {number}")
    return _run(row)


def described(db: sqlite3.Connection, number: int) -> Run:
    """A run by its description alone, however many rounds it has."""
    row = db.execute(f"{_RUNS} WHERE id = ?", (number,)).fetchone()
    return _described(row, 0)


def _run(row: tuple[Any, ...]) -> Run:
    return _described(row, _head(row[8:]).round)


def _described(row: tuple[Any, ...] | None, rounds: int) -> Run:
    if row is None or seal(*row[:7]) != row[7]:
        raise NotAsWritten(f"the description of run {row[0] if row else '?'} is not what was written")
    return Run(row[0], row[1], row[2], row[3], json.loads(row[4]), json.loads(row[5]), row[6], rounds)


def head(db: sqlite3.Connection, run: int) -> Head:
    """Where a run stands."""
    row = db.execute("SELECT round, chain, clients, states, before, seal FROM heads WHERE run = ?", (run,)).fetchone()
    return _head(row or (None,) * 6)


def _head(row: tuple[Any, ...]) -> Head:
    if seal(*row[:-1]) != row[-1]:
        raise NotAsWritten("where it stands is not what was written")
    return Head(*row[:-1])


# --- rounds -----------------------------------------------------------------------------------------------------------


def links(db: sqlite3.Connection, run: int, at: int | None = None) -> Iterator[Link]:
    """The rounds of a run, or one of them, as they are stored."""
    where, key = ("run = ?", (run,)) if at is None else ("run = ? AND round = ?", (run, at))
    metrics: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    rejections: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for row in db.execute(
        f"SELECT round, model, data, metric, value FROM metrics WHERE {where} ORDER BY round, model, data, metric", key
    ):
        metrics[row[0]].append(row[1:])
    for row in db.execute(f"SELECT round, client, reason FROM rejections WHERE {where} ORDER BY round, client", key):
        rejections[row[0]].append(row[1:])
    columns = ", ".join(RoundRow.COLUMNS)
    for row in db.execute(f"SELECT {columns}, seal FROM rounds WHERE {where} ORDER BY round", key).fetchall():
        yield Link(row[:-1], metrics[row[0]], rejections[row[0]], row[-1])


def recorded(db: sqlite3.Connection, run: int) -> Recorded:
    """All rounds of a run."""
    found, chain, last = Recorded([], [], []), NONE, 0
    figures: dict[tuple[str, str, str], Figure] = {}
    for link in links(db, run):
        last, before = link.row[0], last
        chain = link.sealed(chain)
        if chain != link.seal:
            raise NotAsWritten(f"what was recorded after round {before} is not what was written")
        found.rounds.append(RoundRow.of(link.row))
        for model, data, metric, value in link.metrics:
            figure = figures.setdefault((model, data, metric), Figure(model, data, metric))
            found.metrics.append((last, figure, value))
        found.rejections.extend((last, client, reason) for client, reason in link.rejections)
    stands = head(db, run)
    if (last, chain) != (stands.round, stands.chain):
        raise NotAsWritten(f"{stands.round} rounds were recorded, and {last} of them are there")
    return found


def client_metrics(db: sqlite3.Connection, run: int) -> dict[str, tuple[int, dict[int, float]]]:
    """The latest accuracies on each client's own test part: model -> (round, client -> accuracy)."""
    rows = db.execute("SELECT model, round, accuracies FROM client_metrics WHERE run = ?", (run,)).fetchall()
    if mixed(seal(*row) for row in rows) != head(db, run).clients:
        raise NotAsWritten("the clients' figures are not what was written")
    return {model: (at, {int(k): v for k, v in json.loads(text).items()}) for model, at, text in rows}


# --- states -----------------------------------------------------------------------------------------------------------


def states(db: sqlite3.Connection, run: int, ago: int = 0) -> dict[int, State]:
    """All that is needed to go on from the last round, or from the one before it: the states by owner."""
    stands = head(db, run)
    now = "until IS NULL" if ago == 0 else f"until = {stands.round} OR (until IS NULL AND round < {stands.round})"
    rows = db.execute(f"SELECT owner, round, until, pieces, digest FROM states WHERE run = ? AND ({now})", (run,))
    found = [State._make(row) for row in rows]
    if mixed(one.digest for one in found) != (stands.before if ago else stands.states):
        raise NotAsWritten("the list of states is not what was written")
    return {one.owner: one for one in found}


def state(db: sqlite3.Connection, run: int, owner: int) -> State | None:
    """The present state of the server or of a client."""
    row = db.execute(
        "SELECT owner, round, until, pieces, digest FROM states WHERE run = ? AND owner = ? AND until IS NULL",
        (run, owner),
    ).fetchone()
    return None if row is None else State._make(row)


def pieces(db: sqlite3.Connection, run: int, state: State) -> Iterator[bytes]:
    """The bytes of a state, piece by piece; each is checked before it is given."""
    key = (run, state.owner, state.round)
    digests = [
        digest
        for (digest,) in db.execute(
            "SELECT digest FROM pieces WHERE run = ? AND owner = ? AND round = ? ORDER BY number", key
        )
    ]
    if len(digests) != state.pieces or seal(state.owner, state.round, *digests) != state.digest:
        raise NotAsWritten(f"the pieces of a state of round {state.round} are not those that were written")
    for number, digest in enumerate(digests):
        row = db.execute(
            "SELECT data FROM pieces WHERE run = ? AND owner = ? AND round = ? AND number = ?", (*key, number)
        ).fetchone()
        if row is None or not isinstance(row[0], bytes) or of_bytes(row[0]) != digest:
            raise NotAsWritten(f"a state of round {state.round} is not what was written")
        yield row[0]
