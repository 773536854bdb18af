"""Does a method keep the promises that all methods here keep? The questions of the conformance table, put to any.

Each question is a function that returns nothing where the answer is yes, a remark where it is yes with a reservation,
and raises ``Broken`` with a sentence where it is no. Answers are values; who shows them is not known here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from undrift.core.admit import Door
from undrift.core.algorithm import Method
from undrift.core.check import Rejected
from undrift.core.eager import Trainer
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.loop import Loop, Snapshot
from undrift.core.records import Record
from undrift.core.reduce import Reply
from undrift.core.runtime import Runtime, Task
from undrift.core.states import Kept, Memory
from undrift.core.vector import Buffers
from undrift.core.wire import Request, answer, encode_reply
from undrift.runtimes.serial import Serial
from undrift.studies import problem

ROUNDS, COHORT = 3, 4
LEARN = 8  # rounds in which the loss has to fall
CLOSE = 1e-5  # relative, of the batched runtime


class Broken(Exception):
    """A promise that does not hold, as a sentence."""


@dataclass(frozen=True)
class Answer:
    """What came of one question."""

    question: str
    holds: bool
    remark: str = ""
    details: str = ""  # where the method itself failed


@dataclass(frozen=True)
class Conformed:
    """All answers of a method."""

    method: str
    answers: tuple[Answer, ...]

    @property
    def holds(self) -> bool:
        return all(answer.holds for answer in self.answers)


def conform(kind: type[Any], **settings: Any) -> Iterator[Answer]:
    """The answers of a method's class, one by one."""
    case = Case(kind, settings)
    for question, ask in QUESTIONS.items():
        try:
            yield Answer(question, True, ask(case) or "")
        except Broken as broken:
            yield Answer(question, False, str(broken))
        except InvalidInput as refused:
            yield Answer(question, False, str(refused))
        except Exception as error:
            last = "".join(getattr(error, "__notes__", [])[:1])
            text = f"{type(error).__name__}: {error}" + (f" ({last.splitlines()[0]})" if last else "")
            yield Answer(question, False, text, traceback.format_exc())


class Case:
    """A method with its settings, on the small problem."""

    def __init__(self, kind: type[Any], settings: dict[str, Any]) -> None:
        self.kind, self.settings = kind, settings

    def method(self) -> Method:
        made: Method = self.kind.create(**self.settings)
        return made

    def federation(self) -> Federation:
        here = problem.federation()
        return here.pooled() if self.method().pools_data else here

    def loop(self, runtime: Callable[[Federation], Runtime] = Serial) -> Loop:
        here = self.federation()
        return Loop(here, self.method(), runtime(here), min(COHORT, here.population.size))

    def play(self, rounds: int = ROUNDS, runtime: Callable[[Federation], Runtime] = Serial) -> list[Record]:
        """What the server holds after each round."""
        loop = self.loop(runtime)
        try:
            snapshot, found = loop.start(), []
            for _ in range(rounds):
                snapshot = loop.play(snapshot).snapshot
                found.append(snapshot.server)
            return found
        finally:
            loop.runtime.close()

    @cached_property
    def serial(self) -> list[Record]:
        return self.play()


def _compare(mine: list[Record], theirs: list[Record], what: str, tolerance: float = 0.0) -> None:
    for t, (one, other) in enumerate(zip(mine, theirs, strict=True), start=1):
        for (field, a), (_, b) in zip(one.tensors().items(), other.tensors().items(), strict=True):
            close = torch.allclose(a.double(), b.double(), rtol=tolerance, atol=tolerance, equal_nan=True)
            if not close:
                gap = float((a.double() - b.double()).abs().max())
                raise Broken(f"{what}: after round {t} the server's {field.name} differs by up to {gap:.2g}")


# --- the questions ----------------------------------------------------------------------------------------------------


def _learns(case: Case) -> str:
    loop = case.loop()
    snapshot = loop.start()
    begun, _ = loop.federation.start()
    for _ in range(LEARN):
        played = loop.play(snapshot)
        if played.rejected:
            client, reason = next(iter(played.rejected.items()))
            raise Broken(f"the upload of client {client} is rejected in round {played.snapshot.round}: {reason}")
        snapshot = played.snapshot
    before, after = (_loss(loop, snapshot, w) for w in (begun, None))
    if not after < before:
        raise Broken(f"after {LEARN} rounds the training loss is {after:.3g}, and it was {before:.3g} at the start")
    return f"training loss {before:.3g} to {after:.3g} in {LEARN} rounds"


def _loss(loop: Loop, snapshot: Snapshot, w: Tensor | None) -> float:
    """The training loss: of a given model, of the global one, or the mean of everybody's own."""
    here = loop.federation
    assert isinstance(here, Federation)
    models = loop.method.models(snapshot.server)
    if w is None and models:
        w = next(iter(models.values()))
    if w is not None:
        return problem.loss(here, w)
    found = [loop.personal(snapshot, client) for client in range(here.population.size)]
    if any(one is None for one in found):
        raise Broken("it has neither a global model (`models`) nor personal ones (`personal`)")
    return sum(problem.loss(here, one[0], client) for client, one in enumerate(found) if one) / len(found)


def _repeats(case: Case) -> None:
    _compare(case.play(), case.serial, "the same run twice")


class _Backwards(Serial):
    def replies(self, task: Task) -> Iterator[Reply]:
        yield from reversed(list(super().replies(task)))


