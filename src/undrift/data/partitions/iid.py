"""No skew: everybody has the same mix."""

from __future__ import annotations

import numpy as np

from undrift.data.partitions.base import Division, Ints, Partitioner


class Iid(Partitioner):
    """Shuffle, then split evenly."""

    name = "iid"

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        return np.repeat(np.arange(p.clients), p.equalclient_sizes()), p.shuffled()
