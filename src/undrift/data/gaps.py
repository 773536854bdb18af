"""Missing values: filled by a rule that each client could follow alone, from its own training rows."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput

Rule = Literal["median", "mean", "most"]


def fill(
    train: NDArray[np.float32],
    test: NDArray[np.float32],
    client: NDArray[Any] | None,
    client_test: NDArray[Any] | None,
    rule: Rule,
    names: tuple[str, ...] = (),
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Both parts with every NaN replaced by the median (mean, most frequent value) of the client's training rows.

    A client that has no value at all in a column gets the mean of the other clients' figures; so do test rows of
    nobody. Without clients all rows are one client's.
    """
    owners = np.zeros(len(train), np.int64) if client is None else client.astype(str)
    names_of, owner = np.unique(owners, return_inverse=True)
    rows = [train[owner.reshape(-1) == i] for i in range(len(names_of))]
    figures = np.stack([_figures(mine, rule) for mine in rows])
    empty = np.isnan(figures).all(axis=0)
    if empty.any():
        column = int(empty.argmax())
        called = repr(names[column]) if names else str(column)
        raise InvalidInput(f"column {called} has no values to train on at all: drop it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        others = np.nanmean(figures, axis=0)
    figures = np.where(np.isnan(figures), others, figures)
    out = np.where(np.isnan(train), figures[owner.reshape(-1)], train)
    if client is None or client_test is None:
        guess = np.broadcast_to(figures[0] if client is None else others, test.shape)
    else:
        place = np.minimum(np.searchsorted(names_of, client_test.astype(str)), len(names_of) - 1)
        known = names_of[place] == client_test.astype(str)
        guess = np.where(known[:, None], figures[place], others)
    return out.astype(np.float32), np.where(np.isnan(test), guess, test).astype(np.float32)


def _figures(rows: NDArray[np.float32], rule: Rule) -> NDArray[np.float64]:
    """One figure per column; NaN where there is no value."""
    out = np.full(rows.shape[1], np.nan)
    for column in range(rows.shape[1]):
        values = rows[:, column]
        values = values[~np.isnan(values)].astype(np.float64)
        if len(values) == 0:
            continue
        if rule == "most":
            kinds, counts = np.unique(values, return_counts=True)
            out[column] = kinds[counts.argmax()]  # of equally frequent ones the smallest
        else:
            out[column] = np.median(values) if rule == "median" else values.mean()
    return out
