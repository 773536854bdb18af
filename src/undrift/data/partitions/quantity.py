"""Quantity skew: the same mix for everybody, but not equally many samples."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.core.settings import at_least, positive
from undrift.data.partitions.base import Division, Ints, Partitioner
from undrift.data.partitions.draws import dirichlet_rows, largest_remainder


class Quantity(Partitioner):
    """Every client has every class in the global mix, but not equally many samples."""

    name = "quantity"
    paper = "pFedMo, quantity skew"
    sizes: Annotated[tuple[float, ...], "samples of each client, like 5000,12500,17500; none: by alpha"] = ()
    alpha: Annotated[float, "without sizes: one draw from Dir(alpha) says who has how much", positive()] = 1.0
    min_size: Annotated[int, "every client gets at least so many samples", at_least(1)] = 1

    def validate(self) -> None:
        if any(not isinstance(s, int | float) or s < 1 or s != int(s) for s in self.sizes):
            raise InvalidInput(f"partition quantity: sizes = {list(self.sizes)}: they must be whole numbers >= 1")

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        if self.sizes:
            if len(self.sizes) != p.clients:
                raise p.infeasible(f"{len(self.sizes)} sizes for {p.clients} clients")
            total = sum(self.sizes)
            if total > p.whole:
                raise p.infeasible(f"the sizes add up to {total:.10g}, but the data set has {p.whole} samples")
            sizes = np.array(self.sizes, np.int64)
            if sizes.sum() > p.samples:  # public rows were set apart: everybody gives the same share of theirs
                sizes = largest_remainder(sizes.astype(np.float64), int(sizes.sum()) * p.samples // p.whole)[0]
                p.notes["sizes"] = sizes.tolist()
        else:
            if self.min_size * p.clients > p.samples:
                raise p.infeasible(
                    f"{p.clients} clients of at least {self.min_size} need more than {p.samples} samples"
                )
            shares = dirichlet_rows(p.generator("sizes"), self.alpha, 1, p.clients)
            sizes = self.min_size + largest_remainder(shares, p.samples - self.min_size * p.clients)[0]
        # Even the class mix: walk through the samples in an order in which every stretch has the global mix.
        order = p.shuffled()
        if p.all_labels is not None:
            order, starts = p.by_class()
            label = p.labels[order]
            order = order[np.argsort((np.arange(p.samples) - starts[label] + 0.5) / p.pools[label], kind="stable")]
        return np.repeat(np.arange(p.clients), sizes), order[: sizes.sum()]
