"""Which method is better, by how much, and how sure that is.

Rounds to a target are counted on the mean curve over seeds, unsmoothed: the first evaluated round at which the mean is
at least the target. Two methods are compared seed by seed (same data split, same initial model, same clients), and the
interval of a ratio comes from a bootstrap over those pairs. What was not reached is never a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from undrift.analysis.groups import Floats, Group, grouped, restricted
from undrift.core import rng
from undrift.core.errors import InvalidInput
from undrift.ledger.history import COSTS, History
from undrift.report import words

DRAWS = 1000
ENOUGH = 3  # pairs of seeds below which no difference is called clear
# 97.5 % quantiles of Student's t for 1, 2, .. degrees of freedom; the normal one beyond.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
      2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A mean over seeds with its sample standard deviation (NaN for one seed)."""

    mean: float
    sd: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        array = np.array(values, np.float64)
        if not len(array):
            return cls(math.nan, math.nan, ())
        sd = float(array.std(ddof=1)) if len(array) > 1 else math.nan
        return cls(float(array.mean()), sd, tuple(array.tolist()))


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95 % interval over ``pairs`` paired seeds; no interval below two pairs."""

    value: float
    low: float
    high: float
    pairs: int

    def clear(self, neutral: float) -> bool:
        """Does the interval leave out the value that means "no difference"?"""
        return self.pairs >= ENOUGH and (self.low > neutral or self.high < neutral)


@dataclass(frozen=True)
class Cost:
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
    final: Figure
    best: Figure
    costs: dict[str, Cost]  # empty without a target
    gain: Interval | None  # final accuracy minus the baseline's
    rejected: int
    skipped: int

    @property
    def label(self) -> str:
        return self.group.label


@dataclass(frozen=True)
class Comparison:
    """The table, who is the baseline, and what may be concluded."""

    rows: tuple[Row, ...]
    baselines: dict[str, str]  # scene -> label of the group that ratios refer to
    metric: str  # accuracy or loss
    target: float | None
    target_from: str  # given, plan, or the sentence that says how it was chosen
    headline: Sentence
    verdicts: tuple[Sentence, ...]  # one sentence per method other than the baseline
    warnings: tuple[str, ...]

    def baseline(self, row: Row) -> Row:
        return next(r for r in self.rows if r.group.scene == row.group.scene and self.is_baseline(r))

    def is_baseline(self, row: Row) -> bool:
        return self.baselines[row.group.scene] == row.label

    @property
    def seeds(self) -> int:
        return max(len(row.group.runs) for row in self.rows)


def comparison(histories: Sequence[History], target: float | None = None) -> Comparison:
    """Compare runs, grouped by method over seeds."""
    return Comparer(histories).at(target)


class Comparer:
    """Compares the same runs at one target after another; what does not depend on the target is worked out once."""

    def __init__(self, histories: Sequence[History]) -> None:
        self.groups, self.warnings = grouped(histories)
        if not self.groups:
            raise InvalidInput("there is nothing to compare: none of the runs has an evaluated round")
        baselines: dict[str, Group] = {}
        for group in self.groups:
            best = baselines.get(group.scene)
            if best is None or (group.name == "fedavg" and best.name != "fedavg"):
                baselines[group.scene] = group
        self.baselines = baselines
        self.metric = "accuracy" if any(g.metric == "accuracy" for g in self.groups) else "loss"
        for group in self.groups:
            if group.curve != baselines[group.scene].curve:
                self.warnings.append(f"{group.label} is judged by the {_curve_words(group)}: it is not compared")
        if self.metric == "loss":
            self.warnings.append("these data have no classes: there is a loss, no accuracy, and so no target to reach")
        self._mean = {group.label: _Curves(group, _mean_and_each(len(group.runs))) for group in self.groups}
        drawn: dict[tuple[str, tuple[int, ...]], _Curves] = {}  # the baselines' draws, shared by all
        self._pairs = {group.label: _Pair.of(group, baselines[group.scene], drawn) for group in self.groups}

    def at(self, target: float | None) -> Comparison:
        """The comparison at a target; without one, at the runs' own, or at what the baseline reached."""
        if target is not None and not 0 < target <= 1:
            raise InvalidInput(f"target = {target:g}: it must be a share in (0, 1], for example 0.9 for 90 %")
        target, source = self._target(target)
        rows = tuple(self._row(row, target) for row in self._plain_rows)
        named = {scene: group.label for scene, group in self.baselines.items()}
        found = Comparison(rows, named, self.metric, target, source, Sentence(""), (), tuple(self.warnings))
        verdicts = tuple(_sentence(row, found) for row in rows if not found.is_baseline(row))
        return replace(found, headline=_headline(found), verdicts=verdicts)

    def _target(self, given: float | None) -> tuple[float | None, str]:
        if given is not None or self.metric == "loss":
            return (given if self.metric == "accuracy" else None), "given"
        planned = {float(r.experiment["target"]) for g in self.groups for r in g.runs if r.experiment.get("target")}
        if len(planned) == 1:
            return planned.pop(), "the target of the runs"
        baseline = next(iter(self.baselines.values()))
        chosen = math.floor(100 * self.best(baseline)) / 100
        return (chosen, f"what {baseline.label} reached, rounded down") if chosen > 0 else (None, "")

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
                    final=Figure.of([run.final for run in group.runs]),
                    best=Figure.of([run.best for run in group.runs]),
                    costs={},
                    gain=None if pair is None else pair.gain,
                    rejected=sum(run.rejected for run in group.runs),
                    skipped=sum(run.skipped for run in group.runs),
                )
            )
        return rows

    def _row(self, plain: Row, target: float | None) -> Row:
        group, pair = plain.group, self._pairs[plain.label]
        if target is None or group.metric != "accuracy":
            return plain
        costs: dict[str, Cost] = {}
        for column in COSTS:
            value, *alone = (c if math.isfinite(c) else None for c in self._mean[group.label].spent(target, column))
            costs[column] = Cost(value, tuple(alone), None if pair is None else pair.ratio(target, column))
        return replace(plain, costs=costs)