def _any_order(case: Case) -> None:
    _compare(case.play(runtime=_Backwards), case.serial, "with replies in the opposite order")


class _Watching(Serial):
    """Looks whether a client's work changes what it was given."""

    def replies(self, task: Task) -> Iterator[Reply]:
        down = {field.name: value.clone() for field, value in task.down.tensors().items()}
        for client, reply in zip(task.cohort.ids.tolist(), super().replies(task), strict=True):
            for field, value in task.down.tensors().items():
                if not torch.allclose(value, down[field.name], rtol=0, atol=0, equal_nan=True):
                    raise Broken(f"client {client} writes into the message it received: its {field.name} has changed")
            yield reply


def _pure(case: Case) -> None:
    _compare(case.play(runtime=_Watching), case.serial, "while watched")


def _threads(case: Case) -> None:
    from undrift.runtimes.threads import Threads

    _compare(case.play(runtime=lambda here: Threads(here, 2)), case.serial, "in threads")


def _processes(case: Case) -> None:
    from undrift.runtimes.processes import Processes

    _compare(case.play(runtime=lambda here: Processes(here, 2)), case.serial, "in worker processes")


def _batched(case: Case) -> str | None:
    from undrift.runtimes.batched import Batched

    try:
        found = case.play(runtime=Batched)
    except Exception as error:
        return f"it runs client by client only: {type(error).__name__}: {str(error).splitlines()[0]}"
    _compare(found, case.serial, "batched", CLOSE)
    return None


class _Bytes(Runtime):
    """Every client lives elsewhere: it gets bytes, gives bytes, and keeps its state to itself."""

    elsewhere = True

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self._sites: dict[int, Memory] = {}
        self._first: dict[int, Any] = {}

    def replies(self, task: Task) -> Iterator[Reply | Rejected]:
        method, trainer, door = task.method, Trainer(self.federation, self.federation), Door(self.expecting(task))
        for place, client in enumerate(task.cohort.ids.tolist()):
            sent = Request(
                task.kind,
                client,
                task.cohort.round,
                task.down.row(place),
                self.states.accepted(client),
                task.buffers if method.shares_buffers else None,
            ).encode()
            request = Request.decode(method, sent, self._first.pop(client, None))
            if request.kind == "survey":
                self._first[client] = request.down
            site = self._sites.setdefault(client, Memory())
            reply = answer(request, method, trainer, site, self.federation.fresh(method))
            yield door.admit(client, encode_reply(method, reply))


def _from_bytes(case: Case) -> None:
    _compare(case.play(runtime=_Bytes), case.serial, "from bytes alone, with states kept at the clients")


def _resumes(case: Case) -> None:
    loop = case.loop()
    snapshot = loop.play(loop.start()).snapshot
    kinds = loop.method.records()
    states = loop.runtime.states
    assert isinstance(states, Memory)
    server = kinds["server"].decode(snapshot.server.encode())
    buffers = Buffers.decode(snapshot.buffers.encode())
    again = case.loop()
    kind: Any = kinds["client"]
    again.runtime.states = Memory({client: Kept.decode(kind, kept.encode()) for client, kept in states.kept.items()})
    found, snapshot = [], Snapshot(snapshot.round, server, buffers)
    for _ in range(ROUNDS - 1):
        snapshot = again.play(snapshot).snapshot
        found.append(snapshot.server)
    _compare(found, case.serial[1:], "resumed from its bytes after the first round")


class _Spoilt(Serial):
    """The first client of every exchange sends numbers that are none."""

    def replies(self, task: Task) -> Iterator[Reply]:
        for place, reply in enumerate(super().replies(task)):
            if place == 0:
                for value in dict(reply.up.items()).values():
                    if value.is_floating_point():
                        value.fill_(torch.nan)
            yield reply


def _survives(case: Case) -> None:
    loop = case.loop(_Spoilt)
    if loop.participate < 2 or not any(True for _ in loop.method.records()["up"].schema()):
        return
    snapshot = loop.start()
    for _ in range(2):
        played = loop.play(snapshot)
        snapshot = played.snapshot
        if not played.rejected:
            return  # a row of NaN is a word of this method's language (FedTR, FedProto), and is left out of its mean
    for field, value in snapshot.server.tensors().items():
        if value.is_floating_point() and field.travel != "each" and not value.isfinite().all():
            raise Broken(f"an upload of NaN was rejected, and yet the server's {field.name} is not finite")


def _costs(case: Case) -> str:
    loop = case.loop()
    first = loop.play(loop.start())
    d = loop.federation.layout.size
    up, down = (bytes / first.cohort.size / 4 / d for bytes in (first.spent.bytes_up, first.spent.bytes_down))
    return f"{up:.2f} d up and {down:.2f} d down a client"


QUESTIONS: dict[str, Callable[[Case], str | None]] = {
    "the loss falls": _learns,
    "the same seed gives the same bits": _repeats,
    "the order of arrival changes nothing": _any_order,
    "a client's work leaves its message as it was": _pure,
    "threads give the bits of serial": _threads,
    "worker processes give the bits of serial": _processes,
    "batched agrees to rounding": _batched,
    "it runs from bytes, with states at the clients": _from_bytes,
    "a resumed run ends with the same bits": _resumes,
    "an upload of NaN is rejected, and the run goes on": _survives,
    "what it sends is counted": _costs,
}
