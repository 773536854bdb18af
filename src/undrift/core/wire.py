"""A client's work through bytes alone: requests and replies, without pickle.

What another process, machine or framework needs, and nothing more. Which method it is, with which settings, model and
training, is the experiment's: both sides know it before the first request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.client import Candidate, Work, down_kind, local_for, one_thread, work
from undrift.core.eager import Trainer
from undrift.core.packing import pack, unpack
from undrift.core.records import Message
from undrift.core.reduce import Reply
from undrift.core.stages import Uploads
from undrift.core.states import Kept, States
from undrift.core.vector import Buffers

HEADER = ("client", "round", "samples", "steps", "spent", "notes", "up")  # what an answer says beside its tensors
SPENT = ("gradients", "forwards", "head_gradients", "seconds")


class StateLost(Exception):
    """What a client kept since the round that the server accepted last is not here."""


@dataclass(frozen=True)
class Request:
    """One client's task. ``accepted`` is its last round that counted: what it holds of that round it keeps from now on.

    ``first``, the message of the survey, travels again only to whoever has not kept it.
    """

    kind: Work
    client: int
    round: int
    down: Message
    accepted: int = 0
    buffers: Buffers | None = None
    first: Message | None = None
    run: str = ""
    carried: Mapping[str, float] = field(default_factory=dict)  # by the stages that the upload will pass
    extra: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        tensors = {f"down.{name}": value for name, value in self.down.sent()[0].items()}
        for prefix, record in (("buffers", self.buffers), ("first", self.first)):
            if record is not None:
                tensors |= {f"{prefix}.{field.name}": value for field, value in record.tensors().items()}
        header = {
            "kind": self.kind, "client": self.client, "round": self.round, "accepted": self.accepted, "run": self.run,
            "given": isinstance(self.down, Candidate), "carried": dict(self.carried), "extra": dict(self.extra),
        }  # fmt: skip
        return pack(tensors, header)

    @classmethod
    def decode(cls, method: Method, data: bytes, first: Message | None = None) -> Request:
        """The request in these bytes; raises ``ValueError`` for anything else."""
        tensors, header = unpack(data)
        try:
            kind = header["kind"]
            if kind not in get_args(Work):
                raise ValueError(f"not a valid message: a client cannot be asked to {kind!r}")
            if _part(tensors, "first"):
                first = method.records()["ask"].of(_part(tensors, "first"))  # type: ignore[assignment]
            down: Any = down_kind(method, kind, header["given"]).of(_part(tensors, "down"), first)
            buffers = Buffers.of(_part(tensors, "buffers")) if _part(tensors, "buffers") else None
            client, round, accepted = (int(header[name]) for name in ("client", "round", "accepted"))
            carried = {str(name): float(value) for name, value in header.get("carried", {}).items()}
            run, extra = str(header["run"]), header["extra"]
            return cls(kind, client, round, down, accepted, buffers, first, run, carried, extra)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a valid message: {error}") from None


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    begin = prefix + "."
    return {name[len(begin) :]: value for name, value in tensors.items() if name.startswith(begin)}


def answer(
    request: Request,
    method: Method,
    trainer: Trainer,
    states: States,
    fresh: Kept,
    uploads: Uploads = Uploads(),  # noqa: B008
) -> Reply:
    """Do what a request asks for, where the client is. What it will keep is held in ``states``, and does not travel.

    ``fresh`` is what a client keeps before its first accepted upload; ``uploads`` what the experiment says of them.
    """
    states.commit([request.client], request.accepted)
    kept = states.load(request.client)
    if kept is None:
        if request.accepted and (fresh.tensors() or not method.shares_buffers):
            raise StateLost(f"the state of round {request.accepted} is not here")
        kept = fresh
    elif kept.round != request.accepted:
        raise StateLost(f"the state of round {request.accepted} is not here, but that of round {kept.round}")
    local = local_for(method, trainer, request.client, request.round, kept, request.buffers)
    with one_thread():
        stages = uploads.at(request.carried) if request.kind == "update" else ()
        reply = work(request.kind, method, request.down, kept, local, stages)
    if request.kind == "update":
        own = None if method.shares_buffers else reply.buffers
        states.hold(request.client, Kept(reply.state, own, request.round))  # type: ignore[arg-type]
    return reply


def take_apart(reply: Reply, state: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A client's answer as tensors (the upload, what it will keep) and a small header (the counters).

    ``state`` False: what the client keeps stays where it is. Bytes are counted by who receives them.
    """
    up, left_out = reply.up.sent()
    spent = {name: getattr(reply.spent, name) for name in SPENT}
    notes = {name: value for name, value in reply.notes.items() if math.isfinite(value)}  # JSON has no others
    numbers = (reply.client, reply.round, reply.samples, reply.steps)
    header = dict(zip(HEADER, (*numbers, spent, notes, left_out), strict=True))
    parts = {"state": reply.state if state else None, "buffers": reply.buffers}
    tensors = {f"up.{name}": value for name, value in up.items()} | {
        f"{prefix}.{field.name}": value
        for prefix, record in parts.items()
        if record is not None
        for field, value in record.items()
    }
    return tensors, header


def encode_reply(method: Method, reply: Reply) -> bytes:
    """A client's answer as bytes: without what it keeps to itself."""
    shared = reply if method.shares_buffers else replace(reply, buffers=None)
    return pack(*take_apart(shared, state=False))
