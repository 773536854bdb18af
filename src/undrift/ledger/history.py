"""What a run did, and what it cost to get there: curves, cumulative costs, cost to a target. No files, no drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from undrift.experiment.evaluate import TEST
from undrift.ledger.store import Ledger, Run

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
    rounds: Sequence[dict[str, Any]]
    metrics: Sequence[tuple[int, str, str, str, float | None]]
    planned: int
    status: str = "finished"
    facts: dict[str, Any] = field(default_factory=dict)
    experiment: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    @classmethod
    def of(cls, ledger: Ledger, run: Run) -> History:
        return cls(
            label=run.label,
            seed=int(run.experiment.get("seed", 0)),
            rounds=ledger.rounds(run),
            metrics=ledger.metrics(run),
            planned=int(run.experiment.get("rounds", run.rounds)),
            status="unfinished" if run.status == "running" and not ledger.is_held(run) else run.status,
            facts=run.facts,
            experiment=run.experiment,
            name=run.name,
        )

    @cached_property
    def main_curve(self) -> tuple[str, str, str]:
        """The headline figure: the global model on the test set, or personal models where there is no global one."""
        labels = {(m, d) for _, m, d, k, _ in self.metrics if k == "accuracy"}
        if not labels:
            return "global", TEST, "loss"
        if ("global", TEST) in labels or not labels:
            return "global", TEST, "accuracy"
        return "personal", "own test (mean)", "accuracy"

    def curve(
        self, model: str | None = None, data: str | None = None, metric: str | None = None
    ) -> tuple[list[int], list[float]]:
        """Rounds and values of one labelled figure; by default the headline one."""
        main = self.main_curve
        wanted = (model or main[0], data or main[1], metric or main[2])
        found = [(r, v) for r, m, d, k, v in self.metrics if (m, d, k) == wanted]
        return [r for r, _ in found], [math.nan if v is None else v for _, v in found]

    @property
    def final(self) -> float:
        values = self.curve()[1]
        return values[-1] if values else math.nan

    @property
    def best(self) -> float:
        values = [v for v in self.curve()[1] if not math.isnan(v)]
        better = min if self.main_curve[2] == "loss" else max
        return better(values) if values else math.nan

    def cumulative(self, column: str) -> np.ndarray[Any, Any]:
        """The running total of a cost column after each round."""
        if column == "rounds":
            return np.arange(1, len(self.rounds) + 1)
        return np.cumsum([row[column] for row in self.rounds])

    def total(self, column: str) -> float:
        costs = self.cumulative(column)
        return float(costs[-1]) if len(costs) else 0.0

    def reached(self, target: float) -> Reached | None:
        """The cost at the first evaluation with at least the target accuracy; None if it never came."""
        at, values = self.curve()
        hit = next((r for r, v in zip(at, values, strict=True) if v >= target), None)
        if hit is None or self.main_curve[2] == "loss":
            return None
        upto = [row for row in self.rounds if row["round"] <= hit]
        sums = {c: sum(row[c] for row in upto) for c in ("bytes_up", "bytes_down", "macs", "seconds")}
        return Reached(hit, int(sums["bytes_up"]), int(sums["bytes_down"]), int(sums["macs"]), float(sums["seconds"]))

    @property
    def rejected(self) -> int:
        return sum(row["rejected"] for row in self.rounds)

    @property
    def skipped(self) -> int:
        return sum(row["skipped"] for row in self.rounds)
