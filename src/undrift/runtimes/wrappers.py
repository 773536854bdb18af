"""Runtimes that delegate everything and change one thing: networks that lose, delay or falsify uploads.

Which upload is hit depends on the seed, the round and the client alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core import rng
from undrift.core.check import Expected, Rejected
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.reduce import Block, Partial, Reply
from undrift.core.runtime import Mapped, Runtime, Task
from undrift.core.states import States


class Wrapper(Runtime):
    """A runtime around another one; subclasses change the replies."""

    def __init__(self, runtime: Runtime, share: float) -> None:
        if not 0 <= share <= 1:
            raise InvalidInput(f"{type(self).__name__}: the share of uploads must be in [0, 1], not {share:g}")
        self.runtime, self.share = runtime, share
        self.name = f"{type(self).__name__.lower()}({runtime.name})"

    @property
    def federation(self) -> Federation:  # type: ignore[override]
        return self.runtime.federation

    @property
    def states(self) -> States:
        return self.runtime.states

    @states.setter
    def states(self, states: States) -> None:
        self.runtime.states = states

    def expecting(self, task: Task) -> Expected:
        return self.runtime.expecting(task)

    def change(self, reply: Reply, task: Task) -> Reply | None:
        """What becomes of the upload of a client that was hit; None: it is lost."""
        raise NotImplementedError

    def replies(self, task: Task) -> Iterator[Reply | Rejected]:
        for reply in self.one_by_one(task):
            changed = self.change(reply, task) if isinstance(reply, Reply) and self.hits(reply, task) else reply
            if changed is not None:
                yield changed

    def one_by_one(self, task: Task) -> Iterator[Reply | Rejected]:
        for item in self.runtime.replies(task):
            if isinstance(item, Block):
                yield from item.replies()
            elif isinstance(item, Partial):
                raise InvalidInput(f"{type(self).__name__}: uploads that were added up cannot be changed one by one")
            else:
                yield item

    def hits(self, reply: Reply, task: Task) -> bool:
        if task.kind == "evaluate":
            return False  # what is measured is left alone
        purpose = f"{type(self).__name__} survey" if task.kind == "survey" else type(self).__name__
        draw = rng.bits(rng.key(task.cohort.seed, purpose, task.cohort.round, reply.client), 1)[0]
        return float(draw) < self.share * 2.0**64

    def map(self, function: Mapped, tensors: Mapping[str, Tensor], items: Sequence[Any]) -> list[dict[str, Tensor]]:
        return self.runtime.map(function, tensors, items)

    def close(self) -> None:
        self.runtime.close()


class Lossy(Wrapper):
    """Some uploads never arrive."""

    def __init__(self, runtime: Runtime, drop: float = 0.1) -> None:
        super().__init__(runtime, drop)

    def change(self, reply: Reply, task: Task) -> None:
        return None


class Slow(Wrapper):
    """Some uploads arrive late, after all others, each ``delay`` seconds after the one before."""

    def __init__(self, runtime: Runtime, share: float = 0.1, delay: float = 0.1) -> None:
        super().__init__(runtime, share)
        self.delay = delay

    def replies(self, task: Task) -> Iterator[Reply | Rejected]:
        late: list[Reply] = []
        for reply in self.one_by_one(task):
            if isinstance(reply, Reply) and self.hits(reply, task):
                late.append(reply)
            else:
                yield reply
        for reply in late:
            time.sleep(self.delay)
            reply.spent.seconds += self.delay
            yield reply


def _nan(reply: Reply) -> Reply:
    return replace(reply, up=reply.up.map(lambda f, v: torch.full_like(v, torch.nan) if v.is_floating_point() else v))


def _scale(reply: Reply) -> Reply:
    return replace(reply, up=reply.up.map(lambda f, v: v * 1e20 if v.is_floating_point() else v))


def _shape(reply: Reply) -> Reply:
    return replace(reply, up=reply.up.map(lambda f, v: torch.zeros(7, 7)))


def _weight(reply: Reply) -> Reply:
    return replace(reply, samples=reply.samples * 1000)


def _round(reply: Reply) -> Reply:
    return replace(reply, round=reply.round - 1)


def _kind(reply: Reply) -> Reply:
    return replace(reply, up={"x": 1})


class Hostile(Wrapper):
    """Some clients send nonsense: not finite, of a wrong shape, with an absurd weight, of another round, of no kind,
    or finite and far too long."""

    LIES: Mapping[str, Callable[[Reply], Reply]] = {
        "nan": _nan, "shape": _shape, "weight": _weight, "round": _round, "kind": _kind,
        "scale": _scale,
    }  # fmt: skip

    def __init__(self, runtime: Runtime, share: float = 0.1, lie: str | None = None) -> None:
        """``lie``: the one lie that all tell; by default each its own."""
        super().__init__(runtime, share)
        if lie is not None and lie not in self.LIES:
            raise InvalidInput(f"Hostile: unknown lie {lie!r}: one of {', '.join(self.LIES)}")
        self.lie = lie

    def change(self, reply: Reply, task: Task) -> Reply:
        draw = rng.generator(task.cohort.seed, "lie", task.cohort.round, reply.client)
        name = self.lie or str(np.array(list(self.LIES))[draw.integers(len(self.LIES))])
        return self.LIES[name](reply)
