"""Uploads are checked one by one and reduced in cohort order, in double precision: order of arrival never matters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.plugins import Registry
from undrift.core.records import State, Upload
from undrift.core.settings import Settings
from undrift.core.spent import Spent
from undrift.core.vector import Buffers, double


@dataclass(frozen=True)
class Reply:
    """What a client's work produced: the upload, and the state it will keep if the upload is accepted."""

    client: int
    round: int
    up: Any  # an Upload; anything at all before it is checked
    state: State | None
    samples: int
    steps: int
    spent: Spent
    buffers: Buffers | None = None
    notes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """The replies of many clients, as records whose fields have a row per client."""

    clients: NDArray[np.int64]
    round: int
    up: Any
    state: State | None
    samples: NDArray[np.int64]
    steps: NDArray[np.int64]
    spent: list[Spent]
    notes: dict[str, list[float]]
    norms: Mapping[str, Tensor] = field(default_factory=dict)  # of the rows of each field of the upload
    kept: Mapping[str, float] = field(default_factory=dict)  # the largest magnitude in each field of what they keep

    def replies(self) -> list[Reply]:
        """One by one."""
        ups = _unstacked(self.up, len(self.clients))
        numbers = zip(self.clients.tolist(), self.samples.tolist(), self.steps.tolist(), strict=True)
        return [
            Reply(client, self.round, up, state, samples, steps, spent, None, note)
            for (client, samples, steps), up, state, spent, note in zip(
                numbers, ups, self.states(), self.spent, self.noted(), strict=True
            )
        ]

    def reply(self, i: int) -> Reply:
        """One of them, to look at."""
        up, state = (
            None if part is None else part.map(lambda field, value: value[i]) for part in (self.up, self.state)
        )
        client, samples, steps = (int(values[i]) for values in (self.clients, self.samples, self.steps))
        notes = {name: values[i] for name, values in self.notes.items()}
        return Reply(client, self.round, up, state, samples, steps, self.spent[i], None, notes)

    def states(self) -> list[Any]:
        """What each client will keep: copies, because a client must not keep the whole block."""
        count = len(self.clients)
        return [None] * count if self.state is None else _unstacked(self.state, count, copy=True)

    def noted(self) -> list[dict[str, float]]:
        return [{name: values[i] for name, values in self.notes.items()} for i in range(len(self.clients))]


@dataclass(frozen=True)
class Partial:
    """Clients that follow each other in the cohort, with one upload for all that count, added up where they worked.

    What is known of each client comes along; uploads that the guard has to see beside all others come as they are.
    """

    place: int  # of the first of them in the cohort
    span: int  # how many were asked
    up: Any  # reduced, in the fields' own types; None: nobody's counts
    weight: float  # theirs together
    clients: tuple[int, ...]  # those that count, in cohort order, and so in all that follows
    steps: tuple[int, ...]
    spent: tuple[Spent, ...]
    notes: tuple[dict[str, float], ...]
    kept: Mapping[int, Any]  # what they will keep
    buffers: Buffers | None
    lengths: Mapping[int, float]  # of their updates, by place
    drift: Any  # how far their updates lie apart, where it was looked at
    waiting: Mapping[int, Reply]  # by place
    rejected: Mapping[int, str]  # by client


def _unstacked(record: Any, count: int, copy: bool = False) -> list[Any]:
    columns = [[row.clone() for row in value.unbind()] if copy else value.unbind() for _, value in record.items()]
    kind = type(record)
    return [kind(*row) for row in zip(*columns, strict=True)] if columns else [record] * count


def reach(values: Tensor) -> float:
    """The largest magnitude among some numbers, in one pass; NaN or infinite where they are not all finite."""
    if not values.numel():
        return 0.0
    try:
        low, high = (float(value) for value in torch.aminmax(values.detach()))
    except RuntimeError:  # of a type that nothing can be done with
        return math.nan
    return max(-low, high)


class Total:
    """Scaled tensors that are added one after the other, in double precision."""

    def __init__(self, like: Tensor) -> None:
        self._like = like[:0] if like.ndim else like  # no more than its kind
        self._total = torch.zeros_like(double(like))

    def add(self, value: Tensor, factor: float) -> None:
        self._total.add_(value.to(self._total.device), alpha=factor)

    def over(self, divisor: float) -> Tensor:
        mean = self._total / divisor
        return mean.type_as(self._like) if self._like.is_floating_point() else mean


