"""The update in an upload: how each of its fields differs from what the client was sent, and how long that is.

The field types say which fields are part of it: a ``Point`` is compared with what was sent, a ``Move`` is a difference
already. Everything works on rows, one per client. It knows neither what is done with updates nor who sent them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from undrift.core.records import Field, Message, Record


def parts(kind: type[Record]) -> tuple[Field, ...]:
    """The fields of an upload that are part of the update."""
    return tuple(field for field in kind.schema() if field.meaning)


def unsaid(kind: type[Record]) -> list[str]:
    """The fields that may be part of the update, and do not say so."""
    spread = {("d",), ("body",), ("head",), None}
    return [f.name for f in kind.schema() if not f.meaning and f.travel in ("mean", "each") and f.axes in spread]


class Starts:
    """What the clients of an exchange began with, for each field that is a point."""

    def __init__(self, kind: type[Record], down: Message) -> None:
        sent = {field.name: (field.travel == "each", value) for field, value in down.items()}
        self.fields = parts(kind)
        self._each: dict[str, Tensor] = {}
        self._same: dict[str, Tensor] = {}
        for field in self.fields:
            if field.meaning == "point":
                each, value = sent[field.name]
                if each:
                    self._each[field.name] = value
                else:
                    self._same[field.name] = value.reshape(1, -1)
        self._first = {name: rows[0] for name, rows in self._same.items()}

    def one(self, name: str, place: int) -> Tensor | None:
        """Of the client at this place, as a vector. None: the field is no point."""
        if name in self._first:
            return self._first[name]
        return self._each[name][place].reshape(-1) if name in self._each else None

    def at(self, name: str, places: slice | Tensor) -> Tensor | None:
        """Of clients at these places, as rows; one row where it was the same for all. None: the field is no point."""
        if name in self._same:
            return self._same[name]
        return _rows(self._each[name][places]) if name in self._each else None

    def updates(self, ups: Record, places: slice | Tensor) -> dict[str, Tensor]:
        """The update of each field, as rows of vectors, of uploads with a row per client."""
        found = {}
        for field in self.fields:
            rows, start = _rows(getattr(ups, field.name)), self.at(field.name, places)
            found[field.name] = rows if start is None else rows - start
        return found


def _rows(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1)


def norms(updates: Mapping[str, Tensor]) -> Tensor:
    """The length of each client's update, all its fields taken together, in double precision."""
    found = [torch.linalg.vector_norm(rows, dim=1) for rows in updates.values()]
    if any(not bool(torch.isfinite(lengths).all()) for lengths in found):  # squares that single precision cannot hold
        found = [torch.linalg.vector_norm(rows.cpu().double(), dim=1) for rows in updates.values()]
    lengths = torch.stack([each.cpu().double() for each in found])
    return lengths[0] if len(lengths) == 1 else lengths.square().sum(0).sqrt()
