"""How different the clients of a partition are, in figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core import rng
from undrift.data.partitions.base import Floats, Ints, Partition


@dataclass(frozen=True)
class Heterogeneity:
    """How different the clients are. Entropies and divergences in bits; distances as a share of all samples."""

    clients: int
    samples: int  # held by anyone, counted once per holder
    smallest: int
    median: float
    largest: int
    entropy: float  # mean over clients of the entropy of the client's class mix
    entropy_global: float
    divergence: float  # mean Jensen-Shannon divergence of two clients' class mixes, 0 (same) to 1 (disjoint)
    distance: float  # n-weighted mean earth mover's distance of a client's class mix to the global one, 0 to 1
    histogram: Ints  # samples per client and class
    sampled_pairs: bool = False


def heterogeneity(
    parts: Partition, labels: NDArray[Any], classes: int, *, pairs: int = 20_000, seed: int = 0
) -> Heterogeneity:
    """The figures of a partition. Beyond ``pairs`` pairs of clients, that many pairs are drawn."""
    histogram = parts.histogram(np.asarray(labels).astype(np.int64), classes)
    sizes = histogram.sum(axis=1)
    mix = histogram / np.maximum(sizes, 1)[:, None]
    whole = histogram.sum(axis=0) / max(int(sizes.sum()), 1)
    N = len(parts)
    sampled = pairs < N * (N - 1) // 2
    if sampled:
        words = rng.bits(rng.key(seed, "pairs"), 2 * pairs)
        a = (words[:pairs] % np.uint64(N)).astype(np.int64)
        b = (a + 1 + (words[pairs:] % np.uint64(N - 1)).astype(np.int64)) % N
    else:
        a, b = np.triu_indices(N, 1)
    divergence = 0.0
    if len(a):
        middle = _entropy((mix[a] + mix[b]) / 2)
        divergence = float(np.mean(middle - (_entropy(mix[a]) + _entropy(mix[b])) / 2))
    # Between class labels every move costs the same, so the earth mover's distance is the total variation distance.
    distance = np.abs(mix - whole).sum(axis=1) / 2
    return Heterogeneity(
        clients=N,
        samples=int(sizes.sum()),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        entropy=float(_entropy(mix).mean()),
        entropy_global=float(_entropy(whole[None])[0]),
        divergence=max(divergence, 0.0),
        distance=float((distance * sizes).sum() / max(int(sizes.sum()), 1)),
        histogram=histogram,
        sampled_pairs=sampled,
    )


def _entropy(rows: Floats) -> Floats:
    safe = np.where(rows > 0, rows, 1.0)
    return np.asarray(-(rows * np.log2(safe)).sum(axis=1))
