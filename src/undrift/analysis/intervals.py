"""How sure a difference is: means over seeds, and intervals from a bootstrap over paired seeds.

Knows numbers only: neither methods nor runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from undrift.core import rng

Floats = NDArray[np.float64]

DRAWS = 1000
ENOUGH = 3  # pairs of seeds below which no difference is called clear
# 97.5 % quantiles of Student's t for 1, 2, .. degrees of freedom; the normal one beyond.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
      2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)  # fmt: skip


@dataclass(frozen=True)
class Spread:
    """A mean over seeds with its sample standard deviation (NaN for one seed)."""

    mean: float
    sd: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
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

    @property
    def measured(self) -> bool:
        """Are there pairs enough to tell a difference from chance?"""
        return self.pairs >= ENOUGH

    def clear(self, neutral: float) -> bool:
        """Does the interval leave out the value that means "no difference"?"""
        return self.measured and (self.low > neutral or self.high < neutral)


def student(count: int) -> float:
    """How many standard errors a 95 % interval of a mean over so many seeds reaches to each side."""
    return _T[count - 2] if count - 2 < len(_T) else 1.96


def paired_difference(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """How much larger the first figures are, seed by seed."""
    difference = np.array(mine) - np.array(theirs)
    return interval(draws(len(difference)) @ difference, len(difference))


def draws(pairs: int) -> Floats:
    """How much each pair counts: first all the same, then in ``DRAWS`` bootstrap draws."""
    counts = np.zeros((DRAWS + 1, pairs))
    counts[0] = 1
    drawn = (rng.bits(rng.key(0, "bootstrap"), DRAWS * pairs) % np.uint64(pairs)).astype(np.int64)
    np.add.at(counts, (np.repeat(np.arange(1, DRAWS + 1), pairs), drawn), 1)
    return counts / pairs if pairs > 1 else counts[:1]


def interval(drawn: Floats, pairs: int) -> Interval:
    """Percentiles widened for few seeds: at the level that Student's t has where the bootstrap takes the normal."""
    value = float(drawn[0])
    known = np.sort(drawn[1:][~np.isnan(drawn[1:])])
    if pairs < 2 or not len(known):
        return Interval(value, math.nan, math.nan, pairs)
    level = NormalDist().cdf(-math.sqrt(pairs / (pairs - 1)) * student(pairs))
    low = known[math.floor(level * (len(known) - 1))]
    high = known[math.ceil((1 - level) * (len(known) - 1))]
    return Interval(value, float(low), float(high), pairs)
