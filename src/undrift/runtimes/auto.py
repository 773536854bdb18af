"""Which runtime suits a federation: a rule over what a step of the first clients was measured to take.

The choice depends on the machine, so it is a value that a run records and a resumed run takes over. Serial, threads and
processes give the same bits, so between them only time counts. Batched gives other bits: it is considered only where
steps are so small and clients so many that it wins by far on any machine, so that the same command gives the same bits
again however busy the machine is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from undrift.core.client import one_thread
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.vector import Replica
from undrift.runtimes.batched import BatchedLocal, Members, Program

STEPS = 3  # of each measurement
BLOCK = 64  # clients that are measured together
START = 2.0  # seconds that it takes to start processes
WAIT = 1.5e-4  # seconds of a step that a thread waits for each other one, which holds the interpreter
TASK = 4e-4  # seconds that a client costs on its way to a worker and back
PASSES = 10  # times that a run is taken to ask every client
SMALL, MANY = 150_000, 100  # batched: at most so many MACs forward in a step, and at least so many clients
CLEARLY = 2.0  # times faster that it must be even then


@dataclass(frozen=True)
class Choice:
    """A runtime's name, and why."""

    name: str
    why: str


def choose(federation: Federation, workers: int | None = None) -> Choice:
    """The runtime for a federation on this machine, from measurements."""
    cores = len(os.sched_getaffinity(0))
    cores = min(workers or cores, cores)  # more workers than cores are no faster
    sizes = federation.population.samples
    steps = float(np.mean([federation.training.steps_for(int(n)) for n in sizes[:1000]]))
    obstacles: dict[str, str] = {}
    if cores < 2:
        obstacles["threads"] = obstacles["processes"] = "there is one core"
    elif federation.x.device.type != "cpu":
        obstacles["threads"] = obstacles["processes"] = f"the data are on {federation.x.device}"
    else:
        if not _travels(federation):
            obstacles["processes"] = "the model or the loss cannot be sent to processes"
        if Replica(federation.module, None).stochastic:
            obstacles["threads"] = "the model has dropout, which threads would share"
    work = federation.profile.forward * (federation.training.batch_size or int(sizes.max()))
    batched = _batched(federation) if work <= SMALL and len(sizes) >= MANY else None
    return decide(_eager(federation), batched, steps, len(sizes), cores, obstacles)


def decide(
    serial: float, batched: float | None, steps: float, clients: int, cores: int, obstacles: Mapping[str, str]
) -> Choice:
    """The rule. ``serial`` and ``batched`` are seconds per step of one client; ``obstacles`` rule others out."""
    expected = {
        "serial": serial,
        "threads": serial / cores + WAIT * (cores - 1),
        "processes": serial / cores + TASK / steps,
    }
    notes = list(dict.fromkeys(obstacles.values()))
    total = steps * clients * PASSES
    for name in obstacles:
        del expected[name]
    if "processes" in expected:
        saved = (min(v for k, v in expected.items() if k != "processes") - expected["processes"]) * total
        if saved <= START:
            del expected["processes"]
            notes.append(f"processes would save {max(saved, 0):.2g} s in {PASSES} passes and start in {START:g} s")
    name = min(expected, key=lambda k: expected[k])
    if batched is not None:
        expected["batched"] = batched
        if batched * CLEARLY < expected[name]:
            name = "batched"
    figures = ", ".join(f"{key} {value * 1e3:.3g} ms" for key, value in expected.items())
    return Choice(name, "; ".join([f"expected time of a client's step: {figures}", *notes]))


def _eager(federation: Federation) -> float:
    trainer, (start, buffers) = federation.trainer(), federation.start()

    def run() -> None:
        local = trainer.local(0, 1, federation.rows(0), buffers)
        local.descend(local.grad, start, STEPS)

    with one_thread(), torch.no_grad():
        return _best(run) / STEPS


def _batched(federation: Federation) -> float | None:
    program, (start, _) = Program(federation), federation.start()
    if program.reason:
        return None
    members = Members(federation, np.arange(min(BLOCK, federation.population.size)), 1)

    def one(me: torch.Tensor) -> torch.Tensor:
        local = BatchedLocal(program, members, me, 1)
        return local.descend(local.grad, start, STEPS)

    def run() -> None:
        torch.func.vmap(one)(torch.arange(len(members.n), device=federation.x.device))

    try:
        with one_thread(), torch.no_grad():
            return _best(run) / STEPS / len(members.n)
    except Exception:  # whatever a model may do that vmap does not know
        return None


def _best(run: Callable[[], None]) -> float:
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _travels(federation: Federation) -> bool:
    from undrift.runtimes.processes import payload

    try:
        payload(federation)
    except InvalidInput:
        return False
    return True
