"""A client's work in one exchange, in process or from bytes alone.

``work`` is the one place where ``client_update`` is called. ``Request`` and ``answer`` carry the same call through
bytes (safetensors and a JSON header, no pickle): what another process, machine or framework needs, and nothing more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.cost import Spent
from undrift.core.eager import EagerLocal, Trainer
from undrift.core.errors import InvalidInput
from undrift.core.records import Message, pack, unpack
from undrift.core.reduce import Reply
from undrift.core.states import Kept
from undrift.core.vector import Buffers


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Client training always runs on one intra-op thread, so that its bits do not depend on the machine's cores."""
    threads = torch.get_num_threads()
    state = torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def work(method: Method, down: Message, kept: Kept, local: EagerLocal, survey: bool = False) -> Reply:
    """Run a client's half of an exchange."""
    began = time.perf_counter()
    with torch.no_grad(), _explained(local.client):
        if survey:
            up, state = method.survey(down, kept.state, local), None
        else:
            up, state = method.client_update(down, kept.state, local)
            state = state.tensors()
    up = up.tensors()
    local.spent.seconds = time.perf_counter() - began
    local.spent.bytes_up = up.nbytes()
    buffers = local.buffers()
    if buffers is not None and not survey and method.shares_buffers:
        local.spent.bytes_up += buffers.nbytes()
    return Reply(local.client, local.round, up, state, local.n, local.steps, local.spent, buffers, local.notes)


@contextlib.contextmanager
def _explained(client: int) -> Iterator[None]:
    """Say in a sentence what PyTorch says of a batch that batch norm cannot take."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InvalidInput(
            f"client {client}: its samples end in a batch of one sample, on which batch norm cannot train: "
            "choose another batch_size, or a model with GroupNorm"
        ) from error


# --- the same through bytes -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One client's task as bytes: which method with which settings, the message, and what the client keeps."""

    method: str
    settings: dict[str, Any]
    client: int
    round: int
    seed: int
    training: dict[str, Any]
    down: bytes
    kept: bytes
    survey: bool = False
    first: bytes = b""  # the message of the survey, in the second exchange
    buffers: bytes = b""

    def encode(self) -> bytes:
        header = {k: v for k, v in asdict(self).items() if not isinstance(v, bytes)}
        blobs = {
            k: torch.frombuffer(bytearray(v), dtype=torch.uint8)
            for k, v in asdict(self).items()
            if isinstance(v, bytes) and v
        }
        return pack(blobs, header)

    @classmethod
    def decode(cls, data: bytes) -> Request:
        blobs, header = unpack(data)
        content: dict[str, Any] = {"down": b"", "kept": b""} | {k: v.numpy().tobytes() for k, v in blobs.items()}
        return cls(**header, **content)


def take_apart(reply: Reply) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A client's answer as tensors (the upload, what it will keep) and a small header (the counters)."""
    up, up_header = reply.up.sent()
    header = {
        "client": reply.client, "round": reply.round, "samples": reply.samples, "steps": reply.steps,
        "spent": asdict(reply.spent), "notes": reply.notes, "up": up_header,
    }  # fmt: skip
    parts = {"state": reply.state, "buffers": reply.buffers}
    tensors = {f"up.{name}": value for name, value in up.items()} | {
        f"{prefix}.{field.name}": value
        for prefix, record in parts.items()
        if record is not None
        for field, value in record.items()
    }
    return tensors, header


def put_together(
    method: Method, tensors: Mapping[str, Tensor], header: Mapping[str, Any], survey: bool = False
) -> Reply:
    """The inverse of ``take_apart``."""
    kinds = method.records()

    def part(prefix: str, kind: Any, left_out: Mapping[str, Any] = MappingProxyType({})) -> Any:
        sent = {field.name: tensors[f"{prefix}.{field.name}"] for field in kind.schema()}
        return kind(**kind.received(sent, left_out))

    return Reply(
        client=header["client"],
        round=header["round"],
        up=part("up", kinds["survey" if survey else "up"], header["up"]),
        state=None if survey else part("state", kinds["client"]),
        samples=header["samples"],
        steps=header["steps"],
        spent=Spent(**header["spent"]),
        buffers=part("buffers", Buffers) if "buffers.floats" in tensors else None,
        notes=header["notes"],
    )


def encode_reply(reply: Reply) -> bytes:
    """A client's answer as bytes."""
    return pack(*take_apart(reply))


def decode_reply(method: Method, data: bytes, survey: bool = False) -> Reply:
    """The answer in these bytes."""
    return put_together(method, *unpack(data), survey=survey)


def answer(data: bytes, methods: Any, trainer: Trainer, rows: Tensor) -> bytes:
    """Do the work that a request asks for. ``methods`` maps names to algorithm classes."""
    request = Request.decode(data)
    method = methods[request.method].create(**request.settings)
    kinds = method.records()
    first = kinds["ask"].decode(request.first) if request.first else None
    down = kinds["ask" if request.survey else "down"].decode(request.down, had=first)
    kept = Kept.decode(kinds["client"], request.kept)
    buffers = Buffers.decode(request.buffers) if request.buffers else kept.buffers
    local = trainer.local(request.client, request.round, rows, buffers)
    with one_thread():
        return encode_reply(work(method, down, kept, local, request.survey))
