"""What may be concluded from a comparison: one verdict per method, and the one for the top of a page.

A verdict looks at the target and at the end, and calls nothing better that the interval calls chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from undrift.analysis.comparison import Comparison, Row
from undrift.analysis.intervals import Interval

Kind = Literal[
    "alone",  # there is nothing to compare it with
    "diverged",  # in one of its seeds, at least
    "other figure",  # judged by another figure than the baseline
    "gain",  # no target: the final figures are compared
    "neither",  # neither reached the target: the final figures are compared
    "missed",  # the baseline reached the target and this one did not
    "ahead",  # this one reached the target and the baseline did not
    "unpaired",  # both reached it, on other seeds
    "ratio",  # both reached it: their costs are compared
    "none sooner",  # of all methods none was clearly sooner than the baseline
    "none better",  # nobody reached the target, and none ended clearly better than the baseline
    "apart",  # several data sets or partitions: a verdict for each
]
Standing = Literal["better", "worse", "unclear", "unmeasured"]


@dataclass(frozen=True)
class Verdict:
    """What may be said of one method against the baseline."""

    kind: Kind
    row: Row
    base: Row
    target: float | None = None
    parts: tuple[Verdict, ...] = ()  # of "apart"

    @property
    def interval(self) -> Interval | None:
        """What the verdict rests on: the ratio of rounds, or the difference at the end."""
        cost = self.row.costs.get("rounds")
        return cost.ratio if self.kind == "ratio" and cost is not None else self.row.gain

    @property
    def fell(self) -> bool:
        return self.row.fell(self.target)

    @property
    def ended_worse(self) -> bool:
        """Is the final figure clearly worse than the baseline's?"""
        return self._end() == "worse"

    @property
    def standing(self) -> Standing:
        """Better or worse than the baseline; nothing is better that fell, diverged or ended worse."""
        if self.kind in ("missed", "diverged"):
            return "worse"
        if self.kind == "ratio" and self.interval is not None:
            sooner = _standing(self.interval, 1, 1)
            return "unclear" if sooner == "better" and (self.fell or self.ended_worse) else sooner
        return "unclear" if self.fell and self._end() == "better" else self._end()

    def _end(self) -> Standing:
        return _standing(self.row.gain, 0, 1 if self.row.group.figure.better == "higher" else -1)

    def per_round(self, *columns: str) -> float | None:
        """What a round of the method costs over what one of the baseline does; None where that says nothing."""
        mine, theirs = (sum(row.group.per_round[c] for c in columns) for row in (self.row, self.base))
        alike = self.row.group.pools_data == self.base.group.pools_data
        return mine / theirs if alike and mine > 0 and theirs > 0 else None


def _standing(found: Interval | None, neutral: float, sign: int) -> Standing:
    if found is None or math.isnan(found.value) or not found.measured:
        return "unmeasured"
    if not found.clear(neutral):
        return "unclear"
    return "better" if sign * (found.low - neutral) > 0 else "worse"


def verdict(found: Comparison, row: Row) -> Verdict:
    """One method against the baseline of its scene."""
    base = found.baseline(row)
    return Verdict(_kind(found, row, base), row, base, found.target)


def _kind(found: Comparison, row: Row, base: Row) -> Kind:
    if row.diverged:
        return "diverged"
    if row is base:
        return "alone"
    if row.group.figure != base.group.figure:
        return "other figure"
    cost = row.costs.get("rounds")
    if cost is None or found.target is None:
        return "gain"
    if cost.value is None:
        return "neither" if base.rounds is None else "missed"
    if base.rounds is None:
        return "ahead"
    if row.group.pools_data != base.group.pools_data:
        return "gain"
    return "unpaired" if cost.ratio is None else "ratio"


def verdicts(found: Comparison) -> tuple[Verdict, ...]:
    """One for each method other than the baseline, in the order of the ranking."""
    return tuple(verdict(found, row) for row in found.ranked if not found.is_baseline(row))


def headline(found: Comparison) -> Verdict:
    """The one verdict for the top of a page: the clear winner, or that there is none."""
    heads = [_head(found, scene) for scene in found.baselines]
    if len(heads) == 1:
        return heads[0]
    return Verdict("apart", heads[0].row, heads[0].base, found.target, tuple(heads))


def _head(found: Comparison, scene: str) -> Verdict:
    rows = [row for row in found.ranked if row.group.scene == scene]
    base = next(row for row in rows if found.is_baseline(row))
    others = [v for row in rows if row is not base and (v := verdict(found, row)).kind != "other figure"]
    real = [v for v in others if not v.row.group.pools_data] or others  # pooling the data is a bound, not a contestant
    if not real:
        return verdict(found, base)
    better = [v for v in real if v.standing == "better"]
    if better:
        return better[0]
    if len(real) == 1:
        return real[0]
    open_ = [v for v in real if v.standing == "unmeasured"]
    if open_:
        return open_[0]
    return Verdict("none better" if base.rounds is None else "none sooner", base, base, found.target)
