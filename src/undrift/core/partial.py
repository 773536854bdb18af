"""Parts of a cohort whose uploads are added up where the clients work, so that one upload travels for many.

The parts follow from the cohort and a number alone, so results do not depend on where they were added up. They differ
from those of one sum by rounding. Checks, stages and the guard look at each upload before it is added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from undrift.core.check import Expected, objection
from undrift.core.errors import InvalidInput
from undrift.core.guard import SAMPLE
from undrift.core.records import Record
from undrift.core.reduce import Partial, Reply, WeightedMean
from undrift.core.stages import Uploads
from undrift.core.states import Memory
from undrift.core.tally import Tally, Task


def summable(kind: type[Record]) -> bool:
    """Do uploads of this kind become fewer when they are added up?"""
    return not _single(kind)


def _single(kind: type[Record]) -> list[str]:
    """The large fields that the server takes client by client."""
    spread = {("d",), ("body",), ("head",), None}
    return [field.name for field in kind.schema() if field.travel == "each" and field.axes in spread]


def refuse_sums(method: Any, uploads: Uploads) -> None:
    """Refuse to add up what has to arrive client by client."""
    if not isinstance(uploads.one, WeightedMean):
        raise InvalidInput(
            f"ray_sum: the reducer {uploads.reducer} has to see every upload by itself; only means can be added up on "
            "workers: leave ray_sum out"
        )
    if single := _single(method.records()["up"]):
        raise InvalidInput(
            f"ray_sum: {method.title} takes every client's {single[0]} by itself, so there is nothing to add up on "
            "workers: leave ray_sum out"
        )


def part(task: Task, places: range) -> Task:
    """The same exchange with those at these places of the cohort alone."""
    where = slice(places.start, places.stop)
    cohort = replace(task.cohort, ids=task.cohort.ids[where])
    down = task.down.map(lambda field, value: value[where] if field.travel == "each" else value)
    return Task(task.method, down, cohort, task.buffers, task.kind, task.first, task.uploads, task.carried)


def added_up(task: Task, begin: int, replies: Iterable[Reply], expected: Expected) -> Partial:
    """The replies of a part of a cohort, which begins at this place, as one. They come in its order."""
    rejected: dict[int, str] = {}
    tally = Tally(task, expected, Memory(), part=True, drift=begin < SAMPLE)
    for place, reply in enumerate(replies):
        if reason := objection(reply, expected) or tally.unlike(reply):
            rejected[reply.client] = reason
            tally.refuse(place)
        else:
            tally.put(place, reply)
    return tally.partial(begin, rejected)
