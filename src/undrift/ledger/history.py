"""What a run did, and what it cost to get there: curves, cumulative costs, cost to a target. No files, no drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from undrift.core.figure import HEADLINE, OWN_MEAN, PERSONAL, VALIDATION, Figure
from undrift.ledger.rows import RoundRow, Run
from undrift.ledger.store import Ledger

COSTS = ("rounds", "bytes_up", "bytes_down", "macs", "seconds")


@dataclass(frozen=True)
class Reached:
    """The cumulative cost at the first evaluation that met a target."""

    rounds: int
    bytes_up: int
    bytes_down: int
    macs: int
    seconds: float


@dataclass(frozen=True)
class History:
    """The rounds and evaluations of one run."""

    label: str
    seed: int
    rounds: Sequence[RoundRow]
    metrics: Sequence[tuple[int, Figure, float | None]]
    planned: int
    status: str = "finished"
    facts: dict[str, Any] = field(default_factory=dict)
    experiment: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def of(cls, ledger: Ledger, run: Run) -> History:
        recorded = ledger.recorded(run)
        return cls(
            label=run.label,
            seed=int(run.experiment.get("seed", 0)),
            rounds=recorded.rounds,
            metrics=recorded.metrics,
            planned=int(run.experiment.get("rounds", run.rounds)),
            status="unfinished" if run.status == "running" and not ledger.is_held(run) else run.status,
            facts=run.facts,
            experiment=run.experiment,
            name=run.name,
        )

    @cached_property
    def figures(self) -> tuple[Figure, ...]:
        """All that was evaluated, in the order of first appearance."""
        return tuple(dict.fromkeys(figure for _, figure, _ in self.metrics))

    @cached_property
    def main_curve(self) -> Figure:
        """The headline figure: what the experiment names; or else the accuracy of the global model on the test set, or
        of personal models where there is no global one.

        Sites have no common test set: there it is the global model on their own parts.
        """
        named = Figure(metric=str(self.experiment.get("headline") or HEADLINE.metric))
        if named in self.figures:
            return named
        if not any(figure.metric == "accuracy" for figure in self.figures):
            return Figure(metric="loss")
        candidates = (HEADLINE, Figure(PERSONAL, OWN_MEAN), Figure(data=OWN_MEAN))
        return next((figure for figure in candidates if figure in self.figures), candidates[1])

    @property
    def chosen_by(self) -> Figure | None:
        """The headline figure on the validation data, where some were set apart: what settings are chosen by."""
        found = replace(self.main_curve, data=VALIDATION)
        return found if found in self.figures else None

    @property
    def best_round(self) -> int | None:
        """The round that was best on the validation data, the first of several."""
        points = [] if self.chosen_by is None else list(zip(*self.curve(self.chosen_by), strict=True))
        known = [(r, v) for r, v in points if not math.isnan(v)]
        better = min if self.main_curve.better == "lower" else max
        return better(known, key=lambda point: point[1])[0] if known else None

    def curve(self, figure: Figure | None = None) -> tuple[list[int], list[float]]:
        """Rounds and values of one figure; by default the headline one."""
        wanted = figure or self.main_curve
        found = [(r, v) for r, f, v in self.metrics if f == wanted]
        return [r for r, _ in found], [math.nan if v is None else v for _, v in found]

    @property
    def final(self) -> float:
        values = self.curve()[1]
        return values[-1] if values else math.nan

    @property
    def best(self) -> float:
        values = [v for v in self.curve()[1] if not math.isnan(v)]
        better = min if self.main_curve.better == "lower" else max
        return better(values) if values else math.nan

    def cumulative(self, column: str) -> np.ndarray[Any, Any]:
        """The running total of a cost column after each round."""
        if column == "rounds":
            return np.arange(1, len(self.rounds) + 1)
        return np.cumsum([getattr(row, column) for row in self.rounds])

    def total(self, column: str) -> float:
        costs = self.cumulative(column)
        return float(costs[-1]) if len(costs) else 0.0

    def reached(self, target: float) -> Reached | None:
        """The cost at the first evaluation of the headline figure that is as good as the target; None if it never came.

        Without a figure that was asked for, a loss has no target.
        """
        main = self.main_curve
        if main.better == "lower" and not self.experiment.get("headline"):
            return None
        hit = next((r for r, v in zip(*self.curve(), strict=True) if main.meets(v, target)), None)
        if hit is None:
            return None
        upto = [row for row in self.rounds if row.round <= hit]
        return Reached(
            rounds=hit,
            bytes_up=sum(row.bytes_up for row in upto),
            bytes_down=sum(row.bytes_down for row in upto),
            macs=sum(row.macs for row in upto),
            seconds=sum(row.seconds for row in upto),
        )

    @property
    def rejected(self) -> int:
        return sum(row.rejected for row in self.rounds)

    @property
    def skipped(self) -> int:
        return sum(row.skipped for row in self.rounds)
