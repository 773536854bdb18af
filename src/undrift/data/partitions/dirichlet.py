"""Label skew by Dirichlet draws, over clients or over classes."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from undrift.core.settings import at_least, positive
from undrift.data.partitions.base import Division, Ints, Partitioner
from undrift.data.partitions.draws import client_sizes, dirichlet_rows, draw_equal, fill_up


class Dirichlet(Partitioner):
    """Each class is shared out among all clients by one draw from Dir(alpha); sizes come out uneven."""

    name = "dirichlet"
    paper = "Yurochkin et al., ICML 2019; FedTR"
    alpha: Annotated[float, "concentration: small = each client has few classes, large = nearly iid", positive()] = 0.5
    min_size: Annotated[int, "every client gets at least so many samples", at_least(1)] = 1

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        if self.min_size * p.clients > p.samples:
            raise p.infeasible(f"{p.clients} clients of at least {self.min_size} need more than {p.samples} samples")
        # Redraw while someone is short, as published, but only so often as it costs little; then fill up.
        tries = max(1, min(100, 10_000_000 // (p.clients * p.classes)))
        for attempt in range(tries):
            shares = dirichlet_rows(p.generator("shares", attempt), self.alpha, p.classes, p.clients)
            cuts = np.minimum(
                np.floor(np.cumsum(shares, axis=1) * p.pools[:, None] + 1e-9).astype(np.int64), p.pools[:, None]
            )
            cuts[:, -1] = p.pools
            counts = np.ascontiguousarray(np.diff(cuts, axis=1, prepend=0).T)
            if counts.sum(axis=1).min() >= self.min_size:
                break
        counts, moved = fill_up(counts, self.min_size)
        if moved:
            p.notes["moved"] = moved
        return p.deal(counts)


class DirichletEqual(Partitioner):
    """Each client draws its own class mix from Dir(alpha) and then equally many samples by it; no sample twice."""

    name = "dirichlet-equal"
    paper = "FedDyn; FedMRUR"
    alpha: Annotated[float, "concentration of each client's class mix", positive()] = 0.5
    samples: Annotated[int | None, "samples per client; none: all data, split evenly", at_least(1)] = None

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        priors = dirichlet_rows(p.generator("priors"), self.alpha, p.clients, p.classes)
        return p.deal(draw_equal(p, priors, client_sizes(p, self.samples)))
