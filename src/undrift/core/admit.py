"""``Door``: the one way in which what another process or another machine sent becomes a reply.

Who sent it is what the transport says, never what the message says. Length and nesting are looked at before anything is
read, types and shapes before any memory is taken for them, and every number before it counts. Whatever is wrong with a
message, the answer is a rejection with a reason: no exception leaves the door.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor

from undrift.core.check import Expected, Rejected, objection
from undrift.core.client import bytes_up
from undrift.core.packing import nesting, unpack
from undrift.core.reduce import Reply
from undrift.core.spent import Spent
from undrift.core.vector import Buffers
from undrift.core.wire import HEADER, SPENT

DEPTH = 6  # brackets within brackets in a header; an honest one has 4
SPACE = 1 << 14  # bytes of a header beside those of its tensors and classes
PER_TENSOR = 1 << 8  # and those


class _Bad(Exception):
    """A message that is not admitted, and why."""


class Door:
    """The door for one exchange."""

    def __init__(self, expected: Expected, beside: Collection[str] = ()) -> None:
        """``beside``: what else the headers say, which is for others to look at."""
        self._expected, self._beside = expected, set(beside)
        fresh = expected.fresh if expected.travels and expected.keeps else None
        self._state = None if fresh is None else fresh.state
        parts = {"up": expected.kind, "state": self._state, "buffers": expected.buffers or None}
        self._names = {f"{part}.{spec.name}" for part, record in parts.items() if record for spec in record.schema()}
        self.longest_header = SPACE + PER_TENSOR * len(self._names) + expected.population.layout.classes
        self.longest = 8 + self.longest_header + self._room()

    def admit(self, client: int, data: bytes) -> Reply | Rejected:
        """The reply in the bytes that a client sent, or why there is none."""
        try:
            tensors, header = self._read(data)
        except Exception as error:
            return Rejected(client, _reason(error))
        return self.admit_parts(client, tensors, header)

    def admit_parts(self, client: int, tensors: Mapping[str, Tensor], header: Any) -> Reply | Rejected:
        """The same for a message that has been taken apart already, as it is where memory is shared."""
        try:
            reply = self._put_together(client, tensors, header)
            if reason := objection(reply, self._expected):
                return Rejected(client, reason)
            reply.spent.bytes_up = bytes_up(reply.up, reply.buffers if self._expected.shared else None)
            return reply
        except Exception as error:
            return Rejected(client, _reason(error))

    def _room(self) -> int:
        """The bytes that the tensors of an honest reply may take."""
        expected, d = self._expected, self._expected.population.layout.size
        shapes = [expected.shape(spec) for spec in expected.kind.schema()]
        numbers = sum(64 * (d + 1024) if shape is None else math.prod(shape) for shape in shapes)
        along = [record for record in (self._state, expected.buffers) if record is not None]
        return 8 * numbers + sum(int(value.nbytes) for record in along for _, value in record.items())

    def _read(self, data: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if len(data) > self.longest:
            raise _Bad(f"it has {len(data):,} bytes, and {self.longest:,} are the most that are plausible")
        length = int.from_bytes(data[:8], "little")
        if length > self.longest_header:
            raise _Bad(f"its header has {length:,} bytes, and {self.longest_header:,} are the most that are plausible")
        if nesting(data[8 : 8 + length]) > DEPTH:
            raise _Bad("its header is nested too deeply")
        return unpack(data)

    def _put_together(self, client: int, tensors: Mapping[str, Tensor], header: Any) -> Reply:
        if not isinstance(header, dict) or header.keys() - self._beside != set(HEADER):
            raise _Bad(f"its header does not say {', '.join(HEADER)}, and nothing else")
        if type(header["client"]) is not int or header["client"] != client:
            raise _Bad("it speaks in another client's name")
        for name in sorted(tensors.keys() ^ self._names):
            raise _Bad(f"{name[:40]!r} is {'missing' if name in self._names else 'not a part of it'}")
        spent = header["spent"]
        if not isinstance(spent, dict) or spent.keys() != set(SPENT):
            raise _Bad(f"what it spent is not told as {', '.join(SPENT)}")
        state = None if self._state is None else type(self._state)(**_part(tensors, "state"))
        return Reply(
            client=client,
            round=header["round"],
            up=self._expected.kind(**self._whole(_part(tensors, "up"), header["up"])),
            state=state,
            samples=header["samples"],
            steps=header["steps"],
            spent=Spent(**spent),
            buffers=Buffers(**_part(tensors, "buffers")) if self._expected.buffers else None,
            notes=header["notes"],
        )

    def _whole(self, sent: dict[str, Tensor], left_out: Any) -> dict[str, Tensor]:
        """The upload with the rows of classes that were left out, once it is certain that they take little memory."""
        kind, classes = self._expected.kind, self._expected.population.layout.classes
        if left_out == {}:
            return sent
        held = left_out["held"] if isinstance(left_out, dict) and left_out.keys() == {"held"} else None
        if not kind.by_class() or not isinstance(held, str) or len(held) != classes or set(held) - {"0", "1"}:
            raise _Bad(f"it does not say for each of {classes} classes whether it was held")
        for spec in kind.schema():
            if spec.name in kind.by_class():
                shape = (held.count("1"), *(self._expected.shape(spec) or (0,))[1:])
                if tuple(sent[spec.name].shape) != shape:
                    raise _Bad(f"{spec.name} has shape {tuple(sent[spec.name].shape)}, not {shape}")
        return kind.received(sent, left_out)


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix + "."): value for name, value in tensors.items() if name.startswith(prefix + ".")}


def _reason(error: Exception) -> str:
    """Why a message could not be read, without more of the message than needs be."""
    if isinstance(error, _Bad):
        return str(error)
    text = " ".join(str(error).split())[:120]
    return text if text.startswith("not a valid message") else f"it cannot be read ({type(error).__name__})"
