"""Cutting recordings into windows, and splitting windows into training and test without sharing samples."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


def runs(*labels: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Stretches [begin, end) in which none of the labels changes."""
    change = np.zeros(len(labels[0]), bool)
    for values in labels:
        change[1:] |= values[1:] != values[:-1]
    cuts = [0, *np.flatnonzero(change).tolist(), len(change)]
    return [(a, b) for a, b in pairwise(cuts) if b > a]


def latest_held_out(
    stretches: list[tuple[int, int]], count: int, fraction: float, overlap: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which windows to train on and which to test on: the last ``fraction`` of every stretch is for testing.

    ``overlap`` windows before the first test window share samples with it and are used for neither.
    """
    train, test = np.zeros(count, bool), np.zeros(count, bool)
    for begin, end in stretches:
        cut = end - int(np.floor((end - begin) * fraction + 0.5))
        test[cut:end] = True
        train[begin : end if cut == end else max(begin, cut - overlap)] = True
    return train, test


def fill_gaps(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Missing values of each column by straight lines between their neighbours; at the ends the nearest value."""
    place = np.arange(len(values))
    out = values.copy()
    for column in out.T:
        missing = np.isnan(column)
        if missing.any() and not missing.all():
            column[missing] = np.interp(place[missing], place[~missing], column[~missing])
    return out
