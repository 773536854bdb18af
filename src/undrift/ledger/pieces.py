"""Tensors as pieces of bytes of a bounded size, and back: SQLite takes no more than a gigabyte at once, and memory
should not have to hold a large state twice.

Each piece is a safetensors message of its own. A tensor that does not fit into one goes on in the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from undrift.core.packing import pack, unpack

PIECE = 8 << 20  # bytes of tensors in a piece

Tensors = Mapping[str, Tensor]


def cut(tensors: Tensors, header: Mapping[str, Any], limit: int = PIECE) -> Iterator[bytes]:
    """The pieces of some tensors; the first has the header, and the shapes of tensors that are cut."""
    shapes = {name: list(t.shape) for name, t in tensors.items() if t.nbytes > limit}
    head: dict[str, Any] = dict(header) | ({"shapes": shapes} if shapes else {})
    part: dict[str, Tensor] = {}
    first, room = True, limit
    for name, tensor in tensors.items():
        for segment in _segments(tensor, limit):
            if part and segment.nbytes > room:
                yield pack(part, head if first else None)
                first, part, room = False, {}, limit
            part[name] = segment
            room -= segment.nbytes
    if part or first:
        yield pack(part, head if first else None)


def _segments(tensor: Tensor, limit: int) -> Iterable[Tensor]:
    if tensor.nbytes <= limit:
        return (tensor,)
    flat, step = tensor.flatten(), max(1, limit // tensor.element_size())
    return (flat[at : at + step] for at in range(0, len(flat), step))


def joined(pieces: Iterable[bytes]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the header that were cut into these pieces."""
    found: dict[str, Tensor] = {}
    header: dict[str, Any] = {}
    filled: dict[str, int] = {}
    for number, data in enumerate(pieces):
        part, head = unpack(data)
        if number == 0:
            header = head
        for name, segment in part.items():
            shape = header.get("shapes", {}).get(name)
            if shape is None:
                found[name] = segment
                continue
            whole = found.setdefault(name, torch.empty(shape, dtype=segment.dtype))
            at = filled.get(name, 0)
            whole.view(-1)[at : at + segment.numel()] = segment
            filled[name] = at + segment.numel()
    header.pop("shapes", None)
    return found, header
