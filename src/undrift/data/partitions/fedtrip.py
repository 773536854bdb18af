"""FedTrip's two partitions."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from undrift.core.settings import at_least, positive
from undrift.data.partitions.base import Division, Ints, Partitioner
from undrift.data.partitions.draws import (
    client_sizes,
    dirichlet_rows,
    draw_equal,
    draw_overlapping,
    largest_remainder,
)


class FedTripDirichlet(Partitioner):
    """FedTrip's Dir-a: each client draws its class mix from Dir(a), then its samples from the whole data set."""

    name = "fedtrip-dirichlet"
    paper = "FedTrip"
    alpha: Annotated[float, "concentration of each client's class mix", positive()] = 0.5
    samples: Annotated[int | None, "samples per client; none: all data, split evenly", at_least(1)] = None
    overlap: Annotated[bool, "clients draw independently and share samples (as published); false: they do not"] = True

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        priors = dirichlet_rows(p.generator("priors"), self.alpha, p.clients, p.classes)
        sizes = client_sizes(p, self.samples, p.samples if self.overlap else None)
        if self.overlap:
            return draw_overlapping(p, np.maximum(priors, 1e-30), int(sizes[0]))
        return p.deal(draw_equal(p, priors, sizes))


class FedTripOrthogonal(Partitioner):
    """FedTrip's Orthogonal-c: clients in c clusters, each cluster with its own contiguous group of classes."""

    name = "fedtrip-orthogonal"
    paper = "FedTrip"
    clusters: Annotated[int, "c: groups of classes", at_least(1)] = 5
    samples: Annotated[int | None, "samples per client; none: all data, split evenly", at_least(1)] = None
    overlap: Annotated[bool, "clients draw independently and share samples (as published); false: they do not"] = True

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        if self.clusters > min(p.classes, p.clients):
            raise p.infeasible(f"clusters = {self.clusters}: at most {p.clients} clients and {p.classes} classes")
        group = np.arange(p.classes) * self.clusters // p.classes
        cluster = np.arange(p.clients) % self.clusters
        member = (group[None, :] == cluster[:, None]).astype(np.float64)
        if self.overlap:
            return draw_overlapping(p, member, int(client_sizes(p, self.samples, p.samples)[0]))
        room = np.array([p.pools[group == g].sum() // (cluster == g).sum() for g in range(self.clusters)])
        size = int(room.min()) if self.samples is None else self.samples
        if size > room.min():
            raise p.infeasible(f"samples = {size}: cluster {int(room.argmin())} has only {int(room.min())} per client")
        counts = largest_remainder(member * p.pools, size)
        # Rounding may ask one class for a sample too many: draw those again inside the cluster.
        if (counts.sum(axis=0) > p.pools).any():
            counts = draw_equal(p, member * p.pools, np.full(p.clients, size))
        p.notes["unused"] = p.samples - size * p.clients
        return p.deal(counts)
