"""What public code of the FedSpeed and FedSMOO family does."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from undrift.core import rng
from undrift.core.settings import at_least, positive
from undrift.data.partitions.base import Division, Ints, Partitioner
from undrift.data.partitions.draws import client_sizes, dirichlet_rows


class BalancedRecycling(Partitioner):
    """Equal sizes by per-client class priors; a used-up class is refilled, so samples repeat and some go unused."""

    name = "balanced-recycling"
    paper = "FL-Simulator (FedSpeed, FedSMOO)"
    alpha: Annotated[float, "concentration of each client's class mix", positive()] = 0.6
    classes_per_client: Annotated[int | None, "n equiprobable classes instead of a Dirichlet mix", at_least(1)] = None
    samples: Annotated[int | None, "samples per client; none: all data, split evenly", at_least(1)] = None

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        if self.classes_per_client is None:
            priors = dirichlet_rows(p.generator("priors"), self.alpha, p.clients, p.classes)
        else:
            if self.classes_per_client > p.classes:
                raise p.infeasible(f"classes_per_client = {self.classes_per_client}, but there are {p.classes} classes")
            keys = rng.keys(p.key("class sets"), np.arange(p.clients))
            chosen = rng.permutation(keys, p.classes)[:, : self.classes_per_client]
            priors = np.zeros((p.clients, p.classes))
            np.put_along_axis(priors, chosen, 1 / self.classes_per_client, axis=1)
        priors = priors * (p.pools > 0)
        priors /= priors.sum(axis=1, keepdims=True)
        counts = p.generator("draws").multinomial(client_sizes(p, self.samples, p.samples), priors)
        owners, samples = [], []
        for c in np.flatnonzero(counts.sum(axis=0)):
            mine = np.flatnonzero(p.labels == c)
            wanted = int(counts[:, c].sum())
            passes = -(-wanted // len(mine))  # each refill comes in a new order
            stream = rng.permutation(rng.keys(p.key("refill", int(c)), np.arange(passes)), len(mine)).reshape(-1)[
                :wanted
            ]
            samples.append(mine[stream])
            owners.append(np.repeat(np.arange(p.clients), counts[:, c]))
        return np.concatenate(owners), np.concatenate(samples)
