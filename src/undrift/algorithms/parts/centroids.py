"""Centroids: a table with the mean feature of every class, which clients share in the place of, or beside, a model.

A class that nobody has had so far has no centroid: its row is NaN, wherever the table is, and draws nobody.
"""

from __future__ import annotations

from torch import Tensor, cat, finfo, where

from undrift.core.local import Batch
from undrift.core.records import PerClass, Sum, Table, Upload
from undrift.core.vector import Layout


class Classes(Upload):
    """What a client says of its classes; nothing of the others, whose rows are 0 and do not travel."""

    sums: Sum[Table]  # n_ij c_ij: weight times centroid
    n: Sum[PerClass]  # n_ij: the client's weight in class j

    def doubt(self, samples: int, steps: int) -> str | None:
        n, sums = self.n, self.sums.abs().sum(1)
        if bool(((n != 0) & (n < 1)).any()) or float(n.sum()) > samples:
            return f"n does not divide {samples} samples among classes"
        return "sums has a row for a class without samples" if bool(((n == 0) & (sums != 0)).any()) else None

    def renewed(self, table: Tensor) -> Tensor:
        """The table after a round: weighted means where the cohort had the class, the old row elsewhere."""
        here = self.n > 0
        return where(here.unsqueeze(1), self.sums / where(here, self.n, 1).unsqueeze(1), table)


def no_centroids(like: Tensor, layout: Layout) -> Tensor:
    """The table before the first round."""
    return like.new_full((layout.classes, layout.features), float("nan"))


def distance(z: Tensor, table: Tensor, b: Batch, reduction: str = "mse") -> Tensor:
    """Squared distance of the features of a batch to their classes' centroids.

    ``mse``: mean over the batch and the features; ``mean``: over the batch; ``sum``: of everything.
    """
    to = table[b.y]
    gaps = where(to.isfinite(), z.flatten(1) - to, 0.0).square()  # before the square, so that no NaN is differentiated
    if reduction == "sum":
        return b.sum(gaps.sum(1))
    return b.mean(gaps.mean(1) if reduction == "mse" else gaps.sum(1))


def choosing_nearest(table: Tensor, x: Tensor, layout: Layout) -> Tensor:
    """The model x with a last layer that chooses the nearest centroid: ‖z - c‖² is least where 2cz - ‖c‖² is largest.

    A class without a centroid is never chosen; as long as there is none at all, the model is x.
    """
    known = table.isfinite().all(1)
    weight = where(known.unsqueeze(1), 2 * table, 0.0)
    bias = where(known, -table.square().sum(1), finfo(x.dtype).min)
    head = cat([weight.flatten(), bias]) if known.any() else layout.split(x, "head")
    return layout.join(body=layout.split(x, "body"), head=head)
