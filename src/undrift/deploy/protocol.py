"""What coordinator and sites say to each other, as bytes. It knows no engine, no files and no policy.

A message is safetensors with a JSON header, as ``core.packing`` makes it. The header's ``kind`` says what it is:

    hello      run, experiment               -> who the site is, and what it is willing to tell of its data
    join       run, session, client, ...     -> the terms on which the site would work, to be compared
    survey, update, evaluate                 -> core.wire's requests and replies
    (any)                                    -> or ``failed``: of a kind that the other end can act on, and a sentence

Nothing is believed before it is checked: ``look`` bounds the header's length and depth, and the number, type and shape
of the tensors, before any of them is made; ``request`` lets in only what the method's own records have room for.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch

from undrift.core.algorithm import Method
from undrift.core.client import Work, down_kind
from undrift.core.federation import Model
from undrift.core.packing import nesting, pack
from undrift.core.records import Field, Message
from undrift.core.reduce import Reply
from undrift.core.vector import Buffers, Layout
from undrift.core.wire import Request, take_apart

PROTOCOL = 1
HEADER = 1 << 20  # bytes of a header
TENSORS = 64  # in a message
AXES = 4  # of a tensor
DEPTH = 8  # of a header
TEXT = 500  # characters of a name or a sentence
LONG = 1e9  # seconds
BESIDE = ("protocol", "kind", "seconds", "journal")  # what a reply's header says beside what core.wire does

Trouble = Literal["refused", "waiting", "unknown", "stale", "lost", "survey", "bad", "error"]

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_NUMBERS = {int: "I64", float: "F64", bool: "BOOL"}


class Refusal(Exception):
    """Why there is no answer: of a kind that the coordinator can act on, and a sentence that begins with a verb."""

    def __init__(self, kind: Trouble, sentence: str) -> None:
        super().__init__(sentence)
        self.kind: Trouble = kind


@dataclass(frozen=True)
class Kind:
    """What there is to learn, the same at all sites. ``classes`` is None where numbers are predicted."""

    shape: tuple[int, ...]  # of an input
    classes: int | None
    outputs: int
    class_names: tuple[str, ...] = ()
    name: ClassVar[str] = "the sites' data"

    def plain(self) -> dict[str, Any]:
        return {**vars(self), "shape": list(self.shape), "class_names": list(self.class_names)}

    @staticmethod
    def of(values: Mapping[str, Any]) -> Kind:
        """The inverse of ``plain``, for values that somebody sent."""
        shape, classes, outputs = values.get("shape"), values.get("classes"), values.get("outputs")
        names = values.get("class_names", [])
        counts = [outputs, *(shape if isinstance(shape, list) else [None]), *([] if classes is None else [classes])]
        if not all(type(n) is int and 0 < n < 2**24 for n in counts) or len(counts) > 2 + AXES:
            raise _bad("it does not say of what shape the samples are")
        if not isinstance(names, list) or len(names) > 10_000 or not all(isinstance(n, str) for n in names):
            raise _bad("its names of classes are none")
        return Kind(tuple(shape or ()), classes, int(outputs or 0), tuple(name[:TEXT] for name in names))


@dataclass(frozen=True)
class Spec:
    """A tensor in a message, before it is one."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Letter:
    """A message that was looked at: its header, and where its tensors are."""

    header: dict[str, Any]
    tensors: dict[str, Spec]
    data: bytes

    @property
    def kind(self) -> str:
        return self.text("kind")

    def text(self, name: str) -> str:
        value = self.header.get(name)
        if not isinstance(value, str) or not value or len(value) > TEXT:
            raise _bad(f"{name!r} is not a text of at most {TEXT} characters")
        return value

    def number(self, name: str, most: int = 2**53, inside: str | None = None) -> int:
        value = (self.table(inside) if inside else self.header).get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise _bad(f"{name!r} is not a whole number from 0 to {most}")
        return value

    def table(self, name: str) -> dict[str, Any]:
        value = self.header.get(name)
        if not isinstance(value, dict):
            raise _bad(f"{name!r} is not a table")
        return value

    def identity(self) -> str:
        """A hash of the task: of all that its answer depends on, not of when or how often it was sent."""
        digest = hashlib.sha256(json.dumps({**self.header, "extra": None}, sort_keys=True).encode())
        for name, spec in sorted(self.tensors.items()):
            if not name.startswith("first."):  # which travels again only to whoever has lost it
                digest.update(f"{name} {spec.dtype} {spec.shape} ".encode())
                digest.update(memoryview(self.data)[spec.begin : spec.end])
        return digest.hexdigest()


