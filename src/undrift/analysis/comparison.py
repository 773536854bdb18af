"""Which method is better, by how much, and how sure that is, as values.

Rounds to a target are counted on the mean curve over seeds, unsmoothed: the first evaluated round at which the mean is
at least the target. Two methods are compared seed by seed (same data split, same initial model, same clients), and the
interval of a ratio comes from a bootstrap over those pairs. What was not reached is never a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from undrift.analysis.curves import Curves, Drawn, Pair
from undrift.analysis.groups import Group, Remark, grouped
from undrift.analysis.health import Health, at_chance, chance_of, health
from undrift.analysis.intervals import Floats, Interval, Spread
from undrift.core.errors import InvalidInput
from undrift.core.figure import Figure
from undrift.ledger.history import COSTS, History

FELL = 0.02  # worse than the target at the end by more than this (of it, if it is no share): reached and lost again

Source = Literal["given", "runs", "baseline", "none"]


@dataclass(frozen=True)
class CostToTarget:
    """What it took to reach the target."""

    value: float | None  # where the mean curve over seeds met the target; None: not reached
    per_seed: tuple[float | None, ...]  # each seed by itself
    ratio: Interval | None  # the baseline's cost over this one's: above 1 is better than the baseline

    @property
    def reached(self) -> int:
        return sum(v is not None for v in self.per_seed)

    @property
    def per_seed_mean(self) -> float | None:
        """The mean over seeds of each seed's own cost; None unless every seed reached the target."""
        found = [v for v in self.per_seed if v is not None]
        return float(np.mean(found)) if found and len(found) == len(self.per_seed) else None


@dataclass(frozen=True)
class Row:
    """One method in the table."""

    group: Group
    final: Spread
    best: Spread
    costs: dict[str, CostToTarget]  # empty without a target
    gain: Interval | None  # the final figure minus the baseline's
    rejected: int
    skipped: int
    diverged: tuple[Health, ...] = ()  # of the seeds that did

    @property
    def label(self) -> str:
        return self.group.label

    @property
    def rounds(self) -> float | None:
        """Rounds to the target; None where it was not reached, or where there is none."""
        cost = self.costs.get("rounds")
        return None if cost is None else cost.value

    def fell(self, target: float | None) -> bool:
        """Did it reach the target and lose it again?"""
        if target is None or self.rounds is None:
            return False
        figure = self.group.figure
        return figure.sign * (target - self.final.mean) > (FELL if figure.share else FELL * abs(target))


@dataclass(frozen=True)
class Comparison:
    """The table, who is the baseline, and what a reader must know about the runs."""

    rows: tuple[Row, ...]
    baselines: dict[str, str]  # scene -> label of the group that ratios refer to
    figure: Figure  # what the methods are judged by
    target: float | None
    source: Source  # who chose the target
    remarks: tuple[Remark, ...]

    def baseline(self, row: Row) -> Row:
        return next(r for r in self.rows if r.group.scene == row.group.scene and self.is_baseline(r))

    def is_baseline(self, row: Row) -> bool:
        return self.baselines[row.group.scene] == row.label

    @property
    def ranked(self) -> tuple[Row, ...]:
        """The rows, scene by scene: who reached the target first, then by the final figure; who diverged is last."""
        scenes = list(self.baselines)
        sign = -1 if self.figure.better == "higher" else 1

        def order(row: Row) -> tuple[int, bool, float, float]:
            rounds, final = row.rounds, sign * row.final.mean
            lost = rounds is None or row.fell(self.target)
            place = math.inf if lost or rounds is None else rounds
            return (
                scenes.index(row.group.scene), bool(row.diverged), place, math.inf if math.isnan(final) else final
            )  # fmt: skip

        return tuple(sorted(self.rows, key=order))

    @property
    def seeds(self) -> int:
        return max(len(row.group.runs) for row in self.rows)


def comparison(histories: Sequence[History], target: float | None = None) -> Comparison:
    """Compare runs, grouped by method over seeds."""
    return Comparer(histories).at(target)


