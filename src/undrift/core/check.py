"""What is refused: why a client's reply cannot count, in a sentence. It looks and says: it changes nothing, and nothing
that a client may send makes it raise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from undrift.core.cohort import Population
from undrift.core.records import Field, Message, Record, Upload
from undrift.core.reduce import Block, Reply, reach
from undrift.core.spent import Spent
from undrift.core.states import Kept
from undrift.core.vector import Buffers

REACH = 1e9  # how far beyond what it was sent a client's vectors may plausibly lie
PLAUSIBLE = 1e18  # no other number is larger: its square is still finite in single precision
REPEATS = 10**6  # passes over all of its samples that a client may take in a local step
MOST = 2**48  # no counter is larger: the sum of a cohort's fits into 64 bits
SLACK = 1.0  # seconds that clocks may be apart
NOTES, NAME = 32, 40  # notes of a client, and letters of the name of one

_NUMBERS = {int: torch.int64, float: torch.float64, bool: torch.bool}
_REAL = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64)
_QUICK = (torch.float32, torch.float64)  # the product of two vectors is quick
_SINGLE = (torch.float64, torch.int64)  # a single number may be one of these too: it is reduced in double precision


@dataclass(frozen=True)
class Rejected:
    """A client whose reply does not count, and why."""

    client: int
    reason: str


class Wanted(NamedTuple):
    """What a field of a record must be."""

    name: str
    called: str  # in a sentence
    types: tuple[torch.dtype, ...]  # the usual one first
    shape: tuple[int, ...] | None  # None: not known
    limit: float  # of the magnitude of its numbers


@dataclass(frozen=True)
class Expected:
    """What is known of the replies to an exchange before the first one arrives."""

    kind: type[Upload]
    round: int
    population: Population
    down: Message
    began: float = 0.0  # when the round did, on ``time.perf_counter``
    fresh: Kept | None = None  # what a client keeps at its start: the types and shapes of what it will keep
    travels: bool = True  # False: what clients keep stays where they are
    buffers: Buffers | None = None  # the statistics that come back with a reply have these types and shapes
    shared: bool = True  # are they the cohort's? They count as traffic then
    work: str = "update"
    patience: float = (
        0.0  # seconds of work that may be claimed however young the exchange is, as of an answer sent again
    )

    @cached_property
    def fields(self) -> tuple[Wanted, ...]:
        """What the fields of an upload must be."""
        return tuple(
            Wanted(spec.name, spec.name, self.types(spec), self.shape(spec), self.limit(spec))
            for spec in self.kind.schema()
        )

    @cached_property
    def state(self) -> tuple[Wanted, ...]:
        """What the fields of a client's state must be, where it has any."""
        return () if self.fresh is None else alike("state", self.fresh.state)

    @property
    def keeps(self) -> bool:
        """Do clients keep something afterwards?"""
        return self.work == "update"

    @property
    def seconds(self) -> float:
        """How long a client can have worked by now."""
        return 1.01 * max(time.perf_counter() - self.began, self.patience) + SLACK

    def shape(self, spec: Field) -> tuple[int, ...] | None:
        """The shape of a field of the upload; None: neither its type nor a namesake says it."""
        if spec.number is not None:
            return ()
        if spec.axes is not None:
            return tuple(self.population.layout.extent(axis) for axis in spec.axes)
        for record in (self.down, None if self.fresh is None else self.fresh.state):
            for there, value in () if record is None else record.items():
                if there.name == (spec.like or spec.name) and isinstance(value, Tensor):
                    return tuple(value.shape[1:] if there.travel == "each" else value.shape)
        return None

    def types(self, spec: Field) -> tuple[torch.dtype, ...]:
        """The types that a field of the upload may have, the usual one first."""
        if spec.number is not None:
            return (_NUMBERS[spec.number],)
        model = self.population.layout.dtype
        return _REAL if model is None else (model, *_SINGLE) if spec.axes == () else (model,)

    def limit(self, spec: Field) -> float:
        """The largest number that is plausible in a field of the upload."""
        if self.work == "evaluate":
            return float(np.finfo(np.float64).max)  # figures may have any size
        return PLAUSIBLE if spec.axes is not None and not set(spec.axes) & {"d", "body", "head"} else self.bound

    @cached_property
    def bound(self) -> float:
        """The largest plausible number in a vector: far beyond all that was sent."""
        sent = [value for _, value in self.down.items() if isinstance(value, Tensor) and value.is_floating_point()]
        return min(REACH * (1 + max((reach(value.nan_to_num(0, 0, 0)) for value in sent), default=0.0)), PLAUSIBLE)


