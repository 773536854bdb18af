"""How far the clients' updates of a round lie apart: figures for the record, on which nothing else depends."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.guard import SAMPLE, Seen
from undrift.core.records import Upload
from undrift.core.update import Starts


@dataclass(frozen=True)
class Spread:
    """What is left of updates that were looked at: how many, their lengths, and the sums of them and of their units."""

    count: int
    lengths: float
    squares: float
    total: Tensor
    units: Tensor


class Drift:
    """Updates are added up as they come, so that none has to be kept. Looked at is the first field of the update."""

    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self._name = starts.fields[0].name if starts.fields else ""
        self._count = 0
        self._lengths = self._squares = 0.0

    def add(self, up: Upload, place: int, seen: Seen | None = None) -> None:
        """The upload of the client at this place of the cohort; ``seen`` where its update was worked out before."""
        if not self._name or self._count >= SAMPLE:
            return
        value: Tensor = getattr(up, self._name).reshape(-1)  # a method may average tensors of any shape
        if not self._count:
            self._update, self._sum, self._units = (torch.zeros_like(value) for _ in range(3))
        if seen is None:
            start = self._starts.one(self._name, place)
            update = value if start is None else torch.sub(value, start, out=self._update)
            square = float(update.dot(update))
        else:
            update, square = seen.update, seen.square
        length = math.sqrt(square)
        self._sum.add_(update)
        self._units.add_(update, alpha=1 / length if length else 0.0)
        self._count, self._lengths, self._squares = self._count + 1, self._lengths + length, self._squares + square

    def add_rows(self, ups: Upload, place: int, seen: Seen | None = None) -> None:
        """The same for uploads whose fields are stacked along a first axis: clients from this place on."""
        if not self._name or self._count >= SAMPLE:
            return
        rows: Tensor = getattr(ups, self._name)[: SAMPLE - self._count]
        rows = rows.reshape(len(rows), -1)
        if not self._count:
            self._update, self._sum, self._units = (torch.zeros_like(rows[0]) for _ in range(3))
        if seen is None:
            start = self._starts.at(self._name, slice(place, place + len(rows)))
            updates = rows if start is None else rows - start
            lengths = torch.linalg.vector_norm(updates, dim=1)
        else:
            updates, lengths = seen.update[: len(rows)], seen.lengths[: len(rows)]
        inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
        total, units = torch.stack([torch.ones_like(inverse), inverse]) @ updates
        self._sum.add_(total)
        self._units.add_(units)
        self._count += len(rows)
        self._lengths += float(lengths.sum())
        self._squares += float(lengths.dot(lengths))

    def spread(self) -> Spread | None:
        """What is left of all that was looked at."""
        return Spread(self._count, self._lengths, self._squares, self._sum, self._units) if self._count else None

    def merge(self, other: Spread) -> None:
        """What was looked at elsewhere."""
        if not self._count:
            self._update, self._sum, self._units = (torch.zeros_like(other.total) for _ in range(3))
        self._sum.add_(other.total)
        self._units.add_(other.units)
        self._count, self._lengths = self._count + other.count, self._lengths + other.lengths
        self._squares += other.squares

    def figures(self) -> dict[str, float]:
        """Mean cosine and root mean square distance of the updates to their mean, and FedMRUR's amp."""
        if self._count < 2:
            return {}
        mean = self._sum / self._count
        square = float(mean.dot(mean))
        length = max(math.sqrt(square), 1e-30)
        return {
            "cosine": float(self._units.dot(mean)) / (self._count * length),
            "distance": math.sqrt(max(self._squares / self._count - square, 0.0)),
            "amp": self._lengths / (self._count * length),
        }
