"""A limit for every method: what a run may use of one or several resources, and whether another round still fits.

So methods can be compared at an equal budget, also those that know nothing of budgets. ``bytes``, ``macs`` and
``seconds`` are those of the run's record; ``time`` is simulated: a round takes b, and c for each of the local steps of
its busiest client, drawn from the seed as FedADM draws them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from undrift.algorithms.parts.budget import Budgeted
from undrift.core.errors import InvalidInput, unknown
from undrift.core.settings import positive

if TYPE_CHECKING:
    from undrift.core.loop import Round
    from undrift.ledger.rows import RoundRow

RESOURCES = ("bytes", "macs", "seconds", "time")
TIME = "time"  # the note that holds a round's simulated seconds
_RANGE = positive("nothing could be done with it")


@dataclass(frozen=True)
class Limit:
    """How much there is of each resource; nothing: as much as one likes."""

    amounts: dict[str, float]

    @classmethod
    def parse(cls, text: str) -> Limit:
        """``bytes=2e9`` or, with commas, several: the first that is used up ends the run."""
        amounts: dict[str, float] = {}
        for part in text.split(",") if text else ():
            name, _, number = part.strip().partition("=")
            if name not in RESOURCES:
                raise unknown("resource of limit", name, RESOURCES)
            try:
                amounts[name] = float(number)
            except ValueError:
                amounts[name] = 0.0
            if not _RANGE.holds(amounts[name]):
                raise InvalidInput(f"limit = {text}: write {name}= and a positive number")
        return cls(amounts)

    def used(self, rows: Iterable[RoundRow]) -> dict[str, float]:
        """What rounds have used of each resource that is limited."""
        rows = list(rows)
        return {name: sum(use(name, row) for row in rows) for name in self.amounts}


class Meter:
    """Adds up what rounds use; ``open`` as long as another round like the last one fits."""

    def __init__(self, limit: Limit, rows: Iterable[RoundRow] = ()) -> None:
        self._limit, self._last = limit, dict.fromkeys(limit.amounts, 0.0)
        self._used = dict.fromkeys(limit.amounts, 0.0)
        for row in rows:
            self.add(row)

    def add(self, row: RoundRow) -> None:
        for name in self._used:
            self._last[name] = use(name, row)
            self._used[name] += self._last[name]

    @property
    def open(self) -> bool:
        return all(self._used[name] + self._last[name] <= amount for name, amount in self._limit.amounts.items())


def use(name: str, row: RoundRow) -> float:
    """What one round used of a resource."""
    if name == "bytes":
        return row.bytes_up + row.bytes_down
    if name == "macs":
        return row.macs
    return row.seconds if name == "seconds" else row.notes.get(TIME, 0.0)


def simulated(played: Round, alone: bool) -> float:
    """The simulated seconds of a round; ``alone``: one machine has all data, and there is nothing to aggregate."""
    steps = played.cohort.steps
    tau = int(played.notes.get("tau", float(steps.max()) if len(steps) else 1))
    c, b = Budgeted().spent(played.cohort, max(1, tau))
    return float(c[0]) * tau + (0.0 if alone else float(b[0]))