def objection(reply: Reply, expected: Expected) -> str | None:
    """Why a reply cannot count, or None."""
    try:
        return None if _plain(reply, expected) else next(_objections(reply, expected), None)
    except Exception as error:  # a thing that is none of what it should be; even looking at it may go wrong
        return f"it cannot be read ({type(error).__name__})"


def _plain(reply: Reply, expected: Expected) -> bool:
    """Is it, at a glance, what was expected? Nearly all are, and a close look takes time with small clients."""
    client, samples, steps, spent, up = reply.client, reply.samples, reply.steps, reply.spent, reply.up
    population = expected.population
    if not (
        type(client) is type(reply.round) is type(samples) is type(steps) is int
        and reply.round == expected.round
        and samples == population.samples[client]
        and 0 <= steps < MOST
        and (population.steps is None or steps == population.steps[client])
        and reply.notes == {}
        and reply.buffers is None is (expected.buffers or None)
        and type(spent) is Spent
        and type(up) is expected.kind
        and type(up).derived is Upload.derived
    ):
        return False
    most, there, kept = min(samples * (steps + 1) * REPEATS, MOST), expected.fresh, reply.state
    return (
        type(spent.gradients) is type(spent.forwards) is type(spent.head_gradients) is int
        and type(spent.bytes_up) is type(spent.bytes_down) is int
        and type(spent.seconds) is float
        and 0 <= spent.gradients <= most
        and 0 <= spent.forwards <= most
        and 0 <= spent.head_gradients <= most
        and 0 <= spent.bytes_up <= MOST
        and 0 <= spent.bytes_down <= MOST
        and 0 <= spent.seconds <= expected.seconds
        and _short(up, expected.fields)
        and not up.doubt(samples, steps)
        and (
            kept is None
            or (
                expected.keeps and (there is None or (type(kept) is type(there.state) and _short(kept, expected.state)))
            )
        )
    )


def _short(record: Record, fields: Sequence[Wanted]) -> bool:
    """Are they vectors of the usual types, all shorter than their numbers may be large? It is quick to say."""
    for wanted in fields:
        value: Any = getattr(record, wanted.name)
        if type(value) is not Tensor or value.dtype is not wanted.types[0] or value.shape != wanted.shape:
            return False
        if value.ndim != 1 or value.dtype not in _QUICK:
            if next(_tensor(value, wanted), None) is not None:
                return False
        elif not 2 * math.sqrt(value.dot(value).item()) <= wanted.limit:  # twice: rounding is no matter
            return False
    return True


def sound(block: Block, expected: Expected) -> bool:
    """Do all replies of a block count? If not, they have to be looked at one by one."""
    return (
        bool((block.samples == expected.population.samples[block.clients]).all())
        and all(_far(block, spec, value) <= expected.limit(spec) for spec, value in block.up.items())
        and all(far <= PLAUSIBLE for far in block.kept.values())
        and objection(block.reply(0), expected) is None  # and in all the rest they are as the first
    )


def _far(block: Block, spec: Field, value: Tensor) -> float:
    """A bound on the largest magnitude in a field of the uploads: no number is larger than the norm of its row."""
    norms = block.norms.get(spec.name)
    return reach(value if norms is None else norms)


def _objections(reply: Reply, expected: Expected) -> Iterator[str]:
    if not _whole(reply.round) or reply.round != expected.round:
        yield f"it belongs to round {_said(reply.round)}, not {expected.round}"
    samples = int(expected.population.samples[reply.client])
    if not _whole(reply.samples) or reply.samples != samples:
        yield f"it claims {_said(reply.samples)} samples, and {samples} are registered"
    steps = expected.population.steps
    task = range(MOST) if steps is None else (int(steps[reply.client]),)
    if not _whole(reply.steps) or reply.steps not in task:
        yield f"it claims {_said(reply.steps)} local steps, and {task[-1]} were to be taken"
    yield from _spent(reply.spent, min(samples * (reply.steps + 1) * REPEATS, MOST), expected.seconds)
    yield from _notes(reply.notes)
    yield from _upload(reply.up, expected)
    yield from _derived(reply.up)
    if doubt := reply.up.doubt(samples, reply.steps):
        yield doubt
    yield from _state(reply.state, expected)
    yield from _buffers(reply.buffers, expected)


