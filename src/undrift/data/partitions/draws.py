"""What several partitions share: rounding shares to samples, evening out sizes, drawing by class mixes."""

from __future__ import annotations

import numpy as np

from undrift.core import rng
from undrift.data.partitions.base import Division, Floats, Ints


def largest_remainder(shares: Floats, total: int | Ints) -> Ints:
    """Whole numbers proportional to each row of ``shares`` that add up to ``total`` (one per row)."""
    shares = np.atleast_2d(shares)
    totals = np.broadcast_to(np.asarray(total, np.int64), len(shares))
    weight = np.cumsum(shares, axis=1)[:, -1]
    quota = shares * (totals / np.where(weight > 0, weight, 1))[:, None]
    whole = np.floor(quota + 1e-9).astype(np.int64)
    missing = totals - whole.sum(axis=1)
    order = np.argsort(whole - quota, axis=1, kind="stable")
    bonus = np.empty_like(whole)
    np.put_along_axis(bonus, order, np.arange(shares.shape[1])[None, :] < missing[:, None], axis=1)
    return whole + bonus


def fill_up(counts: Ints, low: int) -> tuple[Ints, int]:
    """Move samples from the fullest clients until everyone has ``low``: the new counts and how many moved."""
    sizes = counts.sum(axis=1)
    need = np.maximum(low - sizes, 0)
    moved = int(need.sum())
    if moved == 0:
        return counts, 0
    # The level to which the fullest are cut so that the excess covers the need (the last one gives only what is left).
    order = np.argsort(-sizes, kind="stable")
    ranked = sizes[order]
    excess = np.cumsum(ranked) - ranked * np.arange(1, len(ranked) + 1)
    donors = int(np.searchsorted(excess, moved, side="left"))
    donors = min(max(donors, 1), len(ranked))
    level = max(-(-(int(ranked[:donors].sum()) - moved) // donors), low)
    give = np.zeros_like(sizes)
    give[order[:donors]] = np.maximum(ranked[:donors] - level, 0)
    short = moved - int(give.sum())
    if short > 0:
        give[order[:short]] += 1
    counts = counts.copy()
    rows = np.flatnonzero(give)
    taken = largest_remainder(counts[rows].astype(np.float64), give[rows])
    taken = np.minimum(taken, counts[rows])
    counts[rows] -= taken
    pool = np.repeat(np.arange(counts.shape[1]), taken.sum(axis=0))
    # Deal the taken samples round robin over classes so that nobody is filled with one class alone.
    rank = np.concatenate([np.arange(n) for n in taken.sum(axis=0)]) if len(pool) else pool
    pool = pool[np.lexsort((pool, rank))]
    receivers = np.repeat(np.arange(len(need)), need)
    np.add.at(counts, (receivers, pool[: len(receivers)]), 1)
    return counts, moved


def draw_equal(p: Division, priors: Floats, sizes: Ints) -> Ints:
    """Counts per client and class: each client draws ``sizes`` samples by its prior until a class runs out.

    Claims on a class that has too few samples are granted by lot; the refused ones are drawn again among the classes
    that are left. Every pass closes a class or ends, so there are at most as many passes as classes.
    """
    if sizes.sum() > p.samples:
        raise p.infeasible(f"{int(sizes.sum())} samples wanted, but the data set has {p.samples}")
    draw = p.generator("draws")
    left, want = p.pools.copy(), sizes.copy()
    counts = np.zeros((p.clients, p.classes), np.int64)
    for turn in range(p.classes + 1):
        active = np.flatnonzero(want)
        if len(active) == 0:
            break
        open_priors = priors[active] * (left > 0)
        total = open_priors.sum(axis=1, keepdims=True)
        # A client whose own classes are all used up takes what is left, in proportion.
        open_priors = np.where(total > 1e-12, open_priors, left / left.sum())
        open_priors /= open_priors.sum(axis=1, keepdims=True)
        claims = draw.multinomial(want[active], open_priors)
        for c in np.flatnonzero(claims.sum(axis=0) > left):
            tickets = np.repeat(np.arange(len(active)), claims[:, c])
            lucky = rng.permutation(p.key("lots", turn, int(c)), len(tickets))[: left[c]]
            claims[:, c] = np.bincount(tickets[lucky], minlength=len(active))
        counts[active] += claims
        want[active] -= claims.sum(axis=1)
        left -= claims.sum(axis=0)
    return counts


def draw_overlapping(p: Division, weights: Floats, size: int) -> tuple[Ints, Ints]:
    """Each client draws ``size`` samples without replacement from the whole data set, class weights as given.

    A draw with weights w is the ``size`` first arrivals of exponential clocks with rates w; clients overlap.
    """
    support = np.where(weights > 0, p.pools, 0).sum(axis=1)
    if (support < size).any():
        i = int((support < size).argmax())
        raise p.infeasible(f"client {i} is to draw {size} samples from classes that have only {int(support[i])}")
    chosen = np.empty((p.clients, size), np.int64)
    keys = rng.keys(p.key("clocks"), np.arange(p.clients))
    for i in range(p.clients):
        uniform = rng.uniform(int(keys[i]), p.samples)
        with np.errstate(divide="ignore"):
            arrival = -np.log1p(-uniform) / weights[i][p.labels]
        arrival[weights[i][p.labels] <= 0] = np.inf
        chosen[i] = np.argpartition(arrival, size - 1)[:size]
    return np.repeat(np.arange(p.clients), size), chosen.reshape(-1)


def dirichlet_rows(draw: np.random.Generator, alpha: float, rows: int, columns: int) -> Floats:
    """Rows of Dir(alpha); tiny concentrations, where all gammas underflow to 0, become one-hot rows as in the limit."""
    gammas = draw.standard_gamma(alpha, (rows, columns))
    total = np.cumsum(gammas, axis=1)[:, -1:]
    dead = np.flatnonzero(total[:, 0] < 1e-290)
    gammas[dead] = 0.0
    gammas[dead, draw.integers(columns, size=len(dead))] = 1.0
    total[dead] = 1.0
    return np.asarray(gammas / total)


def client_sizes(p: Division, samples: int | None, limit: int | None = None) -> Ints:
    """Samples per client: as asked, or all data split evenly. ``limit`` is for draws that may share samples."""
    if samples is None:
        return p.equalclient_sizes() if limit is None else np.full(p.clients, p.samples // p.clients)
    each = 1 if limit is not None else p.clients
    if samples * each > p.whole:
        raise p.infeasible(f"samples = {samples} for each of {p.clients} clients, but the data set has {p.whole}")
    if samples * each > p.samples:  # public rows were set apart: everybody gives the same share of theirs
        samples = samples * p.samples // p.whole
        p.notes["samples"] = samples
    return np.full(p.clients, samples)
