"""Which runtime suits a federation: a rule over its size, and over what a step of the first clients takes.

Serial, threads and processes give the same bits, so between them only time counts; it is measured, and what was chosen
is a value that a run records and a resumed run takes over. Batched gives other bits: it is chosen by size alone, where
steps are so small and clients so many that it wins by far on any machine. The same command then gives the same bits
again, here and elsewhere, however busy the machine is.
"""

from __future__ import annotations

import io
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift.core.client import one_thread
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.vector import Replica
from undrift.runtimes.batched.local import BatchedLocal
from undrift.runtimes.batched.members import Members
from undrift.runtimes.batched.program import Program
from undrift.runtimes.cores import cores

STEPS = 3  # of each measurement
TRIED = 2  # clients on which it is tried whether a model can be batched
START = 2.0  # seconds that it takes to start processes
WAIT = 1.5e-4  # seconds of a step that a thread waits for each other one, which holds the interpreter
TASK = 4e-4  # seconds that a client costs on its way to a worker and back
PASSES = 10  # times that a run is taken to ask every client
SMALL, MANY = 150_000, 100  # batched: at most so many MACs forward in a step, and at least so many clients


@dataclass(frozen=True)
class Choice:
    """A runtime's name, and why."""

    name: str
    why: str


def choose(federation: Federation, workers: int | None = None, method: Any = None) -> Choice:
    """The runtime for a federation, by its size or, where that does not decide, from measurements on this machine."""
    sizes = federation.population.samples
    work = federation.profile.forward * (federation.training.per_step or int(sizes.max()))
    if work <= SMALL and len(sizes) >= MANY and _batchable(federation):
        why = f"a client's step takes {work:,} MACs (at most {SMALL:,}), and {len(sizes)} are many clients ({MANY} are)"
        return Choice("batched", f"by size: {why}")
    here = min(workers or cores(), cores())  # more workers than cores are no faster
    steps = float(np.mean([federation.training.steps_for(int(n)) for n in sizes[:1000]]))
    obstacles: dict[str, str] = {}
    if here < 2:
        obstacles["threads"] = obstacles["processes"] = "there is one core"
    elif federation.x.device.type != "cpu":
        obstacles["threads"] = obstacles["processes"] = f"the data are on {federation.x.device}"
    else:
        stays = _stays(federation, method)
        if stays:
            obstacles["processes"] = stays
        if Replica(federation.module, None).stochastic:
            obstacles["threads"] = "the model has dropout, which threads would share"
    return decide(_eager(federation), steps, len(sizes), here, obstacles)


def decide(serial: float, steps: float, clients: int, cores: int, obstacles: Mapping[str, str]) -> Choice:
    """The rule between runtimes of the same bits. ``serial``: seconds of a step; ``obstacles`` rule others out."""
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
    figures = ", ".join(f"{key} {value * 1e3:.3g} ms" for key, value in expected.items())
    return Choice(name, "; ".join([f"expected time of a client's step: {figures}", *notes]))


def _eager(federation: Federation) -> float:
    trainer, (start, buffers) = federation.trainer(), federation.start()

    def run() -> None:
        local = trainer.local(0, 1, federation.rows(0), buffers)
        local.descend(local.grad, start, STEPS)

    with one_thread(), torch.no_grad():
        return _best(run) / STEPS


def _batchable(federation: Federation) -> bool:
    """Does vmap know the model?"""
    program, (start, _) = Program(federation), federation.start()
    if program.reason:
        return False
    members = Members(federation, np.arange(min(TRIED, federation.population.size)), 1)

    def one(me: torch.Tensor) -> torch.Tensor:
        local = BatchedLocal(program, members, me, 1)
        return local.descend(local.grad, start, 1)

    try:
        with one_thread(), torch.no_grad():
            torch.func.vmap(one)(torch.arange(len(members.n), device=federation.x.device))
    except Exception:  # whatever a model may do that vmap does not know
        return False
    return True


def _best(run: Callable[[], None]) -> float:
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _stays(federation: Federation, method: Any) -> str:
    """Why nothing can be sent to worker processes; empty: it can."""
    from undrift.runtimes.processes import payload, possible

    if not possible():
        return "this system cannot start worker processes"
    try:
        payload(federation)
    except InvalidInput:
        return "the model or the loss cannot be sent to processes"
    for value in (federation.module, federation.loss, federation.augment, method):
        for kind, module in _homes(value).items():
            if module == "__main__" or (module not in sys.modules and find_spec(module) is None):
                return f"{kind} is defined in a notebook or a main script, which processes cannot import"
    if _runs_again():
        return 'processes would run the script again: it has no `if __name__ == "__main__":`'
    return ""


class _Homes(pickle.Pickler):
    """Takes note of the classes and functions that a pickle names, and of their modules."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.found: dict[str, str] = {}

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, type) or callable(value):
            module = getattr(value, "__module__", None)
            if isinstance(module, str):
                self.found[getattr(value, "__qualname__", type(value).__qualname__)] = module
        return NotImplemented


def _homes(value: Any) -> dict[str, str]:
    pickler = _Homes()
    try:
        pickler.dump(value)
    except Exception:  # said where it is sent
        return {}
    return pickler.found


def _runs_again() -> bool:
    """Is the main script one that a new process would run from its beginning?"""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if path is None or getattr(main, "__spec__", None) is not None or not path.endswith(".py"):
        return False
    try:
        return "__name__" not in Path(path).read_text(encoding="utf-8", errors="ignore")
    except OSError:
        return False
