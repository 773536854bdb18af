"""Where the methods of the table run. ``serial`` is the reference; every other column must agree with it."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from undrift.core.admit import Door
from undrift.core.check import Rejected
from undrift.core.federation import Federation
from undrift.core.reduce import Reply
from undrift.core.runtime import Runtime, Task
from undrift.core.wire import Request
from undrift.runtimes.batched import Batched
from undrift.runtimes.processes import Processes
from undrift.runtimes.sums import SumsHere
from undrift.runtimes.threads import Threads


class Helper:
    """One other process for all tests. It gets bytes, and has the models' code and one client's data at a time."""

    @cached_property
    def process(self) -> subprocess.Popen[bytes]:
        here = Path(__file__).resolve()
        return subprocess.Popen(
            [sys.executable, str(here.with_name("elsewhere.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=here.parents[1],
        )

    def ask(self, about: dict[str, Any], request: bytes) -> bytes:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([about, len(request)]).encode() + b"\n" + request)
        self.process.stdin.flush()
        size = int(self.process.stdout.readline() or -1)
        assert size >= 0, "the other process has died; its error is above"
        return self.process.stdout.read(size)

    def close(self) -> None:
        if "process" in self.__dict__:
            with contextlib.suppress(BrokenPipeError):
                self.process.communicate()


HELPER = Helper()
RUNS = itertools.count()


class Elsewhere(Runtime):
    """Every client works in the other process, from bytes alone, with the states that it keeps there.

    The states come back only to be compared: what is asked for says which round was accepted, and no more.
    """

    name = "elsewhere"

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation)
        self.about = {
            "model": type(federation.module).__name__,
            "seed": federation.seed,
            "training": federation.training.values(),
            "run": next(RUNS),
        }

    def replies(self, task: Task) -> Iterator[Reply | Rejected]:
        door = Door(self.expecting(task))
        for place, client in enumerate(task.cohort.ids.tolist()):
            request = Request(
                task.kind,
                client,
                task.cohort.round,
                task.down.row(place),
                accepted=self.states.accepted(client),
                buffers=task.buffers if task.buffers and task.method.shares_buffers else None,
            )
            about = self.about | {"method": task.method.name(), "settings": task.method.values()}
            yield door.admit(client, HELPER.ask(about, request.encode()))


@dataclass(frozen=True)
class Column:
    """A runtime and how closely it agrees with the serial one. 0: bit for bit."""

    name: str
    make: Callable[[Federation], Runtime]
    tolerance: float = 0.0
    rounds: int = 3

    def __str__(self) -> str:
        return self.name


def on_ray(federation: Federation) -> Runtime:
    """On a local cluster that is started once and ends with this process."""
    from undrift.runtimes import ray

    ray.connect(2)
    return ray.Ray(federation)


COLUMNS = [
    Column("elsewhere", Elsewhere),
    Column("threads(3)", lambda federation: Threads(federation, 3)),
    Column("processes(1)", lambda federation: Processes(federation, 1)),
    Column("processes(2)", lambda federation: Processes(federation, 2)),
    Column("sums of 2", lambda federation: SumsHere(federation, 2), tolerance=1e-5),
    Column("batched", Batched, tolerance=1e-5, rounds=5),
    pytest.param(Column("ray", on_ray), marks=pytest.mark.cluster),
]
