"""FedADM's four cases."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from undrift.core.settings import between
from undrift.data.partitions.base import Division, Ints, Partitioner


class FedADM(Partitioner):
    """Cases 1 to 4 of FedADM (Wang et al.): uniform; by label; everybody has everything; half and half."""

    name = "fedadm"
    paper = "FedADM; Wang et al., JSAC 2019"
    case: Annotated[int, "1 uniform, 2 by label, 3 all data everywhere, 4 uniform and by label", between(1, 4)] = 1

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        sample, N = np.arange(p.samples), p.clients
        if self.case == 1:
            return sample % N, sample
        if self.case == 3:
            return np.repeat(np.arange(N), p.samples), np.tile(sample, N)
        low = int(p.labels.min())
        label, L = p.labels - low, p.classes - low
        if self.case == 2:
            target = label % N
        else:
            uniform = -(-min(N, L) // 2)
            rest = max(min(N, L) - uniform, 1)
            target = np.where(2 * label < L - 1, sample % uniform, np.minimum(label % rest + uniform, N - 1))
        if N > L:  # more nodes than labels: of the nodes congruent to the target, the least filled one
            rank = np.empty(p.samples, np.int64)
            order = np.argsort(target, kind="stable")
            sizes = np.bincount(target, minlength=L)
            rank[order] = sample - np.repeat(np.cumsum(sizes) - sizes, sizes)
            congruent = (N - target + L - 1) // L
            target = target + L * (rank % congruent)
        return target, sample
