"""What a pilot tries: the budget of the real training, the methods, and how much of the budget each rung gets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from undrift import algorithms
from undrift.analysis.intervals import Interval, Spread, paired_difference
from undrift.core.errors import InvalidInput, unknown
from undrift.core.figure import HEADLINE, Figure
from undrift.core.settings import at_least
from undrift.experiment.description import tag
from undrift.ledger.history import History
from undrift.studies.lineup import Section, with_controls

BUDGETS = ("rounds", "bytes", "macs", "seconds")
Goal = Literal["global", "personal"]
GOALS: tuple[Goal, ...] = ("global", "personal")
CONTROL = "fedavg"
START = 0.1  # share of the budget before anyone is dropped
LEAST = 5  # and rounds
_RANGE = at_least(1)


@dataclass(frozen=True)
class Budget:
    """What the real training may cost."""

    kind: str
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """``rounds=200``, ``bytes=2e9``, ``macs=1e12`` or ``seconds=3600``."""
        kind, equals, number = text.partition("=")
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if kind not in BUDGETS or not equals or not _RANGE.holds(amount):
            raise InvalidInput(f"budget {text}: write rounds=200, bytes=2e9, macs=1e12 or seconds=3600")
        return cls(kind, amount)

    def __str__(self) -> str:
        from undrift.report import words

        return words.count(self.amount, "round") if self.kind == "rounds" else words.cost(self.kind, self.amount)

    def spent(self, history: History) -> float:
        if self.kind == "bytes":
            return history.total("bytes_up") + history.total("bytes_down")
        return history.total(self.kind)

    def rounds(self, share: float, per_round: float) -> int:
        """How many rounds a share of the budget pays for."""
        return max(LEAST, math.floor(share * self.amount / per_round + 1e-9))


@dataclass(frozen=True)
class Standing:
    """Where a method stood when it was last played."""

    method: str
    title: str
    rung: int
    rounds: int
    share: float  # of the budget
    score: Spread  # of ``what``, one value per seed
    cost: dict[str, float]  # per round: bytes, macs, seconds
    error: str = ""
    tested: Spread | None = None  # on the test set, where the validation data chose
    what: Figure = HEADLINE

    @property
    def merit(self) -> float:
        """What standings are ranked by: more is better."""
        return self.what.sign * self.score.mean

    def over(self, other: Standing) -> Interval:
        """How much better it stands, seed by seed: above 0 is better, whatever the figure."""
        mine, theirs = ([self.what.sign * value for value in s.score.values] for s in (self, other))
        return paired_difference(mine, theirs)


@dataclass(frozen=True)
class Pilot:
    """What is tried, and how much of the budget the finalists get."""

    base: dict[str, Any]
    budget: Budget
    methods: tuple[str, ...] = ()  # empty: all that can be compared
    seeds: tuple[int, ...] = (1, 2, 3)
    share: float = 0.2  # of the budget, for the finalists
    goal: Goal = "global"
    name: str = "advise"
    finalists: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput(f"a pilot of {self.share:g}: it must be a share of the budget in (0, 1]")
        if self.goal not in GOALS:
            raise unknown("goal", self.goal, GOALS)
        if len(self.seeds) < 2:
            raise InvalidInput("a pilot needs at least two seeds: with one, chance cannot be told from a difference")

    def shares(self, rungs: int) -> list[float]:
        """The shares of the budget, rung by rung: growing evenly from a fair start, since slow starters may win."""
        first = min(self.share, max(self.share / 2 ** (rungs - 1), START))
        steps = max(1, rungs - 1)
        return [first * (self.share / first) ** (rung / steps) for rung in range(rungs)]

    def entrants(self) -> list[str]:
        known = algorithms.algorithms()
        if self.methods:
            beside = [str(section["name"]) for section in with_controls([{"name": m} for m in self.methods])]
            return list(dict.fromkeys([CONTROL, *beside]))
        # Training on pooled data is no federated method, and training alone has no common model: both are yardsticks.
        return [CONTROL, *(n for n, c in known.items() if n not in (CONTROL, "local") and not c.pools_data)]


def plain_names(methods: Sequence[Section]) -> tuple[str, ...]:
    """The names of methods that a pilot can compare: it does so at their default settings."""
    for method in methods:
        if len(method) > 1:
            raise InvalidInput(f"{tag(method)}: a pilot compares methods at their default settings; give names alone")
    return tuple(dict.fromkeys(str(method["name"]) for method in methods))
