"""Curves over rounds: their weighted means over seeds, where they cross a target, and their moving average."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from undrift.analysis.groups import Group, restricted
from undrift.analysis.intervals import Floats, Interval, draws, interval, paired_difference
from undrift.ledger.history import COSTS


class Curves:
    """Weighted means over the seeds of a group, one for each row of weights, and where they cross a target."""

    def __init__(self, group: Group, weights: Floats) -> None:
        self.weights = weights
        self._sign = group.figure.sign  # where less is better, the curve and the target are turned over
        gaps, mean = np.isnan(group.values), self._sign * (weights @ np.nan_to_num(group.values))
        if gaps.any():  # a gap counts only where it has weight
            mean[weights @ gaps.astype(np.float64) > 0] = -math.inf
        self.so_far = np.maximum.accumulate(mean, axis=1)
        self.totals = {column: group.costs(column) for column in COSTS}
        self._crossing: tuple[float, NDArray[np.int64]] = (math.nan, np.empty(0, np.int64))

    @classmethod
    def mean_and_each(cls, group: Group) -> Curves:
        """The mean over seeds first, then each seed alone."""
        runs = len(group.runs)
        return cls(group, np.vstack([np.full(runs, 1 / runs), np.eye(runs)]))

    def crossing(self, target: float) -> NDArray[np.int64]:
        """The place of the first mean that is as good as the target, by bisection; the length where there is none."""
        if self._crossing[0] != target:
            rows, length = np.arange(len(self.so_far)), self.so_far.shape[1]
            low, high = np.zeros(len(rows), np.int64), np.full(len(rows), length)
            for _ in range(length.bit_length()):
                middle = np.minimum((low + high) // 2, length - 1)
                below = (self.so_far[rows, middle] < self._sign * target - 1e-12) & (low < high)  # rounding of the mean
                low, high = np.where(below, middle + 1, low), np.where(below, high, np.minimum(middle, high))
            self._crossing = target, low
        return self._crossing[1]

    def spent(self, target: float, column: str) -> Floats:
        """The mean cost where each mean curve meets the target; infinite where it does not."""
        place, totals = self.crossing(target), self.totals[column]
        if not totals.shape[1]:
            return np.full(len(place), math.inf)
        met = place < totals.shape[1]
        cost = (self.weights * totals[:, np.where(met, place, 0)].T).sum(axis=1)
        return np.where(met, cost, math.inf)


Drawn = dict[tuple[str, tuple[int, ...]], Curves]  # the baselines' bootstrap draws, by label and seeds


class Pair:
    """A group against its baseline on the seeds that both have: each bootstrap draw takes the same seeds of both."""

    def __init__(self, mine: Group, theirs: Group, drawn: Curves) -> None:
        self.seeds = len(mine.runs)
        self._mine, self._theirs = Curves(mine, drawn.weights), drawn
        self._alike = mine.pools_data == theirs.pools_data
        self.gain = paired_difference([run.final for run in mine.runs], [run.final for run in theirs.runs])

    @classmethod
    def of(cls, group: Group, baseline: Group, drawn: Drawn) -> Pair | None:
        seeds = tuple(sorted(set(group.seeds) & set(baseline.seeds)))
        if group is baseline or group.figure != baseline.figure or not seeds:
            return None
        theirs, key = restricted(baseline, seeds), (baseline.label, seeds)
        if key not in drawn:
            drawn[key] = Curves(theirs, draws(len(seeds)))
        return cls(restricted(group, seeds), theirs, drawn[key])

    def ratio(self, target: float, column: str) -> Interval | None:
        """The baseline's cost to target over the group's. Not reached counts as infinitely dear in the bootstrap."""
        mine, theirs = self._mine.spent(target, column), self._theirs.spent(target, column)
        if not self._alike or not math.isfinite(mine[0]) or not math.isfinite(theirs[0]) or mine[0] == 0:
            return None  # one of the two did not reach it, or has costs of another kind: there is no ratio to speak of
        with np.errstate(divide="ignore", invalid="ignore"):
            return interval(theirs / mine, self.seeds)  # both not reached: not a number, left out of the interval


def smoothed(values: Floats, factor: float) -> Floats:
    """Exponential moving average without bias at the beginning; factor 0 changes nothing, and gaps stay gaps."""
    out, total, weight = np.empty_like(values), 0.0, 0.0
    for i, value in enumerate(values):
        if math.isnan(value):
            out[i] = math.nan
            continue
        total, weight = factor * total + (1 - factor) * value, factor * weight + (1 - factor)
        out[i] = total / weight
    return out
