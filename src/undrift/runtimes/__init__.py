"""Where clients run. ``create`` makes a runtime by name."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

from undrift.core.errors import InvalidInput, unknown
from undrift.core.federation import Federation
from undrift.core.runtime import Runtime
from undrift.runtimes.cores import cores

RUNTIMES = ("auto", "serial", "threads", "processes", "batched", "ray")

ALONE = {"serial": "works in this process alone", "batched": "uses every core by itself"}  # they take no workers

MOST, MOST_PER_CORE = 64, 8  # workers that a machine is asked to start


def create(
    name: str,
    federation: Federation,
    workers: int | None = None,
    method: Any = None,
    *,
    ray_address: str | None = None,
    ray_gpus: float | None = None,
    ray_sum: int | None = None,
) -> Runtime:
    """A runtime by name; ``workers`` is the number of threads or worker processes, where there are any.

    For ``auto`` it is the runtime that was chosen: its ``name`` is what a run records, its ``why`` what a user is told.
    ``method`` is what it will run, where that is known: not every method can be sent to processes.
    """
    # Imported when needed: starting a command must not wait for runtimes that it does not use.
    if name not in RUNTIMES:
        raise unknown("runtime", name, RUNTIMES)
    check_workers(workers)
    why = ""
    if name == "auto":
        from undrift.runtimes.auto import choose

        choice = choose(federation, workers, method)
        name, why = choice.name, choice.why
    if workers is not None and name in ALONE:
        warnings.warn(f"workers = {workers} has no effect: the {name} runtime {ALONE[name]}", stacklevel=2)
    runtime: Runtime
    if name == "threads":
        from undrift.runtimes.threads import Threads

        runtime = Threads(federation, workers)
    elif name == "processes":
        from undrift.runtimes.processes import Processes

        runtime = Processes(federation, workers)
    elif name == "batched":
        from undrift.runtimes.batched import Batched

        runtime = Batched(federation)
    elif name == "ray":
        on_ray(ray_address)
        runtime = import_module("undrift.runtimes.raysum").runtime(federation, workers, ray_gpus, ray_sum)
    else:
        from undrift.runtimes.serial import Serial

        runtime = Serial(federation)
    runtime.why = why
    return runtime


def on_ray(address: str | None) -> ModuleType:
    """What knows Ray, for the cluster at this address."""
    if address:
        os.environ["RAY_ADDRESS"] = address  # Ray's own way to name a cluster, read when it is imported
    return import_module("undrift.runtimes.ray")


def check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise InvalidInput(
            f"workers = {workers}: at least 1 worker is needed; the serial runtime works in this process"
        )
    limit = max(MOST, MOST_PER_CORE * cores())
    if workers is not None and workers > limit:
        raise InvalidInput(f"workers = {workers}: it must be at most {limit} on this machine; one per core is best")


def crowd(workers: int | None) -> int:
    """How many work side by side: as many as asked for, or one per core."""
    check_workers(workers)
    if workers is not None and workers > cores():
        warnings.warn(f"{workers} workers share {cores()} cores: more workers than cores only cost", stacklevel=3)
    return workers or cores()


__all__ = ["RUNTIMES", "check_workers", "create", "on_ray"]
