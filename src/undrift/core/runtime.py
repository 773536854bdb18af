"""``Runtime.exchange``: the only place where "where does it run" is decided.

A runtime produces replies; checking, reducing and counting them is the same everywhere and lives here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.client import Kept, Method, one_thread
from undrift.core.cohort import Cohort
from undrift.core.federation import Federation
from undrift.core.records import Message
from undrift.core.reduce import Block, Reply, objection, reduce_buffers, reduce_uploads
from undrift.core.vector import Buffers

CHUNK = 4 << 20  # bytes of uploads that are looked at together
SAMPLE = 256  # uploads that the drift of a round is measured on

Mapped = Callable[[Federation, Mapping[str, Tensor], Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Task:
    """One exchange with a cohort, as a runtime sees it."""

    method: Method
    down: Message
    cohort: Cohort
    kept: Mapping[int, Kept]  # what each client of the cohort keeps
    buffers: Buffers | None = None
    survey: bool = False
    first: Message | None = None  # the survey's message, in the second exchange


@dataclass(frozen=True)
class Exchanged:
    """What an exchange brought: the reduced upload, who answered, what each client keeps from now on."""

    up: Any | None  # None: nobody's upload was accepted
    cohort: Cohort
    kept: dict[int, Kept] = field(default_factory=dict)
    buffers: Buffers | None = None
    rejected: dict[int, str] = field(default_factory=dict)
    drift: dict[str, float] = field(default_factory=dict)


class Runtime(ABC):
    """Where clients work. Subclasses say how the replies come about, in any order."""

    name = ""
    why = ""  # why this one was chosen, where it was
    federation: Federation

    @abstractmethod
    def replies(self, task: Task) -> Iterable[Reply | Block]:
        """The replies of the clients that answered, in any order."""

    def exchange(self, task: Task) -> Exchanged:
        """Send, wait, check, reduce."""
        began = time.perf_counter()
        with one_thread():
            done = settle(task, self.replies(task))
        return replace(done, cohort=replace(done.cohort, elapsed=time.perf_counter() - began))

    def map(self, function: Mapped, tensors: Mapping[str, Tensor], items: Sequence[Any]) -> list[dict[str, Tensor]]:
        """``function(federation, tensors, item)`` for every item, where the clients work: evaluation, for example."""
        with one_thread(), torch.no_grad():
            return [function(self.federation, tensors, item) for item in items]

    def close(self) -> None:  # noqa: B027
        """Release what the runtime holds (processes, shared memory)."""

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def settle(task: Task, replies: Iterable[Reply | Block]) -> Exchanged:
    """Check every reply, drop the bad ones by name, and reduce the others in cohort order."""
    cohort, method = task.cohort, task.method
    kind = method.records()["survey" if task.survey else "up"]
    places = {int(client): place for place, client in enumerate(cohort.ids)}
    good: dict[int, Reply] = {}
    rejected: dict[int, str] = {}
    for item in replies:
        several = item.replies() if isinstance(item, Block) else [item]
        alike = isinstance(item, Block) and item.sound(cohort.population)
        reason = None
        for number, reply in enumerate(several):
            if reply.client not in places:
                rejected[reply.client] = "it was not asked in this round"
                continue
            if not (alike and number):
                reason = objection(reply, kind, cohort.round, cohort.population, task.down)
            if reason:
                rejected[reply.client] = reason
            else:
                good[places[reply.client]] = reply
    ordered = [good[place] for place in sorted(good)]
    if not ordered:
        return Exchanged(None, cohort.answered(cohort.ids[:0], torch.empty(0), ()), rejected=rejected)
    down_bytes = _down_bytes(task)
    for reply in ordered:
        reply.spent.bytes_down = down_bytes
    ids = np.array([reply.client for reply in ordered], dtype=np.int64)
    steps = torch.tensor([reply.steps for reply in ordered], dtype=torch.float64)
    answered = cohort.answered(ids, steps, tuple(reply.spent for reply in ordered))
    for name in ordered[0].notes:
        answered.note(name, float(np.mean([reply.notes[name] for reply in ordered])))
    shared = method.shares_buffers and not task.survey and ordered[0].buffers is not None
    kept = {
        reply.client: Kept(reply.state, None if method.shares_buffers else reply.buffers)
        for reply in ordered
        if reply.state is not None
    }
    return Exchanged(
        up=reduce_uploads([reply.up for reply in ordered], answered.weights),
        cohort=answered,
        kept=kept,
        buffers=reduce_buffers([r.buffers for r in ordered if r.buffers], answered.weights) if shared else None,
        rejected=rejected,
        drift={} if task.survey else drift(task.down, [reply.up for reply in ordered]),
    )


def _down_bytes(task: Task) -> int:
    """What goes down to a client: rows of ``Each`` fields are all of one size."""
    extra = task.buffers.nbytes() if task.buffers and task.method.shares_buffers and not task.survey else 0
    return task.down.row(0).nbytes() + extra


def drift(down: Message, uploads: list[Any]) -> dict[str, float]:
    """How far the clients' updates lie apart: mean distance and cosine to their mean, and FedMRUR's amp.

    The update is the first averaged vector of the upload; where the message down has a field of the same name, that
    field is a model and the update is the difference. Of a large cohort only the first ``SAMPLE`` count.
    """
    spec = next((f for f in uploads[0].schema() if f.travel == "mean" and f.axes in (("d",), ("body",), None)), None)
    if spec is None or len(uploads) < 2:
        return {}
    values = [getattr(up, spec.name) for up in uploads[:SAMPLE]]
    start = {f.name: v for f, v in down.items() if f.travel in ("same", "had")}.get(spec.name)
    size = max(1, CHUNK // values[0].nbytes)

    def chunks() -> Iterator[Tensor]:  # many uploads at once would not stay in the cache
        for begin in range(0, len(values), size):
            rows = torch.stack(values[begin : begin + size])
            yield rows if start is None else rows.sub_(start)

    passes = chunks if len(values) > size else list(chunks()).__iter__
    mean: Tensor = sum(rows.sum(0) for rows in passes()) / len(values)  # type: ignore[assignment]
    length = mean.norm()
    lengths, cosines, distances = [], [], []
    for rows in passes():
        lengths.append(rows.norm(dim=1))
        cosines.append((rows @ mean) / (lengths[-1] * length).clamp_min(1e-30))
        distances.append(rows.sub_(mean).norm(dim=1))
    return {
        "cosine": float(torch.cat(cosines).mean()),
        "distance": float(torch.cat(distances).mean()),
        "amp": float(torch.cat(lengths).mean() / length.clamp_min(1e-30)),
    }
