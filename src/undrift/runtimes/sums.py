"""Clients whose uploads are added up in parts of the cohort, in this process: the bits of a cluster that does so.

Which clients are added up together follows from the cohort and a number alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from undrift.core.client import up_kind
from undrift.core.federation import Federation
from undrift.core.partial import added_up, part, summable
from undrift.core.runtime import Task, expecting
from undrift.runtimes.serial import Serial, reply


def bundles(task: Task, together: int) -> list[range]:
    """The places of clients that are added up together."""
    size = task.cohort.size
    return [range(begin, min(begin + together, size)) for begin in range(0, size, together)]


def adds_up(task: Task) -> bool:
    """Figures are never added up, and no survey of which the server needs every answer."""
    return task.kind != "evaluate" and summable(up_kind(task.method, task.kind))


class SumsHere(Serial):
    """The same sums in this process."""

    name = "ray"

    def __init__(self, federation: Federation, together: int) -> None:
        super().__init__(federation)
        self._together = together

    def replies(self, task: Task) -> Iterator[Any]:
        if not adds_up(task):
            yield from super().replies(task)
            return
        for places in bundles(task, self._together):
            some = part(task, places)
            answers = (reply(self, self.trainer, task, place) for place in places)
            yield added_up(some, places.start, answers, expecting(some, self.fresh(task.method)))