def look(data: bytes) -> Letter:
    """The header and the outline of a message; ``Refusal`` for whatever is none."""
    if len(data) < 8:
        raise _bad("it is too short")
    length = int.from_bytes(data[:8], "little")
    if length > min(HEADER, len(data) - 8):
        raise _bad(f"its header has {length} bytes; at most {HEADER} are allowed")
    outline = _json(data[8 : 8 + length])
    metadata = outline.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not isinstance(metadata.get("undrift"), str):
        raise _bad("it has no header of undrift")
    if len(outline) > TENSORS:
        raise _bad(f"it has {len(outline)} tensors; at most {TENSORS} are allowed")
    at = 8 + length
    tensors = {name: _spec(name, value, at, len(data)) for name, value in outline.items()}
    if sum(spec.end - spec.begin for spec in tensors.values()) != len(data) - at:
        raise _bad("its tensors do not fill it")
    return Letter(_json(metadata["undrift"].encode()), tensors, data)


def _json(text: bytes) -> dict[str, Any]:
    def refused(word: str) -> Any:
        raise ValueError(f"{word} is no number of JSON")

    if nesting(text) > 2 * DEPTH:  # brackets in texts count too; what is deeper than that is not even read
        raise _bad("its header is too deep")
    try:
        found = json.loads(text, parse_constant=refused)
    except (ValueError, RecursionError):
        raise _bad("its header is not JSON") from None
    if not isinstance(found, dict) or _depth(found) > DEPTH:
        raise _bad("its header is no table, or too deep a one")
    return found


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _spec(name: str, value: Any, at: int, length: int) -> Spec:
    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        sound = (
            len(name) <= TEXT
            and dtype in _BYTES
            and len(shape) <= AXES
            and all(type(n) is int and 0 <= n < 2**40 for n in (*shape, begin, end))
            and end - begin == _BYTES[dtype] * math.prod(shape)
            and at + end <= length
        )
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound:
        raise _bad(f"its tensor {name[:TEXT]!r} is none")
    return Spec(dtype, tuple(shape), at + begin, at + end)


def _bad(why: str) -> Refusal:
    return Refusal("bad", f"cannot read the message: {why}")


# --- hello and join, and what is answered to them ---------------------------------------------------------------------


def note(kind: str, **header: Any) -> bytes:
    """A message without tensors."""
    return pack({}, {"protocol": PROTOCOL, "kind": kind, **header})


def failed(refusal: Refusal) -> bytes:
    return note("failed", trouble=refusal.kind, why=str(refusal)[:TEXT])


def opened(data: bytes) -> Letter:
    """An answer that was looked at; raises the ``Refusal`` that it may be."""
    letter = look(data)
    if letter.header.get("kind") == "failed":
        trouble = letter.header.get("trouble")
        known: Any = trouble if trouble in get_args(Trouble) else "error"
        raise Refusal(known, letter.text("why"))
    return letter


# --- what both sides must agree on ------------------------------------------------------------------------------------


def terms(method: Method, model: Model) -> dict[str, str]:
    """What a run depends on at either end, part by part; who differs in one of them cannot take part."""
    start, buffers = model.start()
    layout = model.layout
    schemas = {name: [str(f) for f in kind.schema()] for name, kind in method.records().items()}
    return {
        "protocol": str(PROTOCOL),
        "version of torch": torch.__version__,
        "version of undrift": code(),
        f"file of {type(method).name()}": file_of(method),
        "settings": _sha(method.values(), model.training.values(), model.seed),
        "model": _sha(layout.names, [list(shape) for shape in layout.shapes], schemas),
        "initial model": hashlib.sha256(start.numpy().tobytes() + buffers.floats.numpy().tobytes()).hexdigest(),
    }