def _spent(spent: Any, most: int, seconds: float) -> Iterator[str]:
    if type(spent) is not Spent:
        yield f"what it spent is a {type(spent).__name__}"
    for name in ("gradients", "forwards", "head_gradients"):
        value = getattr(spent, name)
        if not _whole(value) or not 0 <= value <= most:
            yield f"it claims {_said(value)} {name}, which is not a number of samples from 0 to {most}"
    for name in ("bytes_up", "bytes_down"):
        value = getattr(spent, name)
        if not _whole(value) or not 0 <= value <= MOST:
            yield f"it claims {_said(value)} {name}"
    if not _number(spent.seconds) or not 0 <= spent.seconds <= seconds:
        yield f"it claims {_said(spent.seconds)} seconds of work, and there were at most {seconds:.3g}"


def _notes(notes: Any) -> Iterator[str]:
    if not isinstance(notes, Mapping) or len(notes) > NOTES:
        yield f"its notes are not up to {NOTES} numbers by name"
    for name, value in notes.items():
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= NAME:
            yield f"a note is called {_said(name)}"
        if not _number(value) or (abs(value) > PLAUSIBLE and abs(value) != math.inf):
            yield f"its note {name} is {_said(value)}"  # one that is not finite says nothing, and does no harm


def _upload(up: Any, expected: Expected) -> Iterator[str]:
    if type(up) is not expected.kind:
        yield f"it is a {type(up).__name__}, not a {expected.kind.__name__}"
    for wanted in expected.fields:
        yield from _tensor(getattr(up, wanted.name), wanted)


def _derived(up: Upload) -> Iterator[str]:
    """What follows from the rest of an upload must be what does follow, but for rounding."""
    again = up.derived()
    for spec, value in up.items() if again is not up else ():
        there = getattr(again, spec.name)
        if spec.axes == () and not torch.isclose(value.double(), there.double(), rtol=1e-3, atol=1e-30):
            yield f"{spec.name} is {float(value):.3g}, and {float(there):.3g} follows from the rest"


def _state(state: Any, expected: Expected) -> Iterator[str]:
    if state is None:
        return  # it is elsewhere, or there is none
    if not expected.keeps:
        yield "it comes with a state, and nothing was to be kept"
    if expected.fresh is not None:
        yield from _like("state", state, type(expected.fresh.state), expected.state)


def _buffers(buffers: Any, expected: Expected) -> Iterator[str]:
    like = expected.buffers
    if not like:
        if buffers is not None and (not isinstance(buffers, Buffers) or buffers):
            yield "it comes with batch-norm statistics, and none were to be sent"
        return
    if buffers is None:
        yield "its batch-norm statistics are missing"
    yield from _like("batch-norm statistics", buffers, type(like), alike("batch-norm statistics", like))
    counts, spans = buffers.counts, expected.population.layout.variances
    if counts.numel() and not 0 <= int(counts.min()) <= int(counts.max()) <= MOST:
        yield "the counts of its batch-norm statistics are not plausible"
    if any(float(buffers.floats[begin:end].min()) < 0 for begin, end in spans if begin < end):
        yield "a variance in its batch-norm statistics is negative"


def alike(what: str, like: Record) -> tuple[Wanted, ...]:
    """A record must have the types and shapes of another one."""
    found = []
    for spec, value in like.items():
        free = value.is_floating_point() and not reach(value) < math.inf  # NaN may mean something in it
        limit = math.inf if free else PLAUSIBLE
        found.append(Wanted(spec.name, f"its {what} {spec.name}", (value.dtype,), tuple(value.shape), limit))
    return tuple(found)


def _like(what: str, record: Any, kind: type[Record], fields: Sequence[Wanted]) -> Iterator[str]:
    """What is wrong with a record that must be of this kind."""
    if type(record) is not kind:
        yield f"its {what} is a {type(record).__name__}, not a {kind.__name__}"
    for wanted in fields:
        yield from _tensor(getattr(record, wanted.name), wanted)


def _tensor(value: Any, wanted: Wanted) -> Iterator[str]:
    name, types, shape, limit = wanted.called, wanted.types, wanted.shape, wanted.limit
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        yield f"{name} is not a tensor"
    if value.dtype not in types:
        yield f"{name} is {_type(value.dtype)}, not {_type(types[0])}"
    if shape is not None and tuple(value.shape) != shape:
        yield f"{name} has shape {tuple(value.shape)}, not {shape}"
    if value.is_floating_point() and limit < math.inf and not (far := reach(value)) <= limit:
        yield f"{name} is not finite" if not far < math.inf else f"{name} reaches {far:.3g}, which is not plausible"


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _said(value: Any) -> str:
    """A claim, cut short where it is long."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"about 2^{abs(value).bit_length()}"
    text = repr(value) if isinstance(value, str | int | float | np.number | None) else f"a {type(value).__name__}"
    return text if len(text) <= NAME else text[:NAME] + "..."


def _type(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
