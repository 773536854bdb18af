"""Writing what a ledger holds, each thing with the digest by which it will be known. Transactions are the caller's."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undrift.ledger import reading
from undrift.ledger.digest import NONE, mixed, of_bytes, seal
from undrift.ledger.pieces import Tensors
from undrift.ledger.rows import BEST, BEST_BUFFERS, BUFFERS, SERVER, Entry, Head, RoundRow


@dataclass(frozen=True)
class Saved:
    """A state whose pieces are written, and which nothing names yet."""

    owner: int
    round: int
    digests: Sequence[str]

    @property
    def digest(self) -> str:
        return seal(self.owner, self.round, *self.digests)


# --- runs -------------------------------------------------------------------------------------------------------------


def add_run(db: sqlite3.Connection, name: str, experiment: Mapping[str, Any], facts: Mapping[str, Any]) -> int:
    """A new run; its name gets a number where it is taken."""
    taken, unique, count = reading.names(db), name, 1
    while unique in taken:
        count += 1
        unique = f"{name}-{count}"
    cursor = db.execute(
        "INSERT INTO runs (name, status, created, experiment, facts) VALUES (?, 'running', ?, ?, ?)",
        (unique, time.time(), json.dumps(experiment), json.dumps(facts)),
    )
    number = int(cursor.lastrowid or 0)
    seal_run(db, number)
    set_head(db, number, Head())
    count_run(db, number, unique)
    return number


def seal_run(db: sqlite3.Connection, run: int) -> None:
    row = db.execute(
        "SELECT id, name, status, created, experiment, facts, message FROM runs WHERE id = ?", (run,)
    ).fetchone()
    db.execute("UPDATE runs SET seal = ? WHERE id = ?", (seal(*row), run))


def count_run(db: sqlite3.Connection, run: int, name: str) -> None:
    """A run comes, or goes: the second time takes it out."""
    (census,) = db.execute("SELECT value FROM meta WHERE key = 'census'").fetchone()
    db.execute("UPDATE meta SET value = ? WHERE key = 'census'", (mixed([census, seal(run, name)]),))


def set_head(db: sqlite3.Connection, run: int, head: Head) -> None:
    values = tuple(vars(head).values())
    db.execute("INSERT OR REPLACE INTO heads VALUES (?, ?, ?, ?, ?, ?, ?)", (run, *values, seal(*values)))


def delete_run(db: sqlite3.Connection, run: int, name: str) -> None:
    count_run(db, run, name)
    db.execute("DELETE FROM runs WHERE id = ?", (run,))


def restart(db: sqlite3.Connection, run: int) -> None:
    """Forget all rounds of a run."""
    for table in ("rounds", "metrics", "client_metrics", "rejections", "states", "pieces"):
        db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
    set_head(db, run, Head())


# --- rounds -----------------------------------------------------------------------------------------------------------


def tensors_of(entry: Entry) -> Iterator[tuple[int, Tensors, dict[str, Any]]]:
    """The states that a round leaves: whose, the tensors, and a header."""
    if entry.server is not None and entry.buffers is not None:
        yield SERVER, *entry.server.sent()
        yield BUFFERS, *entry.buffers.sent()
        if entry.best:
            yield BEST, *entry.server.sent()
            yield BEST_BUFFERS, *entry.buffers.sent()
    for client, kept in entry.kept.items():
        yield client, kept.tensors(), {"round": kept.round}


def put_piece(db: sqlite3.Connection, run: int, owner: int, round: int, number: int, data: bytes) -> str:
    digest = of_bytes(data)
    db.execute("INSERT INTO pieces VALUES (?, ?, ?, ?, ?, ?)", (run, owner, round, number, digest, data))
    return digest


def drop_pieces(db: sqlite3.Connection, run: int, owner: int, round: int) -> None:
    db.execute("DELETE FROM pieces WHERE run = ? AND owner = ? AND round = ?", (run, owner, round))


def put_round(db: sqlite3.Connection, run: int, entry: Entry, states: Sequence[Saved]) -> None:
    """A round: its numbers, and the states that its pieces now become."""
    before = reading.head(db, run)
    columns, marks = ", ".join(RoundRow.COLUMNS), ", ".join("?" * len(RoundRow.COLUMNS))
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
    census = replace_states(db, run, entry.round, before.states, states)
    chain = seal_round(db, run, entry.round, before.chain)
    clients = of_clients(db, run) if entry.clients else before.clients
    set_head(db, run, Head(entry.round, chain, clients, census, before.states))


def seal_round(db: sqlite3.Connection, run: int, round: int, before: str) -> str:
    """Seal a round as SQLite gives it back, which is what a reader will see."""
    (link,) = reading.links(db, run, round)
    chain = link.sealed(before)
    db.execute("UPDATE rounds SET seal = ? WHERE run = ? AND round = ?", (chain, run, round))
    return chain


def of_clients(db: sqlite3.Connection, run: int) -> str:
    rows = db.execute("SELECT model, round, accuracies FROM client_metrics WHERE run = ?", (run,))
    return mixed(seal(*row) for row in rows)


def replace_states(db: sqlite3.Connection, run: int, round: int, census: str, states: Sequence[Saved]) -> str:
    """New states take the place of older ones, which stay for one more round; what is in states then."""
    for owner, written in db.execute(
        "SELECT owner, round FROM states WHERE run = ? AND until < ?", (run, round)
    ).fetchall():
        drop_pieces(db, run, owner, written)
        db.execute("DELETE FROM states WHERE run = ? AND owner = ? AND round = ?", (run, owner, written))
    for new in states:
        old = reading.state(db, run, new.owner)
        if old is not None:
            key = (round, run, old.owner, old.round)
            db.execute("UPDATE states SET until = ? WHERE run = ? AND owner = ? AND round = ?", key)
        put_state(db, run, new)
        census = mixed([census, new.digest, *([] if old is None else [old.digest])])
    return census


def put_state(db: sqlite3.Connection, run: int, new: Saved) -> None:
    row = (run, new.owner, new.round, None, len(new.digests), new.digest)
    db.execute("INSERT INTO states VALUES (?, ?, ?, ?, ?, ?)", row)


def seal_all(db: sqlite3.Connection, run: int) -> None:
    """Seal a run as it stands, whatever seals it had."""
    seal_run(db, run)
    chain, last = NONE, 0
    for link in reading.links(db, run):
        last = link.row[0]
        chain = seal_round(db, run, last, chain)
    rows = db.execute("SELECT digest FROM states WHERE run = ? AND until IS NULL", (run,))
    set_head(db, run, Head(last, chain, of_clients(db, run), mixed(digest for (digest,) in rows)))
