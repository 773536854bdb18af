"""Which updates are absurd though finite: many times longer than the median of their round.

What is not much longer than the message that the client received never is, however short the others are: a client with
rare data among many that have converged is no fault. As such an upload need not wait for the others, the reduction
stays a stream; and as the drift looks at the same updates, nothing is worked out twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any, NamedTuple

import torch
from torch import Tensor

from undrift.core.records import Message
from undrift.core.reduce import Block
from undrift.core.update import Starts, norms

SAMPLE = 256  # uploads whose updates are looked at, in cohort order: the others are only seen not to be long
LONG = 3  # times the message: an update up to this length is never absurd


class Seen(NamedTuple):
    """The first field of an update, as a vector or as rows, and how long it is. Good until the next one is seen."""

    update: Tensor
    square: float = 0.0  # of the length of a vector
    lengths: Any = None  # of rows


class Guard:
    """Looks at uploads as they come, and says at the end which of those that had to wait cannot count."""

    def __init__(self, starts: Starts, down: Message, factor: float | None) -> None:
        self._factor, self._starts = factor, starts
        self._first, *self._others = [field.name for field in self._starts.fields] or [""]
        self._sent = _lengths(down) if self._first and factor is not None else [math.inf]
        self._moves = {field.name for field in starts.fields if field.meaning == "move"}
        self._scratch: Tensor | None = None
        self.lengths: dict[int, float] = {}  # of the updates that were looked at, by place

    def look(self, up: Any, place: int) -> tuple[bool, Seen | None]:
        """May this upload count whatever the others send? And its update, where it was worked out."""
        if not self._first:
            return True, None
        if len(self.lengths) >= SAMPLE:
            square = sum(_square(getattr(up, name)) for name in (self._first, *self._others))
            # An update is at most as long as upload and message together.
            return math.sqrt(square) <= (LONG - 1) * self._message(place), None
        value: Tensor = getattr(up, self._first).reshape(-1)
        start = self._starts.one(self._first, place)
        if start is not None:
            if self._scratch is None:
                self._scratch = torch.empty_like(value)
            value = torch.sub(value, start, out=self._scratch)
        square = total = value.dot(value).item()
        for name in self._others:
            start = self._starts.one(name, place)
            more: Tensor = getattr(up, name).reshape(-1)
            total += _square(more if start is None else more - start)
        length = self.lengths[place] = math.sqrt(total) if math.isfinite(total) else self._length(up, place)
        return length <= LONG * self._message(place), Seen(value, square)

    def look_rows(self, block: Block, place: int) -> tuple[bool, Seen | None]:
        """The same for a block of clients from this place on."""
        if not self._first:
            return True, None
        count = len(block.clients)
        places = range(place, place + count)
        if len(self.lengths) >= SAMPLE and block.norms:
            sizes = torch.stack([block.norms[name].double() for name in (self._first, *self._others)])
            total: Tensor = sizes.square().sum(0).sqrt()
            return self._all_within(LONG - 1, places, total.tolist()), None
        updates = self._starts.updates(block.up, slice(place, place + count))
        found = [self._row_lengths(block, name, updates[name]) for name in (self._first, *self._others)]
        if not all(bool(torch.isfinite(each).all()) for each in found):
            lengths = norms(updates)
        elif self._others:
            lengths = torch.stack([each.double() for each in found]).square().sum(0).sqrt()
        else:
            lengths = found[0]
        first, numbers = found[0], lengths.tolist()
        self.lengths.update(zip(places, numbers, strict=True))
        return self._all_within(LONG, places, numbers), Seen(updates[self._first], lengths=first)

    def _row_lengths(self, block: Block, name: str, update: Tensor) -> Tensor:
        """Those of a field that is an update itself may be known."""
        known = block.norms.get(name) if name in self._moves else None
        return torch.linalg.vector_norm(update, dim=1) if known is None else known

    def told(self, lengths: Mapping[int, float]) -> None:
        """The lengths of updates that were looked at elsewhere, by place."""
        if len(self.lengths) < SAMPLE:
            self.lengths |= lengths

    def objections(self, waiting: Sequence[tuple[int, Any]]) -> dict[int, str]:
        """Why some of these uploads cannot count, by place, now that all were looked at."""
        found: dict[int, str] = {}
        for place, up in waiting:
            if place not in self.lengths:
                self.lengths[place] = self._length(up, place)
        median = median_low(self.lengths.values()) if self.lengths else 0.0
        if self._factor is None or not median:  # among updates that are mostly 0 nothing can be told
            return found
        for place, _ in waiting:
            length = self.lengths[place]
            if length > max(self._factor * median, LONG * self._message(place)):
                found[place] = (
                    f"its update has norm {length:.3g}, "
                    f"more than {self._factor:g} times the median of the round ({median:.3g})"
                )
        for place in found:
            del self.lengths[place]
        return found

    def _message(self, place: int) -> float:
        return self._sent[0 if len(self._sent) == 1 else place]

    def _all_within(self, times: int, places: range, lengths: list[float]) -> bool:
        """Is none of these longer than so many times its message?"""
        if len(self._sent) == 1:
            return max(lengths) <= times * self._sent[0]
        return all(length <= times * self._sent[place] for place, length in zip(places, lengths, strict=True))

    def _length(self, up: Any, place: int) -> float:
        one = up.map(lambda field, value: value.unsqueeze(0))
        return float(norms(self._starts.updates(one, slice(place, place + 1)))[0])


def _square(value: Tensor) -> float:
    flat = value.reshape(-1)
    square: float = flat.dot(flat).item()
    return square


def _lengths(down: Message) -> list[float]:
    """The length of the message: one number, or one per client where they get different ones."""
    parts = [
        (f.travel == "each", v) for f, v in down.items() if isinstance(v, Tensor) and v.is_floating_point() and v.ndim
    ]
    if not any(each for each, _ in parts) and math.isfinite(square := sum(_square(value) for _, value in parts)):
        return [math.sqrt(square)]  # quick, as it nearly always is
    squares: Tensor = torch.zeros(1, dtype=torch.float64)
    for each, value in parts:
        squares = squares + norms({"": value.reshape(len(value), -1) if each else value.reshape(1, -1)}).square()
    found: list[float] = squares.sqrt().tolist()
    return found
