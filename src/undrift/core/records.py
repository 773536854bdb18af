"""Records: what the server holds, what goes down, what a client keeps, what comes up.

A record is a frozen dataclass of tensors and plain numbers. The type of a field says its shape and how it travels, so
that the network layer, the checks, the reduction, the cost meter and the checkpoint need nothing else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform, get_type_hints

import torch
from torch import Tensor

from undrift.core.packing import pack, packed_size, unpack
from undrift.core.settings import bare

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """The axes of a field by name: ``d`` parameters, ``head``, ``body``, ``C`` classes, ``f`` features."""

    axes: tuple[str, ...]


@dataclass(frozen=True)
class Like:
    """A field with the shape of what the client keeps under another name, which a setting decides."""

    name: str


@dataclass(frozen=True)
class Travel:
    """How a field travels, and on the way up how it is reduced."""

    kind: str


@dataclass(frozen=True)
class Meaning:
    """What a field of an upload says about the update: where the client arrived, or how it moved."""

    kind: str


Vector = Annotated[Tensor, Shape(("d",))]  # a point or a direction in parameter space
Head = Annotated[Tensor, Shape(("head",))]  # the part of it that belongs to the last linear layer
Body = Annotated[Tensor, Shape(("body",))]  # all the rest
Scalar = Annotated[Tensor, Shape(())]
PerClass = Annotated[Tensor, Shape(("C",))]  # one number per class; on the way up classes with 0 in all are left out
Table = Annotated[Tensor, Shape(("C", "f"))]  # one feature vector per class; the same

Mean = Annotated[T, Travel("mean")]  # up: the weighted mean over the cohort
Sum = Annotated[T, Travel("sum")]  # up: the plain sum over the cohort
Each = Annotated[T, Travel("each")]  # up: all rows in cohort order; down: a row per client
Point = Annotated[T, Meaning("point")]  # up: a place; the update is its difference to what was sent under this name
Move = Annotated[T, Meaning("move")]  # up: a displacement, which is the update itself
Had = Annotated[T, Travel("had")]  # down, second exchange: the client has it from the first, it is not sent again


@dataclass(frozen=True)
class Field:
    name: str
    number: type | None  # int, float or bool for a plain number; None for a tensor
    axes: tuple[str, ...] | None  # None: any shape
    travel: str  # "same", "mean", "sum", "each" or "had"
    meaning: str = ""  # "point", "move", or none: no part of the update
    like: str = ""  # the field that the client keeps which has the same shape


@dataclass_transform(frozen_default=True, eq_default=False)
class Record:
    """Base of all records. Subclasses become frozen dataclasses."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclass(frozen=True, eq=False)(cls)

    @classmethod
    def schema(cls) -> tuple[Field, ...]:
        found: Any = cls
        return _schema(found)

    def items(self) -> Iterator[tuple[Field, Any]]:
        for field in self.schema():
            yield field, getattr(self, field.name)

    def map(self, change: Callable[[Field, Any], Any]) -> Self:
        """The same record with every field changed by a function."""
        return type(self)(**{field.name: change(field, value) for field, value in self.items()})

    def tensors(self) -> Self:
        """The same record with plain numbers turned into tensors (float64, int64 or bool)."""
        return self.map(lambda field, value: _tensor(value))

    def to(self, device: str | torch.device) -> Self:
        """The same record with its tensors on a device; single numbers stay, as they go with tensors of any device."""
        single = torch.device(device).type == "mps"  # which has no double precision

        def moved(value: Any) -> Any:
            stays = not isinstance(value, Tensor) or value.ndim == 0 or (single and value.dtype == torch.float64)
            return value if stays else value.to(device)

        return self.map(lambda field, value: moved(value))

    def row(self, i: int) -> Self:
        """What client ``i`` of the cohort gets: its row of every ``Each`` field."""
        return self.map(lambda field, value: value[i] if field.travel == "each" else value)

    def sent(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The tensors that travel, and a header that says what was left out of them.

        In an upload, the rows of classes in which all fields with a row per class are 0: those of other clients.
        """
        tensors = {field.name: _tensor(value) for field, value in self.items() if field.travel != "had"}
        tables = {name: tensors[name] for name in self.by_class()}
        lengths = {tuple(table.shape[:1]) for table in tables.values()}
        if len(lengths) != 1 or () in lengths:
            return tensors, {}  # there are none; or they do not fit together, which the server will object to
        held = torch.stack([table.unsqueeze(1).flatten(1).ne(0).any(1) for table in tables.values()]).any(0)
        mask = "".join("1" if mine else "0" for mine in held.tolist())
        return tensors | {name: table[held] for name, table in tables.items()}, {"held": mask}

    @classmethod
    def received(cls, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> dict[str, Tensor]:
        """What was sent, with the rows that were left out."""
        found = dict(tensors)
        if "held" in header:
            held = torch.tensor([bit == "1" for bit in header["held"]])
            for name in cls.by_class():
                rows = found[name]
                if len(rows) != int(held.sum()):
                    raise ValueError(f"not a valid message: {name} has {len(rows)} rows, and the header says otherwise")
                found[name] = rows.new_zeros(len(held), *rows.shape[1:])
                found[name][held.to(rows.device)] = rows
        return found

    @classmethod
    def by_class(cls) -> tuple[str, ...]:
        """The fields with a row per class that a client sends only for its own classes."""
        return ()

    def encode(self) -> bytes:
        """The record as safetensors bytes."""
        return pack(*self.sent())

    @classmethod
    def decode(cls, data: bytes, had: Record | None = None) -> Self:
        """The record in these bytes. Fields marked ``Had`` are taken from the message that came first."""
        return cls.of(cls.received(*unpack(data)), had)

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], had: Record | None = None) -> Self:
        """The record with these tensors as its fields, by name."""
        values: dict[str, Any] = {}
        for field in cls.schema():
            if field.travel == "had" and field.name not in tensors:
                values[field.name] = getattr(had, field.name)
            elif field.number is not None:
                values[field.name] = field.number(tensors[field.name].item())
            else:
                values[field.name] = tensors[field.name]
        return cls(**values)

    def nbytes(self) -> int:
        """The length of ``encode()``, without encoding."""
        tensors, header = self.sent()
        parts = tuple((name, str(t.dtype), tuple(t.shape)) for name, t in tensors.items())
        return packed_size(parts, len(header.get("held", "")))

    def sizes(self, count: int) -> list[int]:
        """``nbytes`` of each of this many records, whose fields are stacked here along a first axis."""
        if not self.by_class():
            return [self.map(lambda field, value: value[0]).nbytes()] * count
        return [type(self)(*row).nbytes() for row in zip(*(value.unbind() for _, value in self.items()), strict=True)]


class State(Record):
    """What the server holds or a client keeps between rounds."""


class Message(Record):
    """What the server sends to a client."""


class Upload(Record):
    """What a client sends to the server; every field says how it is reduced."""

    @classmethod
    def by_class(cls) -> tuple[str, ...]:
        return tuple(field.name for field in cls.schema() if field.axes and field.axes[0] == "C")

    def derived(self) -> Self:
        """The same upload after its update was changed on the way: with what follows from the update worked out again.

        For uploads with a row per client too.
        """
        return self

    def doubt(self, samples: int, steps: int) -> str | None:
        """Why it cannot be what a client with so many samples found in so many steps, or None.

        Types, shapes and sizes of all fields have been checked before.
        """
        return None


class Nothing(State):
    """A client that keeps nothing."""

    EMPTY: ClassVar[bool] = True


@functools.cache
def _schema(cls: Any) -> tuple[Field, ...]:
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for item in fields(cls):
        hint, extras = bare(hints[item.name])
        shape = next((e for e in extras if isinstance(e, Shape)), None)
        travel = next((e for e in extras if isinstance(e, Travel)), None)
        meaning = next((e.kind for e in extras if isinstance(e, Meaning)), "")
        like = next((e.name for e in extras if isinstance(e, Like)), "")
        number = hint if hint in (int, float, bool) else None
        axes = shape.axes if shape else None
        found.append(Field(item.name, number, axes, travel.kind if travel else "same", meaning, like))
    return tuple(found)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)
