"""Recordings as windows: cut, split into training and test without sharing samples, brought to one scale."""

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


def standardise(
    x: NDArray[np.float32], x_test: NDArray[np.float32], y: NDArray[np.int64], y_test: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Mean 0 and deviation 1 of every channel (the second axis) over the training part; labels pass through."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axis=axes, dtype=np.float64, keepdims=True)
    spread = x.std(axis=axes, dtype=np.float64, keepdims=True)
    spread[spread < 1e-8] = 1.0
    m, s = mean.astype(np.float32), spread.astype(np.float32)
    return (x - m) / s, y, (x_test - m) / s, y_test
