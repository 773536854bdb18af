"""Keyed randomness: every draw is a pure function of (seed, purpose, round, client, ...).

Nothing here has a stream or a state, so what one client draws never depends on what ran before it,
where it ran, or in which order. Keys are 64-bit integers made by chaining the splitmix64 finaliser.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1

Keys = NDArray[np.uint64]


def _mix(z: Any) -> Any:
    """The splitmix64 finaliser, on a Python integer or on an array of uint64 (which wraps by itself)."""
    if isinstance(z, int):
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
        return z ^ (z >> 31)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def key(seed: int, *parts: int | str) -> int:
    """A 64-bit key for one purpose, for example ``key(seed, "batches", round, client, epoch)``."""
    k = _mix((seed + _GOLDEN) & _MASK)
    for part in parts:
        number = zlib.crc32(part.encode()) if isinstance(part, str) else part
        k = _mix((k ^ _mix((number + _GOLDEN) & _MASK)) + _GOLDEN & _MASK)
    return int(k)


def keys(base: int | Keys, parts: NDArray[np.int64]) -> Keys:
    """``key(.., part)`` for a whole array of last parts, given the key (or keys) ``base`` of what comes before."""
    inner = _mix(parts.astype(np.uint64) + np.uint64(_GOLDEN))
    return np.asarray(_mix((np.asarray(base, np.uint64) ^ inner) + np.uint64(_GOLDEN)), np.uint64)


def extend(base: int, *parts: int | str) -> int:
    """The key of a longer list of parts: ``extend(key(s, "a"), 1) == key(s, "a", 1)``."""
    k = base
    for part in parts:
        number = zlib.crc32(part.encode()) if isinstance(part, str) else part
        k = _mix((k ^ _mix((number + _GOLDEN) & _MASK)) + _GOLDEN & _MASK)
    return int(k)


def bits(base: int | Keys, count: int) -> Keys:
    """``count`` random 64-bit words of a key (of each key, as rows, when given an array of keys)."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    start = np.uint64(base) if isinstance(base, int) else base[:, None]
    return np.asarray(_mix(start + steps), np.uint64)


def uniform(base: int | Keys, count: int) -> NDArray[np.float64]:
    """``count`` numbers in [0, 1) of a key (of each key, as rows, when given an array of keys)."""
    return (bits(base, count) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permutation(base: int | Keys, n: int) -> NDArray[np.int64]:
    """A random order of ``0..n-1`` (one row per key when given an array of keys)."""
    return np.argsort(bits(base, n), axis=-1, kind="stable")


def sample(base: int, population: int, size: int) -> NDArray[np.int64]:
    """``size`` distinct numbers below ``population``, in increasing order, in O(size) (Floyd's method)."""
    words = bits(base, size)
    chosen: set[int] = set()
    for j, word in zip(range(population - size, population), words.tolist(), strict=True):
        pick = word % (j + 1)
        chosen.add(j if pick in chosen else pick)
    return np.array(sorted(chosen), dtype=np.int64)


def generator(seed: int, *parts: int | str) -> np.random.Generator:
    """A NumPy generator for one purpose, where a distribution is needed and not only an order."""
    return np.random.Generator(np.random.Philox(key=key(seed, *parts)))
