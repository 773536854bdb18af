"""``Runtime.exchange``: the only place where "where does it run" is decided.

A runtime produces replies; checking, reducing and counting them is the same everywhere and lives here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.check import Expected, Rejected, objection, sound
from undrift.core.client import one_thread, up_kind
from undrift.core.federation import Federation
from undrift.core.reduce import Block, Partial, Reply
from undrift.core.states import Kept, Memory, States, elsewhere
from undrift.core.tally import Answer, Exchanged, Tally, Task, many

Mapped = Callable[[Federation, Mapping[str, Tensor], Any], dict[str, Tensor]]


class Runtime(ABC):
    """Where clients work. Subclasses say how the replies come about, in any order."""

    name = ""
    why = ""  # why this one was chosen, where it was
    federation: Federation
    notice: Callable[[int], None] | None = None  # told how many clients have answered, as they do
    states: States  # what the clients keep
    elsewhere = False  # do they keep it themselves? Then only the round that was accepted last is kept here
    patience = 0.0  # seconds of work that a client may claim however young the exchange is

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.states = Memory()
        self._fresh: tuple[Method | None, Kept] = (None, elsewhere(0))

    def kept(self, method: Method, client: int) -> Kept:
        """What a client keeps; before its first accepted upload that is the method's initial state."""
        found = self.states.load(client)
        return self.fresh(method) if found is None else found

    def fresh(self, method: Method) -> Kept:
        """What a client keeps before its first accepted upload: the method's initial state."""
        if self._fresh[0] is not method:
            self._fresh = (method, self.federation.fresh(method))
        return self._fresh[1]

    def expecting(self, task: Task) -> Expected:
        """What is known of the replies to a task before they arrive."""
        return expecting(task, self.fresh(task.method), not self.elsewhere, self.patience)

    @abstractmethod
    def replies(self, task: Task) -> Iterable[Answer]:
        """The replies of the clients that answered, in any order."""

    def exchange(self, task: Task) -> Exchanged:
        """Send, wait, check, reduce."""
        began = time.perf_counter()
        with one_thread():
            done = settle(task, self._noticed(task), self.states, self.expecting(task))
        return replace(done, cohort=replace(done.cohort, elapsed=time.perf_counter() - began))

    def _noticed(self, task: Task) -> Iterable[Answer]:
        replies = self.replies(task)
        return replies if self.notice is None or task.kind == "evaluate" else counted(replies, self.notice)

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


def counted(replies: Iterable[Answer], notice: Callable[[int], None]) -> Iterator[Answer]:
    """The replies, with a word to somebody on how many clients they came from."""
    clients = 0
    for item in replies:
        yield item
        clients += many(item)
        notice(clients)


def settle(task: Task, replies: Iterable[Answer], states: States, expected: Expected | None = None) -> Exchanged:
    """Check every reply, drop the bad ones by name, and reduce the others in cohort order, as soon as it allows.

    What clients will keep is held in ``states``; it is for the loop to say that the round counted.
    """
    places = {int(client): place for place, client in enumerate(task.cohort.ids)}
    expected = expected or expecting(task)
    tally = Tally(task, expected, states)
    good: set[int] = set()
    rejected: dict[int, str] = {}

    def take(answer: Reply | Rejected, checked: bool) -> None:
        client = answer.client if type(answer.client) is int else -1
        if client in good:
            return  # of two answers the first that is sound counts, and the other is no matter
        if client not in places:
            rejected[client] = "it was not asked in this round"
        elif isinstance(answer, Rejected):
            rejected[client] = answer.reason
            tally.refuse(places[client])
        elif reason := None if checked else objection(answer, expected) or tally.unlike(answer):
            rejected[client] = reason
            tally.refuse(places[client])
        else:
            good.add(client)
            rejected.pop(client, None)
            tally.put(places[client], answer)

    for item in replies:
        if isinstance(item, Partial):  # which was settled where it was made
            good.update(item.clients)
            rejected |= item.rejected
            tally.put(item.place, item)
            continue
        if not isinstance(item, Block):
            take(item, checked=False)
            continue
        whole = sound(item, expected)
        clients, begin = item.clients.tolist(), places.get(int(item.clients[0]), len(places))
        if whole and np.array_equal(task.cohort.ids[begin : begin + len(clients)], item.clients):
            good.update(clients)
            tally.put(begin, item)
        else:
            for reply in item.replies():
                take(reply, whole)
    return tally.exchanged(rejected)


def expecting(task: Task, fresh: Kept | None = None, travels: bool = True, patience: float = 0.0) -> Expected:
    """What is known of the replies to a task before they arrive: see ``Expected``."""
    shared, own = task.method.shares_buffers, None if fresh is None or not travels else fresh.buffers
    return Expected(
        kind=up_kind(task.method, task.kind),
        round=task.cohort.round,
        population=task.cohort.population,
        down=task.down,
        began=task.cohort.began,
        fresh=fresh,
        travels=travels,
        buffers=(task.buffers if shared else own) if task.kind == "update" else None,
        shared=shared,
        work=task.kind,
        patience=patience,
    )


__all__ = ["Exchanged", "Mapped", "Runtime", "Task", "counted", "expecting", "settle"]