class Comparer:
    """Compares the same runs at one target after another; what does not depend on the target is worked out once."""

    def __init__(self, histories: Sequence[History]) -> None:
        self.groups, self.remarks = grouped(histories)
        if not self.groups:
            raise InvalidInput("there is nothing to compare: none of the runs has an evaluated round")
        self.baselines = _baselines(self.groups)
        figures = [group.figure for group in self.groups]
        self.figure = next((figure for figure in figures if figure.share), figures[0])
        self.remarks += [
            Remark("other figure", group.label, group.runs)
            for group in self.groups
            if group.figure != self.baselines[group.scene].figure
        ]
        if not self.figure.share and not self._aims(self.figure):
            self.remarks.append(Remark("no classes"))
        self._mean = {group.label: Curves.mean_and_each(group) for group in self.groups}
        drawn: Drawn = {}
        self._pairs = {group.label: Pair.of(group, self.baselines[group.scene], drawn) for group in self.groups}

    def at(self, target: float | None) -> Comparison:
        """The comparison at a target; without one, at the runs' own, or at what the baseline reached."""
        if target is not None and not self.figure.allows(target):
            raise InvalidInput(f"target = {target:g}: it must be {self.figure.range}")
        target, source = self._target(target)
        rows = tuple(self._row(row, target) for row in self._plain_rows)
        named = {scene: group.label for scene, group in self.baselines.items()}
        return Comparison(rows, named, self.figure, target, source, tuple(self.remarks))

    def _target(self, given: float | None) -> tuple[float | None, Source]:
        if not self._aims(self.figure):
            return None, "none"
        if given is not None:
            return given, "given"
        planned = {float(r.experiment["target"]) for g in self.groups for r in g.runs if r.experiment.get("target")}
        if len(planned) == 1:
            return planned.pop(), "runs"
        if not self.figure.rises:
            return None, "none"
        baseline = next(iter(self.baselines.values()))
        chosen = math.floor(100 * self.best(baseline)) / 100
        known = at_chance(chosen, chance_of(baseline.runs[0]) or 0.0)  # what everybody reaches is no target
        return (None, "none") if known else (chosen, "baseline")

    def _aims(self, figure: Figure) -> bool:
        """Can it have a target? A share of which less is better has none, and no figure that nobody asked for."""
        asked = {run.experiment.get("headline") for group in self.groups for run in group.runs}
        return figure.rises or (not figure.share and figure.metric in asked)

    def best(self, group: Group) -> float:
        """The highest value of a group's mean curve."""
        return float(np.nan_to_num(group.values.mean(axis=0), nan=0.0).max()) if len(group.at) else 0.0

    @cached_property
    def _plain_rows(self) -> list[Row]:
        """The rows as far as they do not depend on a target."""
        rows = []
        for group in self.groups:
            pair = self._pairs[group.label]
            rows.append(
                Row(
                    group=group,
                    final=Spread.of([run.final for run in group.runs]),
                    best=Spread.of([run.best for run in group.runs]),
                    costs={},
                    gain=None if pair is None else pair.gain,
                    rejected=sum(run.rejected for run in group.runs),
                    skipped=sum(run.skipped for run in group.runs),
                    diverged=tuple(h for run in group.runs if (h := health(run)).state == "diverged"),
                )
            )
        return rows

    def _row(self, plain: Row, target: float | None) -> Row:
        group, pair = plain.group, self._pairs[plain.label]
        if target is None or not self._aims(group.figure):
            return plain
        costs: dict[str, CostToTarget] = {}
        for column in COSTS:
            value, *alone = _reached(self._mean[group.label].spent(target, column))
            costs[column] = CostToTarget(value, tuple(alone), None if pair is None else pair.ratio(target, column))
        return replace(plain, costs=costs)


def _reached(costs: Floats) -> list[float | None]:
    return [cost if math.isfinite(cost) else None for cost in costs.tolist()]


def _baselines(groups: Sequence[Group]) -> dict[str, Group]:
    """FedAvg in each scene, or whoever comes first."""
    found: dict[str, Group] = {}
    for group in groups:
        best = found.get(group.scene)
        if best is None or (group.name == "fedavg" and best.name != "fedavg"):
            found[group.scene] = group
    return found
