"""Messages that no honest client sends: honest ones, changed at random, in their bytes or in what they say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

Tensors = dict[str, Tensor]
Draw = np.random.Generator

TYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64,
]  # fmt: skip
NUMBERS = [0, 1, -1, 2**31, 2**63, 2**64, 10**30, -(10**30), 10**400, 1e9, 1e30, 1e308, -1.0, 0.5]
OTHERS = [
    True,
    False,
    None,
    float("nan"),
    float("inf"),
    -float("inf"),
    "",
    "x" * 5000,
    "1",
    [],
    {},
    [[]],
    {"a": {"b": 1}},
]
LARGE = [1e-45, 1e-30, 1e3, 1e6, 1e9, 1e12, 1e18, 1e25, 1e30, 3e38]


def message(tensors: Tensors, header: Any) -> bytes:
    """What an honest sender would make of these, were they allowed."""
    return save({name: t.contiguous().clone() for name, t in tensors.items()}, metadata={"undrift": json.dumps(header)})


def mutated(draw: Draw, tensors: Tensors, header: dict[str, Any], data: bytes) -> bytes:
    """One message that is no longer the honest one, most of the time."""
    if draw.random() < 0.25:
        return _pick(draw, BYTES)(draw, data)
    tensors, header = dict(tensors), json.loads(json.dumps(header))
    try:
        for _ in range(int(draw.integers(1, 3))):
            if draw.random() < 0.55 and tensors:
                _pick(draw, PARTS)(draw, tensors)
            else:
                _pick(draw, SAYINGS)(draw, header)
        return message(tensors, header)
    except (ValueError, RuntimeError):  # what cannot even be said
        return _pick(draw, BYTES)(draw, data)


def _pick(draw: Draw, choices: Any) -> Any:
    return choices[int(draw.integers(len(choices)))]


# --- bytes ------------------------------------------------------------------------------------------------------------


def _flip(draw: Draw, data: bytes) -> bytes:
    found = bytearray(data)
    header = int.from_bytes(data[:8], "little") + 8
    for _ in range(int(draw.integers(1, 9))):
        end = header if draw.random() < 0.5 else len(found)
        found[int(draw.integers(end))] ^= 1 << int(draw.integers(8))
    return bytes(found)


def _cut(draw: Draw, data: bytes) -> bytes:
    return data[: int(draw.integers(len(data)))]


def _longer(draw: Draw, data: bytes) -> bytes:
    return data + draw.bytes(int(draw.integers(1, 5000)))


def _spliced(draw: Draw, data: bytes) -> bytes:
    a, b, c = sorted(int(draw.integers(len(data))) for _ in range(3))
    return data[:b] + data[a:c] + data[b:]


def _noise(draw: Draw, data: bytes) -> bytes:
    return draw.bytes(int(draw.integers(200)))


def _claimed(draw: Draw, data: bytes) -> bytes:
    return int(draw.integers(2**63)).to_bytes(8, "little") + data[8:]


def _deep(draw: Draw, data: bytes) -> bytes:
    depth = int(draw.integers(3, 3000))
    text = b'{"__metadata__":{"undrift":' + b"[" * depth + b"]" * depth + b"}}"
    return len(text).to_bytes(8, "little") + text


def _digits(draw: Draw, data: bytes) -> bytes:
    """A number in the header gets more digits."""
    at = [i for i, byte in enumerate(data[: 8 + int.from_bytes(data[:8], "little")]) if i > 8 and chr(byte).isdigit()]
    place = _pick(draw, at)
    more = b"9" * int(draw.integers(1, 30))
    header = data[8:place] + more + data[place : 8 + int.from_bytes(data[:8], "little")]
    return len(header).to_bytes(8, "little") + header + data[8 + int.from_bytes(data[:8], "little") :]


BYTES: list[Callable[[Draw, bytes], bytes]] = [_flip, _flip, _cut, _longer, _spliced, _noise, _claimed, _deep, _digits]


# --- tensors ----------------------------------------------------------------------------------------------------------


def _typed(draw: Draw, tensors: Tensors) -> None:
    name = _pick(draw, list(tensors))
    value = tensors[name].real if tensors[name].is_complex() else tensors[name]
    tensors[name] = value.to(_pick(draw, TYPES))


def _shaped(draw: Draw, tensors: Tensors) -> None:
    name = _pick(draw, list(tensors))
    value = tensors[name]
    flat = value.reshape(-1)
    if draw.random() < 0.5:
        tensors[name] = flat.new_zeros(_pick(draw, [(), (0, 2**33), (2**20, 0), (7, 7), (1, 1), (3, 1), (3, 2**12)]))
    else:
        others = [flat[:1], flat[:0], flat[:-1], flat.repeat(2), value.unsqueeze(0), value.reshape(-1, 1)]
        tensors[name] = _pick(draw, others)


def _valued(draw: Draw, tensors: Tensors) -> None:
    name = _pick(draw, list(tensors))
    value = tensors[name].clone()
    if not value.numel():
        return
    what = int(draw.integers(6))
    flat = value.view(-1)
    place = int(draw.integers(len(flat)))
    if what == 0:
        flat[place] = float(_pick(draw, LARGE)) if value.is_floating_point() else 2**62
    elif what == 1 and value.is_floating_point():
        flat[place] = _pick(draw, [float("nan"), float("inf"), -float("inf")])
    elif what == 2:
        value = value * (_pick(draw, LARGE) if value.is_floating_point() else 2**40)
    elif what == 3:
        value = -value
    elif what == 4:
        value = torch.zeros_like(value)
    else:
        value = torch.full_like(value, _pick(draw, LARGE) if value.is_floating_point() else -1)
    tensors[name] = value


def _dropped(draw: Draw, tensors: Tensors) -> None:
    del tensors[_pick(draw, list(tensors))]


def _added(draw: Draw, tensors: Tensors) -> None:
    tensors[_pick(draw, ["up.more", "state.x", "buffers.floats", "buffers.counts", "x", "", "up."])] = torch.zeros(3)


def _swapped(draw: Draw, tensors: Tensors) -> None:
    a, b = _pick(draw, list(tensors)), _pick(draw, list(tensors))
    tensors[a], tensors[b] = tensors[b], tensors[a]


PARTS: list[Callable[[Draw, Tensors], None]] = [
    _typed, _shaped, _valued, _valued, _valued, _dropped, _added, _swapped,
]  # fmt: skip


# --- the header -------------------------------------------------------------------------------------------------------


def _other(draw: Draw) -> Any:
    return _pick(draw, NUMBERS if draw.random() < 0.6 else OTHERS)


def _said(draw: Draw, header: dict[str, Any]) -> None:
    header[_pick(draw, ["client", "round", "samples", "steps", "spent", "notes", "up"])] = _other(draw)


def _unsaid(draw: Draw, header: dict[str, Any]) -> None:
    header.pop(_pick(draw, ["client", "round", "samples", "steps", "spent", "notes", "up"]), None)


def _more(draw: Draw, header: dict[str, Any]) -> None:
    header[_pick(draw, ["state", "kind", "x" * 300])] = _other(draw)


def _spent(draw: Draw, header: dict[str, Any]) -> None:
    if isinstance(header.get("spent"), dict):
        header["spent"][_pick(draw, ["gradients", "forwards", "head_gradients", "seconds", "bytes_up"])] = _other(draw)


def _noted(draw: Draw, header: dict[str, Any]) -> None:
    if isinstance(header.get("notes"), dict):
        names = ["xi", "mu", "clipped", "clip bound", "", "x" * 3000, "a\nb", "{[(", "server_lr"]
        for _ in range(int(draw.integers(1, 60))):
            header["notes"][_pick(draw, names) + _pick(draw, ["", str(int(draw.integers(99)))])] = _other(draw)


def _held(draw: Draw, header: dict[str, Any]) -> None:
    masks = ["", "0", "1" * 3, "0" * 3, "1" * 4, "2xy", "1" * 100_000, 7, None, ["1", "0", "1"], {"1": 1}, "110", "011"]
    header["up"] = {"held": _pick(draw, masks)}


def _posing(draw: Draw, header: dict[str, Any]) -> None:
    header["client"] = _pick(draw, [0, 1, 2, 3, 4, 5, 6, 99, -1, "0", 0.0, 1.0, True, False])


SAYINGS: list[Callable[[Draw, dict[str, Any]], None]] = [_said, _unsaid, _more, _spent, _spent, _noted, _held, _posing]