def file_of(method: object) -> str:
    """The hash of the installed file of a method, or of a stage: what a site's policy goes by."""
    kind = method if isinstance(method, type) else type(method)
    return hashlib.sha256(Path(inspect.getfile(kind)).read_bytes()).hexdigest()


@cache
def code() -> str:
    """A hash of what a client runs besides the method's own file."""
    package = Path(__file__).parents[1]
    files = [*sorted((package / "core").rglob("*.py")), *sorted((package / "algorithms" / "parts").rglob("*.py"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _sha(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, default=list).encode()).hexdigest()


# --- work -------------------------------------------------------------------------------------------------------------


def request(letter: Letter, method: Method, layout: Layout, first: Message | None) -> Request:
    """The task in a message, once it has room for nothing but what the method's records hold."""
    kind = letter.kind
    if kind not in get_args(Work):
        raise _bad(f"a site cannot be asked to {kind!r}")
    work: Any = kind
    down = down_kind(method, work, letter.header.get("given") is True)
    fields = {f"down.{f.name}": f for f in down.schema() if f.travel != "had"}
    again = {f"first.{f.name}": f for f in down_kind(method, "survey").schema()} if method.exchanges == 2 else {}
    statistics = {f"buffers.{f.name}": f for f in Buffers.schema()}
    for name, spec in letter.tensors.items():
        field = fields.get(name) or again.get(name) or statistics.get(name)
        if field is None:
            raise _bad(f"{type(method).name()} has no {name!r}")
        _fits(name, field, spec, layout)
    missing = [name for name in fields if name not in letter.tensors]
    if missing:
        raise _bad(f"{missing[0]!r} is missing")
    if kind == "update" and any(f.travel == "had" for f in down.schema()):
        held = first is not None or any(name.startswith("first.") for name in letter.tensors)
        if not held:
            raise Refusal("survey", "has not kept the message of the first exchange")
    for name in ("client", "round", "accepted"):
        letter.number(name)
    letter.table("extra")
    try:
        return Request.decode(method, letter.data, first)
    except (ValueError, AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise _bad(str(error)[:TEXT]) from None


def _fits(name: str, field: Field, spec: Spec, layout: Layout) -> None:
    if field.number is not None and (spec.shape != () or spec.dtype != _NUMBERS[field.number]):
        raise _bad(f"{name!r} is not a single number")
    if field.axes is not None:
        expected = tuple(layout.extent(axis) for axis in field.axes)
        if spec.shape != expected:
            raise _bad(f"{name!r} has shape {spec.shape}, not {expected}")


def reply(method: Method, answer: Reply, seconds: Mapping[str, float], journal: str = "") -> bytes:
    """A client's answer, without what it keeps to itself.

    ``seconds`` is what the site spent on what, ``journal`` the last line of its log: kept elsewhere, it cannot be cut.
    """
    tensors, header = take_apart(answer, state=False)
    if not method.shares_buffers:
        tensors = {name: value for name, value in tensors.items() if not name.startswith("buffers.")}
    return pack(tensors, header | dict(zip(BESIDE, (PROTOCOL, "reply", dict(seconds), journal), strict=True)))


def spans(letter: Letter) -> tuple[float, float]:
    """What a site says of its time, in seconds: how long it waited, and how long it worked."""
    told = letter.header.get("seconds")
    waited, worked = (told.get(name) if isinstance(told, dict) else None for name in ("waited", "worked"))
    return _seconds(waited), _seconds(worked)


def _seconds(value: Any) -> float:
    return min(max(float(value), 0.0), LONG) if type(value) in (int, float) and value < LONG else 0.0
