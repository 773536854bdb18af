"""Label skew by shards of the samples in order of their class."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from undrift.core import rng
from undrift.core.settings import at_least
from undrift.data.partitions.base import Division, Ints, Partitioner


class Shards(Partitioner):
    """The samples in order of their class are cut into equal shards, and each client is dealt some of them.

    A shard may hold the end of one class and the beginning of the next, and two shards of a client may be of one class.
    """

    name = "shards"
    paper = "McMahan et al., AISTATS 2017"
    shards_per_client: Annotated[int, "shards that each client is dealt", at_least(1)] = 2

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        count = p.clients * self.shards_per_client
        size = p.samples // count
        if not size:
            raise p.infeasible(f"{count} shards need at least {count} samples, and there are {p.samples}")
        order, _ = p.by_class()
        if count * size < p.samples:
            p.notes["unused"] = p.samples - count * size
        dealt = rng.permutation(rng.keys(p.key("shards"), np.arange(1)), count)[0]
        owners = np.repeat(dealt // self.shards_per_client, size)
        return owners, order[: count * size]
