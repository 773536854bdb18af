"""How far is undrift from the floor: the same minibatches, in bare PyTorch, with the same layers?

The job is the one that LeNet papers run: 100 clients x 600 MNIST-shaped samples, 10 per round, batch 50, one epoch,
SGD 0.01 with momentum 0.9. The floor is a hand-written loop over minibatches that lie ready in memory: no sampling of
clients, no order, no aggregation. Extra passes of a method are counted into its own floor. For two workers the floor is
that loop in two processes at once, each with half of the minibatches: split perfectly, and with what two busy cores
take from each other (caches, memory, clock rate), which half of one loop's time on an idle machine would leave out.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import torch
from common import Player, entry, federation, interleave, machine, ratios, write

from undrift.core.federation import Federation
from undrift.core.training import Training
from undrift.ledger.states import LedgerStates
from undrift.ledger.store import Ledger
from undrift.runtimes.processes import Processes
from undrift.runtimes.serial import Serial

PARTICIPATE = 10
TRAINING = Training(lr=0.01, momentum=0.9, batch_size=50, epochs=1)


class Bare:
    """zero_grad, forward, backward, step; with extra forwards and gradients where a method's definition needs them."""

    def __init__(
        self, job: Federation, clients: int, forwards: int = 0, gradients: int = 0, part: slice = slice(None)
    ) -> None:
        self.module, self.loss = copy.deepcopy(job.module).train(), job.loss
        self.forwards, self.gradients = forwards, gradients
        self.optimiser = torch.optim.SGD(self.module.parameters(), lr=job.training.lr, momentum=job.training.momentum)
        size, total = job.training.batch_size, int(job.offsets[clients])
        order = torch.randperm(total)
        self.batches = [(job.x[rows].clone(), job.y[rows].clone()) for rows in order.split(size)[part]]

    def __call__(self) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for x, y in self.batches:
            for _ in range(self.forwards):
                with torch.no_grad():
                    self.module(x)
            for _ in range(1 + self.gradients):
                self.optimiser.zero_grad()
                self.loss(self.module(x), y).backward()
            self.optimiser.step()
        torch.set_num_threads(threads)