class Reduction:
    """One upload for the cohort, from uploads that are added in cohort order: means, sums and rows, as each field says.

    Weights count relative to the first. The mean of one upload is then the upload itself, and a client that was lost
    leaves no trace, both to the last bit; and an upload can be forgotten as soon as it has been added.
    """

    held: ClassVar[tuple[str, ...]] = ("each",)  # the fields of which all rows are held

    def __init__(self, kind: type[Upload]) -> None:
        self._kind = kind
        self._first = self._weight = 0.0
        self._sums: dict[str, Total] = {}
        self._rows: dict[str, list[Tensor]] = {}

    def add(self, up: Upload, weight: float) -> None:
        self._first = self._first or weight
        factor = weight / self._first
        self._weight += factor
        for spec, value in up.items():
            value = double(value) if spec.axes == () else value  # whatever type a client's single numbers have
            if spec.travel in self.held:
                self._rows.setdefault(spec.name, []).append(value)
            else:
                if spec.name not in self._sums:
                    self._sums[spec.name] = Total(value)
                self._sums[spec.name].add(value, factor if spec.travel == "mean" else 1.0)

    def add_rows(self, ups: Upload, weights: Sequence[float]) -> None:
        """The same for uploads whose fields are stacked along a first axis: one product per field, in its own type."""
        self._first = self._first or weights[0]
        factors = torch.tensor(weights, dtype=torch.float64) / self._first
        self._weight += float(factors.sum())
        for spec, rows in ups.items():
            rows = double(rows) if spec.axes == () else rows
            if spec.travel in self.held:
                self._rows.setdefault(spec.name, []).extend(rows.unbind())
            else:
                if spec.name not in self._sums:
                    self._sums[spec.name] = Total(rows[0])
                scale = factors if spec.travel == "mean" else torch.ones_like(factors)
                self._sums[spec.name].add(torch.tensordot(scale.to(rows), rows, 1), 1.0)

    def add_reduced(self, up: Upload, weight: float) -> None:
        """What another reduction made of uploads that weigh so much together."""
        self._first = self._first or weight
        factor = weight / self._first
        self._weight += factor
        for spec, value in up.items():
            if spec.travel == "each":
                self._rows.setdefault(spec.name, []).extend(value.unbind())
            else:
                if spec.name not in self._sums:
                    self._sums[spec.name] = Total(value)
                self._sums[spec.name].add(value, factor if spec.travel == "mean" else 1.0)

    def result(self) -> Any:
        rows = {name: torch.stack(values) for name, values in self._rows.items()}
        means = {f.name for f in self._kind.schema() if f.travel == "mean"}
        sums = {name: total.over(self._weight if name in means else 1.0) for name, total in self._sums.items()}
        return self._kind(**rows, **sums)


class Reducer(Settings):
    """How the uploads of a round become one. Of somebody else's, ``combined`` is all that has to be written."""

    def combined(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Of one field that is a mean: the clients' values, in rows, and their weights, which sum to 1, as one."""
        raise NotImplementedError

    def begun(self, kind: type[Upload]) -> Reduction:
        """What the uploads of an exchange are added to. This one holds them all until the last."""
        return Gathered(kind, self)


class WeightedMean(Reducer):
    """The mean, weighted by samples or as the method says. Nothing waits: an upload is added and forgotten."""

    def begun(self, kind: type[Upload]) -> Reduction:
        return Reduction(kind)


class Gathered(Reduction):
    """A reduction that sees all rows of a mean at once. Sums and rows are what they are."""

    held = ("each", "mean")

    def __init__(self, kind: type[Upload], reducer: Reducer) -> None:
        super().__init__(kind)
        self._reducer = reducer
        self._weights: list[float] = []

    def add(self, up: Upload, weight: float) -> None:
        self._weights.append(weight)
        super().add(up, weight)

    def add_rows(self, ups: Upload, weights: Sequence[float]) -> None:
        self._weights += weights
        super().add_rows(ups, weights)

    def result(self) -> Any:
        weights = torch.tensor(self._weights, dtype=torch.float64)
        gathered = super().result()
        return gathered.map(lambda f, value: self._one(value, weights / weights.sum()) if f.travel == "mean" else value)

    def _one(self, rows: Tensor, weights: Tensor) -> Tensor:
        found = self._reducer.combined(rows, weights.to(rows))
        if not isinstance(found, Tensor) or found.shape != rows.shape[1:]:
            what = f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
            raise InvalidInput(
                f"reducer {type(self._reducer).__name__}: of {len(rows)} rows of shape {tuple(rows.shape[1:])} it must "
                f"make one of that shape, not {what}"
            )
        return found.to(rows.dtype)


REDUCERS: Registry[Reducer] = Registry("reducer", Reducer, "undrift.reducers", {"mean": WeightedMean})


def weighted_mean(rows: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The same mean, of rows that are all there."""
    total, factors, whole = Total(rows[0]), [weight / weights[0] for weight in weights], 0.0
    for row, factor in zip(rows, factors, strict=True):
        total.add(row, factor)
        whole += factor  # not sum(): from Python 3.12 on its last bit is another
    return total.over(whole)


def reduce_buffers(buffers: Sequence[Buffers], weights: Sequence[float]) -> Buffers:
    """Batch-norm statistics: the weighted mean; integer counters: the maximum."""
    floats = weighted_mean([b.floats for b in buffers], weights)
    counts = torch.stack([b.counts for b in buffers]).amax(0) if buffers[0].counts.numel() else buffers[0].counts
    return Buffers(floats, counts)
