"""How far the clients' updates of a round lie apart: figures for the record, on which nothing else depends."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from undrift.core.records import Message, Upload

SAMPLE = 256  # uploads that are looked at, in cohort order
_UPDATES = {"mean": (("d",), ("body",), None), "each": (("d",), ("body",))}  # axes of what may be an update, by travel


class Drift:
    """Updates are added up as they come, so that none has to be kept.

    The update is the first vector of the upload that is averaged, or sent by each client for itself; where the message
    down has a field of the same name, that field is a model and the update is the difference.
    """

    def __init__(self, kind: type[Upload], down: Message) -> None:
        found = [f for f in kind.schema() if f.axes in _UPDATES.get(f.travel, ())]
        self._name = found[0].name if found else ""
        starts = {f.travel: v for f, v in down.items() if f.name == self._name}
        self._each = "each" in starts  # every client began with a model of its own
        self._starts: Tensor | None = next(iter(starts.values()), None)
        self._count = 0
        self._lengths = self._squares = 0.0

    def add(self, up: Upload, place: int) -> None:
        """The upload of the client at this place of the cohort."""
        if not self._name or self._count == SAMPLE:
            return
        value: Tensor = getattr(up, self._name).reshape(-1)  # a method may average tensors of any shape
        if not self._count:
            self._update, self._sum, self._units = (torch.zeros_like(value) for _ in range(3))
        update = value if self._starts is None else torch.sub(value, self._start(place)[0], out=self._update)
        square = float(update.dot(update))
        length = math.sqrt(square)
        self._sum.add_(update)
        self._units.add_(update, alpha=1 / length if length else 0.0)
        self._count, self._lengths, self._squares = self._count + 1, self._lengths + length, self._squares + square

    def add_rows(self, ups: Upload, place: int) -> None:
        """The same for uploads whose fields are stacked along a first axis: clients from this place on."""
        if not self._name or self._count == SAMPLE:
            return
        rows: Tensor = getattr(ups, self._name)[: SAMPLE - self._count]
        rows = rows.reshape(len(rows), -1)
        if not self._count:
            self._update, self._sum, self._units = (torch.zeros_like(rows[0]) for _ in range(3))
        updates = rows if self._starts is None else rows - self._start(place, len(rows))
        lengths = torch.linalg.vector_norm(updates, dim=1)
        inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
        total, units = torch.stack([torch.ones_like(inverse), inverse]) @ updates
        self._sum.add_(total)
        self._units.add_(units)
        self._count += len(rows)
        self._lengths += float(lengths.sum())
        self._squares += float(lengths.dot(lengths))

    def _start(self, place: int, count: int = 1) -> Tensor:
        """What the clients from a place on began with, as rows; one row where it was the same."""
        assert self._starts is not None
        return self._starts[place : place + count] if self._each else self._starts.reshape(1, -1)

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