class Split:
    """The bare loop in processes that work at the same time; they hold nothing but their own minibatches."""

    def __init__(self, model: str, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.ends = []
        for part in range(workers):
            ours, theirs = context.Pipe()
            arguments = (theirs, model, slice(part, None, workers))
            context.Process(target=_bare_worker, args=arguments, daemon=True).start()
            self.ends.append(ours)
        self._wait()

    def __call__(self) -> None:
        for end in self.ends:
            end.send("go")
        self._wait()

    def close(self) -> None:
        for end in self.ends:
            end.send(None)

    def _wait(self) -> None:
        for end in self.ends:
            end.recv()


def _bare_worker(end: Any, model: str, part: slice) -> None:
    torch.set_num_threads(1)
    bare = Bare(federation(model, 100, 600, TRAINING), PARTICIPATE, part=part)
    end.send("ready")
    while end.recv():
        bare()
        end.send("done")


PLAIN, MRUR = "fedavg, no momentum", "bare + 1 gradient + 1 forward"

# method, its floor, factor on it, target
CLAIMS: list[tuple[str, str, float, float | str]] = [
    ("fedavg", "bare", 1.0, 1.10),
    ("fedtrip", "fedavg", 1.0, 1.10),
    ("scaffold", "fedavg", 1.0, 1.10),
    ("feddyn", "fedavg", 1.0, 1.10),
    ("moon", "bare + 2 forwards", 1.0, 1.10),
    ("fedmrur", PLAIN, 7 / 3, 1.15),  # it refuses local momentum; 7/3 if a backward pass takes two forward passes
    ("fedmrur", MRUR, 1.0, ""),  # whatever it takes
]


def serial(model: str, repetitions: int) -> list[dict[str, Any]]:
    job = federation(model, 100, 600, TRAINING)
    plain = replace(job, training=replace(TRAINING, momentum=0.0))
    contestants: dict[str, Callable[[], Any]] = {
        "bare": Bare(job, PARTICIPATE),
        "bare + 2 forwards": Bare(job, PARTICIPATE, forwards=2),
        MRUR: Bare(plain, PARTICIPATE, forwards=1, gradients=1),
        PLAIN: Player(plain, "fedavg", Serial(plain), PARTICIPATE),
    }
    for method in dict.fromkeys(method for method, _, _, _ in CLAIMS):
        here = plain if method == "fedmrur" else job
        contestants[method] = Player(here, method, Serial(here), PARTICIPATE)
    seconds = interleave(contestants, repetitions)
    rows = []
    for method, base, factor, target in CLAIMS:
        median, best = ratios(seconds[method], seconds[base], factor)
        floor = base if factor == 1 else f"{factor:.2f} x {base}"
        rows.append(
            {
                "job": model, "runtime": "serial", "method": method, "floor": floor, "s/round": min(seconds[method]),
                "floor s": min(seconds[base]) * factor, "median ratio": median, "best ratio": best,
                "at most": target if base == "bare" or model.startswith("lenet") else "",
                "cpu ratio": ratios(seconds[method, "cpu"], seconds[base, "cpu"], factor)[0],
            }
        )  # fmt: skip
    return rows


def processes(model: str, repetitions: int) -> list[dict[str, Any]]:
    """Against the bare loop split over as many processes; by the clock, and by processor time of all processes."""
    target = {"mlp": 1.25}.get(model, 1.15)
    workers = min(2, len(os.sched_getaffinity(0)))
    job = federation(model, 100, 600, TRAINING)
    bare = Bare(job, PARTICIPATE)
    split = Split(model, workers)
    with Processes(job, workers) as runtime:
        player = Player(job, "fedavg", runtime, PARTICIPATE)
        contestants = {"bare": bare, "split": split, "processes": player}
        seconds = interleave(contestants, repetitions, warmup=3, rounds=3)
        hands = [psutil.Process(handle.process.pid) for handle in runtime._handles.values()]

        def cpu() -> float:
            return time.process_time() + sum(sum(hand.cpu_times()[:2]) for hand in hands)

        used = {}
        for name, run in (("bare", bare), ("processes", player)):
            began = cpu()
            for _ in range(repetitions):
                run()
            used[name] = cpu() - began
    split.close()
    rows = []
    for floor, scale in (("split", 1.0), ("bare", 1 / workers)):
        median, best = ratios(seconds["processes"], seconds[floor], scale)
        rows.append(
            {
                "job": model, "runtime": f"processes({workers})", "method": "fedavg",
                "floor": f"bare in {workers} processes" if floor == "split" else f"bare / {workers}",
                "s/round": min(seconds["processes"]), "floor s": min(seconds[floor]) * scale, "median ratio": median,
                "best ratio": best, "at most": target if floor == "split" else "",
                "cpu ratio": used["processes"] / used["bare"],
            }
        )  # fmt: skip
    return rows


def ledger(model: str, repetitions: int) -> dict[str, Any]:
    """The share of a round that the ledger takes: rounds with it against rounds without it, for a method with state."""
    job = federation(model, 100, 600, TRAINING)
    plain = Player(job, "scaffold", Serial(job), PARTICIPATE)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.db", create=True) as book:
        run = book.add("floor", {"algorithm": {"name": "scaffold"}}, {})
        recorded = Player(job, "scaffold", Serial(job), PARTICIPATE)
        states = recorded.loop.runtime.states = LedgerStates(book, run, recorded.loop.method.records()["client"])

        def play() -> None:
            book.record(run, entry(recorded(), states.unwritten()))

        seconds = interleave({"plain": plain, "recorded": play}, repetitions)
        book.flush()
    median, best = ratios(seconds["recorded"], seconds["plain"])
    return {
        "job": model, "runtime": "serial", "method": "scaffold + ledger", "floor": "scaffold",
        "s/round": min(seconds["recorded"]), "floor s": min(seconds["plain"]), "median ratio": median,
        "best ratio": best, "at most": 1.05, "cpu ratio": "",
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="lenet-plain,lenet,mlp")
    parser.add_argument("--runtime", choices=["serial", "processes", "both"], default="both")
    parser.add_argument("--repetitions", type=int, default=10)
    arguments = parser.parse_args()
    on = machine()
    models = arguments.models.split(",")
    found: list[dict[str, Any]] = []
    if arguments.runtime != "processes":
        found += [row for model in models for row in serial(model, arguments.repetitions)]
        found.append(ledger(models[0], arguments.repetitions))
    if arguments.runtime != "serial":
        found += [row for model in models for row in processes(model, arguments.repetitions)]
    write("floor", "Time per round over the floor of bare PyTorch", found, on)
