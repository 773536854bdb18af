"""Records: what the server holds, what goes down, what a client keeps, what comes up.

A record is a frozen dataclass of tensors and plain numbers. The type of a field says its shape and how it travels, so
that the network layer, the checks, the reduction, the cost meter and the checkpoint need nothing else.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor

from undrift.core.settings import bare

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """The axes of a field by name: ``d`` parameters, ``head``, ``body``, ``C`` classes, ``f`` features."""

    axes: tuple[str, ...]


@dataclass(frozen=True)
class Travel:
    """How a field travels, and on the way up how it is reduced."""

    kind: str


Vector = Annotated[Tensor, Shape(("d",))]  # a point or a direction in parameter space
Head = Annotated[Tensor, Shape(("head",))]  # the part of it that belongs to the last linear layer
Body = Annotated[Tensor, Shape(("body",))]  # all the rest
Scalar = Annotated[Tensor, Shape(())]
PerClass = Annotated[Tensor, Shape(("C",))]  # one number per class
Table = Annotated[Tensor, Shape(("C", "f"))]  # one feature vector per class

Mean = Annotated[T, Travel("mean")]  # up: the weighted mean over the cohort
Sum = Annotated[T, Travel("sum")]  # up: the plain sum over the cohort
Each = Annotated[T, Travel("each")]  # up: all rows in cohort order; down: a row per client
Had = Annotated[T, Travel("had")]  # down, second exchange: the client has it from the first, it is not sent again


@dataclass(frozen=True)
class Field:
    name: str
    number: type | None  # int, float or bool for a plain number; None for a tensor
    axes: tuple[str, ...] | None  # None: any shape
    travel: str  # "same", "mean", "sum", "each" or "had"


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
        """The same record with its tensors on a device."""
        return self.map(lambda field, value: value.to(device) if isinstance(value, Tensor) else value)

    def row(self, i: int) -> Self:
        """What client ``i`` of the cohort gets: its row of every ``Each`` field."""
        return self.map(lambda field, value: value[i] if field.travel == "each" else value)

    def encode(self, header: Mapping[str, Any] | None = None) -> bytes:
        """The record as safetensors bytes, with a small JSON header for what is not a number."""
        sent = {field.name: _tensor(value) for field, value in self.items() if field.travel != "had"}
        return pack(sent, header)

    @classmethod
    def decode(cls, data: bytes, had: Record | None = None) -> Self:
        """The record in these bytes. Fields marked ``Had`` are taken from the message that came first."""
        return cls.of(unpack(data)[0], had)

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
        sent = ((f.name, _tensor(v)) for f, v in self.items() if f.travel != "had")
        return _packed_size(tuple((name, str(t.dtype), tuple(t.shape)) for name, t in sent))


class State(Record):
    """What the server holds or a client keeps between rounds."""


class Message(Record):
    """What the server sends to a client."""


class Upload(Record):
    """What a client sends to the server; every field says how it is reduced."""


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
        number = hint if hint in (int, float, bool) else None
        found.append(Field(item.name, number, shape.axes if shape else None, travel.kind if travel else "same"))
    return tuple(found)


def _tensor(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool):
        return torch.tensor(value)
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64)


# --- bytes ------------------------------------------------------------------------------------------------------------


def pack(tensors: Mapping[str, Tensor], header: Mapping[str, Any] | None = None) -> bytes:
    """Tensors, and a JSON header, as safetensors bytes."""
    arrays = {name: t.detach().cpu().contiguous().numpy() for name, t in tensors.items()}
    return save(arrays, metadata={"undrift": json.dumps(header)} if header else None)


def unpack(data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header of safetensors bytes. Raises ``ValueError`` for anything else."""
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
        return tensors, json.loads(metadata.get("undrift", "{}"))
    except (SafetensorError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"not a valid message: {error}") from None


@functools.lru_cache(maxsize=1024)
def _packed_size(parts: tuple[tuple[str, str, tuple[int, ...]], ...]) -> int:
    return len(pack({name: torch.empty(shape, dtype=getattr(torch, dtype[6:])) for name, dtype, shape in parts}))
