"""Tensors and a small header as bytes, and back: safetensors and JSON. It knows neither records nor clients."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load
from torch import Tensor


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
        header = json.loads(metadata.get("undrift", "{}"))
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a valid message: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("not a valid message: its header has no names")
    return tensors, header


def nesting(text: bytes) -> int:
    """How deeply brackets are nested in a text, at most, before it is read; those in strings count too."""
    depth = most = 0
    for bracket in re.findall(rb"[\[{\]}]", text):
        depth += 1 if bracket in b"[{" else -1
        most = max(most, depth)
    return most


@functools.lru_cache(maxsize=1024)
def packed_size(parts: tuple[tuple[str, str, tuple[int, ...]], ...], classes: int) -> int:
    """The length of what ``pack`` makes of tensors of these names, types and shapes, without any."""
    tensors = {name: _empty(getattr(torch, dtype[6:]), shape) for name, dtype, shape in parts}
    return len(pack(tensors, {"held": "0" * classes} if classes else None))


def _empty(kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """A tensor of this size; types that cannot travel, and are refused elsewhere, as plain bytes."""
    travels = not kind.is_complex and kind != torch.bfloat16 and not (kind.is_floating_point and kind.itemsize == 1)
    return torch.empty(shape, dtype=kind) if travels else torch.empty((*shape, kind.itemsize), dtype=torch.uint8)
