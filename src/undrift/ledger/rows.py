"""What the ledger holds, as values: a run, the row of a round, and all that a round adds. No SQL but the columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from undrift.core.figure import Figure
from undrift.core.records import State
from undrift.core.states import Kept
from undrift.ledger.digest import NONE

SERVER, BUFFERS = -1, -2  # whose states are not a client's
BEST, BEST_BUFFERS = -3, -4  # the same of the round that was best on the validation data, where that is kept


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
        label = str(self.facts.get("label") or self.experiment.get("algorithm", {}).get("name", self.name))
        own = self.facts.get("own_training")  # of this method alone, among those it is compared with
        return f"{label} [{own}]" if own else label


@dataclass(frozen=True)
class RoundRow:
    """One round in numbers. The fields are the columns of the table ``rounds``, in this order."""

    round: int
    seconds: float = 0.0  # wall time of the round, without evaluation
    client_seconds: float = 0.0  # time the clients worked, summed
    bytes_up: int = 0
    bytes_down: int = 0
    gradients: int = 0  # samples that went forward and backward
    forwards: int = 0  # samples that went forward only
    head_gradients: int = 0  # samples that went forward, and backward through the head alone
    macs: int = 0  # client multiply-accumulates
    participants: int = 0  # whose uploads counted
    rejected: int = 0
    skipped: int = 0
    drift: Mapping[str, Any] = field(default_factory=dict)  # distance, cosine, amp
    notes: Mapping[str, Any] = field(default_factory=dict)  # the method's own series

    COLUMNS: ClassVar[tuple[str, ...]]
    SQL: ClassVar[str]

    def values(self) -> tuple[Any, ...]:
        """As SQLite stores it."""
        return tuple(json.dumps(v) if isinstance(v, Mapping) else v for v in vars(self).values())

    @classmethod
    def of(cls, stored: tuple[Any, ...]) -> Self:
        """From what SQLite stores."""
        return cls(*stored[:-2], *map(json.loads, stored[-2:]))

    def plain(self) -> dict[str, Any]:
        """By name, for JSON and tables."""
        return dict(vars(self))


_TYPES = {"int": "INTEGER NOT NULL", "float": "REAL NOT NULL"}
RoundRow.COLUMNS = tuple(f.name for f in fields(RoundRow))
RoundRow.SQL = ", ".join(f"{f.name} {_TYPES.get(str(f.type), 'TEXT NOT NULL')}" for f in fields(RoundRow))


@dataclass(frozen=True)
class Head:
    """Where a run stands. The fields are the columns of the table ``heads``, in this order."""

    round: int = 0
    chain: str = NONE  # the seal of the last round, which covers all before it
    clients: str = NONE  # the seals of the clients' figures, mixed
    states: str = NONE  # the digests of the states, mixed
    before: str = NONE  # and of those a round ago


@dataclass(frozen=True)
class Entry:
    """What one round adds to the ledger."""

    row: RoundRow
    metrics: Sequence[tuple[Figure, float | None]] = ()  # None: not a number
    clients: Mapping[str, Mapping[int, float]] = field(default_factory=dict)  # by ``figure.kept_as``
    rejections: Mapping[str, str] = field(default_factory=dict)
    server: State | None = None
    buffers: State | None = None
    kept: Mapping[int, Kept] = field(default_factory=dict)
    best: bool = False  # is what the server holds to be kept as the best?

    @property
    def round(self) -> int:
        return self.row.round