class _Curves:
    """Weighted means over the seeds of a group, one for each row of weights, and where they cross a target."""

    def __init__(self, group: Group, weights: Floats) -> None:
        self.weights = weights
        gaps, mean = np.isnan(group.values), weights @ np.nan_to_num(group.values)
        if gaps.any():  # a gap counts only where it has weight
            mean[weights @ gaps.astype(np.float64) > 0] = -math.inf
        self.so_far = np.maximum.accumulate(mean, axis=1)
        self.totals = {column: group.costs(column) for column in COSTS}
        self._crossing: tuple[float, NDArray[np.int64]] = (math.nan, np.empty(0, np.int64))

    def crossing(self, target: float) -> NDArray[np.int64]:
        """The place of the first mean that is at least the target, by bisection; the length where there is none."""
        if self._crossing[0] != target:
            rows, length = np.arange(len(self.so_far)), self.so_far.shape[1]
            low, high = np.zeros(len(rows), np.int64), np.full(len(rows), length)
            for _ in range(length.bit_length()):
                middle = np.minimum((low + high) // 2, length - 1)
                below = (self.so_far[rows, middle] < target - 1e-12) & (low < high)  # rounding of the mean
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


class _Pair:
    """A group against its baseline on the seeds that both have: each bootstrap draw takes the same seeds of both."""

    def __init__(self, mine: Group, theirs: Group, drawn: _Curves) -> None:
        self.seeds = len(mine.runs)
        self._mine, self._theirs = _Curves(mine, drawn.weights), drawn
        self.gain = paired_difference([run.final for run in mine.runs], [run.final for run in theirs.runs])

    @classmethod
    def of(cls, group: Group, baseline: Group, drawn: dict[tuple[str, tuple[int, ...]], _Curves]) -> _Pair | None:
        seeds = tuple(sorted(set(group.seeds) & set(baseline.seeds)))
        if group is baseline or group.curve != baseline.curve or not seeds:
            return None
        theirs, key = restricted(baseline, seeds), (baseline.label, seeds)
        if key not in drawn:
            drawn[key] = _Curves(theirs, _weights(len(seeds)))
        return cls(restricted(group, seeds), theirs, drawn[key])

    def ratio(self, target: float, column: str) -> Interval | None:
        """The baseline's cost to target over the group's. Not reached counts as infinitely dear in the bootstrap."""
        mine, theirs = self._mine.spent(target, column), self._theirs.spent(target, column)
        if not math.isfinite(mine[0]) or not math.isfinite(theirs[0]) or mine[0] == 0:
            return None  # one of the two did not reach it: there is no ratio to speak of
        with np.errstate(divide="ignore", invalid="ignore"):
            return _interval(theirs / mine, self.seeds)  # both not reached: not a number, left out of the interval


def paired_difference(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """How much larger the first figures are, seed by seed."""
    difference = np.array(mine) - np.array(theirs)
    return _interval(_weights(len(difference)) @ difference, len(difference))


def _mean_and_each(runs: int) -> Floats:
    return np.vstack([np.full(runs, 1 / runs), np.eye(runs)])


def _weights(pairs: int) -> Floats:
    """How much each pair counts: first all the same, then in ``DRAWS`` bootstrap draws."""
    counts = np.zeros((DRAWS + 1, pairs))
    counts[0] = 1
    drawn = (rng.bits(rng.key(0, "bootstrap"), DRAWS * pairs) % np.uint64(pairs)).astype(np.int64)
    np.add.at(counts, (np.repeat(np.arange(1, DRAWS + 1), pairs), drawn), 1)
    return counts / pairs if pairs > 1 else counts[:1]


def _interval(draws: Floats, pairs: int) -> Interval:
    """Percentiles widened for few seeds: at the level that Student's t has where the bootstrap takes the normal."""
    value = float(draws[0])
    known = np.sort(draws[1:][~np.isnan(draws[1:])])
    if pairs < 2 or not len(known):
        return Interval(value, math.nan, math.nan, pairs)
    t = _T[pairs - 2] if pairs - 2 < len(_T) else 1.96
    level = NormalDist().cdf(-math.sqrt(pairs / (pairs - 1)) * t)
    low = known[math.floor(level * (len(known) - 1))]
    high = known[math.ceil((1 - level) * (len(known) - 1))]
    return Interval(value, float(low), float(high), pairs)


# --- sentences --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sentence:
    """A conclusion: what happened, what may be made of it, and on which evidence."""

    lead: str
    finding: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def claim(self) -> str:
        return self.lead + (f": {self.finding}" if self.finding else "") + "."

    @property
    def detail(self) -> str:
        return "; ".join(self.evidence)

    def __str__(self) -> str:
        return self.claim if not self.evidence else f"{self.claim[:-1]} ({self.detail})."


def _per_round(row: Row, base: Row, columns: Sequence[str], what: str) -> str:
    """How a round of the method compares with a round of the baseline."""
    mine, theirs = (sum(r.group.per_round[c] for c in columns) for r in (row, base))
    if not mine > 0 or not theirs > 0:
        return ""
    share = mine / theirs
    return f"equal {what} per round" if abs(share - 1) < 0.02 else f"{share:.1f} times the {what} per round"


def _curve_words(group: Group) -> str:
    model, data, metric = group.curve
    return f"{metric} of the {model} model on {data}"


def _sentence(row: Row, found: Comparison) -> Sentence:
    base = found.baseline(row)
    if row.group.curve != base.group.curve:
        number = words.amount if row.group.metric == "loss" else words.percent
        ended = f"{row.label} ended at {number(row.final.mean)} {_curve_words(row.group)}"
        return Sentence(ended, f"another figure than {base.label}'s, not compared")
    traffic = _per_round(row, base, ("bytes_up", "bytes_down"), "traffic")
    traffic = f", at {traffic}" if traffic else ""
    compute = _per_round(row, base, ("macs",), "client compute")
    aside = (compute,) if compute else ()
    cost, reference = row.costs.get("rounds"), base.costs.get("rounds")
    if cost is None or reference is None or found.target is None:
        return _accuracy(f"{row.label} ended at", row, base, traffic, aside)
    goal = words.target_words(found.target)
    missed = f"{row.label} did not reach {goal} in {row.group.rounds} rounds"
    if cost.value is None and reference.value is None:
        return _accuracy(f"{missed}, nor did {base.label}; it ended at", row, base, traffic, aside)
    if cost.value is None:
        return Sentence(f"{missed}, {base.label} did in {words.rounds(reference.value or 0)}{traffic}", "", aside)
    opening = f"{row.label} reached {goal} in {words.rounds(cost.value)} rounds"
    if reference.value is None:
        return Sentence(f"{opening}, {base.label} did not in {base.group.rounds}{traffic}", "", aside)
    if cost.ratio is None:
        other = f"{base.label} in {words.rounds(reference.value)}"
        return Sentence(f"{opening}, {other}", "on other seeds, so they are not compared", aside)
    ratio = cost.ratio
    speed = f"as soon as {base.label}"
    if ratio.value != 1:
        how = f"{ratio.value:.2f} times sooner" if ratio.value > 1 else f"{1 / ratio.value:.2f} times later"
        speed = f"{how} than {base.label}"
    return _judged(f"{opening}, {speed}{traffic}", ratio, 1, f"95 % interval {_range(ratio)}", aside)


def _range(ratio: Interval) -> str:
    """From where to where a ratio goes; without end where one of the two does not always reach the target."""
    if ratio.low == 0 and math.isinf(ratio.high):
        return "without bounds"
    if ratio.low == 0:
        return f"up to {words.times(ratio.high)}"
    if math.isinf(ratio.high):
        return f"from {words.times(ratio.low)} up"
    return f"{words.times(ratio.low)} to {words.times(ratio.high)}"


def _accuracy(opening: str, row: Row, base: Row, traffic: str, aside: tuple[str, ...]) -> Sentence:
    gain, loss = row.gain, row.group.metric == "loss"
    number = words.amount if loss else words.percent
    if gain is None or math.isnan(gain.value):
        return Sentence(f"{opening} {number(row.final.mean)}", f"not comparable with {base.label}", aside)
    scale, unit = (1, "") if loss else (100, " points")
    opening += " a loss of" if loss else ""
    lead = f"{opening} {number(row.final.mean)}, {scale * gain.value:+.3g}{unit} against {base.label}{traffic}"
    interval = f"95 % interval {scale * gain.low:+.3g} to {scale * gain.high:+.3g}{unit}"
    return _judged(lead, gain, 0, interval, aside)


def _judged(lead: str, found: Interval, neutral: float, interval: str, aside: tuple[str, ...]) -> Sentence:
    """The lead with what the interval allows to be said about it."""
    if found.pairs == 1:
        return Sentence(lead, "", ("one seed: chance is not measured", *aside))
    if found.pairs < ENOUGH:
        return Sentence(lead, "", (f"{found.pairs} seeds: too few to tell it from chance", *aside))
    evidence = (f"{interval}, {found.pairs} paired seeds", *aside)
    return Sentence(lead, "" if found.clear(neutral) else "no clear difference", evidence)


def _headline(found: Comparison) -> Sentence:
    """The one sentence for the top of a page."""
    if len(found.baselines) > 1:
        return Sentence(
            "These runs are on different data or partitions", "they stand side by side and are not compared"
        )
    if len(found.rows) == 1:
        return _alone(found.rows[0], found.target)
    base = found.baseline(found.rows[0])
    alike = [row for row in found.rows if row.group.curve == base.group.curve]
    others = [row for row in alike if row is not base]
    arrived = [row for row in alike if row.costs and row.costs["rounds"].value is not None]
    if not others:
        return _alone(base, found.target)
    if not arrived:
        sign = -1 if found.metric == "loss" else 1
        best = max(others, key=lambda row: -math.inf if math.isnan(row.final.mean) else sign * row.final.mean)
        return _sentence(best, found)
    first = min(arrived, key=lambda row: (row.costs["rounds"].value or 0, row is not base, -row.final.mean))
    if first is not base:
        return _sentence(first, found)
    reached, goal = words.rounds(base.costs["rounds"].value or 0), words.target_words(found.target or 0)
    return Sentence(f"None of the others was sooner than {base.label}, which reached {goal} in {reached} rounds")


def _alone(row: Row, target: float | None) -> Sentence:
    rounds, cost = row.group.rounds, row.costs.get("rounds")
    if row.group.metric == "loss":
        return Sentence(f"{row.label} ended at a loss of {words.amount(row.final.mean)} after {rounds} rounds")
    ended = f"ended at {words.percent(row.final.mean)} after {rounds} rounds"
    if cost is None or target is None:
        return Sentence(f"{row.label} {ended}")
    goal = words.target_words(target)
    if cost.value is None:
        return Sentence(f"{row.label} {ended}; it did not reach {goal}")
    return Sentence(f"{row.label} reached {goal} in {words.rounds(cost.value)} rounds and {ended}")
