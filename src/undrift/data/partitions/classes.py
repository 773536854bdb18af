"""Label skew by a fixed number of classes per client."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from undrift.core import rng
from undrift.core.settings import at_least
from undrift.data.partitions.base import Division, Ints, Partitioner
from undrift.data.partitions.draws import largest_remainder


class KClasses(Partitioner):
    """Each client holds exactly k classes, all clients the same number of samples, each class equally many clients.

    With ``cover = false`` each client draws its k classes without looking at the others, as in pFedMo: some classes are
    held by more clients than others, and some perhaps by nobody.
    """

    name = "classes"
    paper = "pFedMo, label skew"
    classes_per_client: Annotated[int, "classes that each client holds", at_least(1)] = 2
    equal: Annotated[bool, "equal sizes (a remainder stays unused); false: all samples are used"] = True
    cover: Annotated[bool, "every class has its clients; false: random classes, some perhaps held by nobody"] = True
    newer = frozenset({"cover"})

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        draw = class_sets if self.cover else random_sets
        held = draw(p, self.classes_per_client)
        counts = np.zeros((p.clients, p.classes), np.int64)
        behind = np.zeros(p.clients)  # how much less than its fair share each client has got so far
        for c in np.unique(held):  # split evenly; odd samples go to the holders that are furthest behind
            holders = np.flatnonzero((held == c).any(axis=1))
            share, odd = divmod(int(p.pools[c]), len(holders))
            lucky = holders[np.argsort(-behind[holders], kind="stable")[:odd]]
            counts[holders, c] = share
            counts[lucky, c] += 1
            behind[holders] += odd / len(holders)
            behind[lucky] -= 1
        sizes = counts.sum(axis=1)
        if self.equal:
            mine = np.take_along_axis(counts, held, axis=1)
            mine = np.minimum(largest_remainder(mine.astype(np.float64), int(sizes.min())), mine)
            counts[:] = 0
            np.put_along_axis(counts, held, mine, axis=1)
            p.notes["unused"] = p.samples - int(counts.sum())
        nobody = np.setdiff1d(np.flatnonzero(p.pools), held)
        if len(nobody):
            p.notes["classes of nobody"] = nobody.tolist()
        return p.deal(counts)


class PathClasses(KClasses):
    """FedMRUR's Path(n): n classes per client in equal parts, equal sizes, as a true partition.

    The published code's refilled class pools are ``balanced-recycling``.
    """

    name = "path"
    paper = "FedMRUR"
    classes_per_client: Annotated[int, "n: classes that each client holds", at_least(1)] = 10


def class_sets(p: Division, k: int) -> Ints:
    """k distinct classes per client, every class held by equally many clients (to within one)."""
    present = _present(p, k)
    C, N = len(present), p.clients
    if N * k < C:
        left = f"{N} clients with {k} classes each leave {C - N * k} of the {C} classes with no client"
        raise p.infeasible(f"{left}: cover = false allows that")
    blocks, rest = divmod(N, C)
    keys = rng.keys(p.key("class sets"), np.arange(blocks + 1))
    labels = rng.permutation(keys, C)  # a fresh naming of the classes for every C clients
    shifts = rng.permutation(rng.keys(p.key("class shifts"), np.arange(blocks + 1)), C)[:, :k]
    places = (np.arange(C)[None, :, None] + shifts[:blocks, None, :]) % C
    full = np.take_along_axis(labels[:blocks, None, :].repeat(C, axis=1), places, axis=2).reshape(-1, k)
    last = labels[blocks][(np.arange(rest)[:, None] * k + np.arange(k)) % C]
    return np.asarray(present[np.concatenate([full, last.reshape(rest, k)])])


def random_sets(p: Division, k: int) -> Ints:
    """k distinct classes per client, each client's drawn on its own."""
    present = _present(p, k)
    return np.asarray(
        present[rng.permutation(rng.keys(p.key("random sets"), np.arange(p.clients)), len(present))[:, :k]]
    )


def _present(p: Division, k: int) -> Ints:
    present = np.flatnonzero(p.pools)
    if k > len(present):
        raise p.infeasible(f"classes_per_client = {k}, but the data set has {len(present)} classes")
    return present
