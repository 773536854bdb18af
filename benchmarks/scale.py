"""Does it scale? Memory and time per round against the size of the population, participants and local steps.

* SCAFFOLD on the MLP 784-100-10 with 100 participants: every client keeps 318 KB, in the ledger. Peak memory of all
  processes, in the first and in the second half, and the time per round, for populations of 1,000 to 100,000 over the
  same number of rounds (each writes 32 MB, so that longer runs meet a busier disk).
* FedAvg with 1,000,000 clients: sampling and bookkeeping of a round, with clients that answer at once.
* Slopes: time per round against participants and against local steps, as the exponent of a power law (1 is linear).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from common import Player, entry, federation, machine, write

from undrift.algorithms import create
from undrift.core.federation import Federation
from undrift.core.loop import Loop
from undrift.core.reduce import Block
from undrift.core.runtime import Runtime, Task
from undrift.core.spent import Spent
from undrift.core.training import Training
from undrift.ledger.states import LedgerStates
from undrift.ledger.store import Ledger
from undrift.runtimes.processes import Processes
from undrift.runtimes.serial import Serial

TRAINING = Training(lr=0.01, momentum=0.0, batch_size=10, epochs=1)


def population(size: int, samples: int = 20, model: str = "mlp") -> Federation:
    """Many clients over few samples: the data are shared, so that only what clients keep grows."""
    small = federation(model, 10, 600, TRAINING)
    draw = np.random.default_rng(0)
    return Federation(
        module=small.module, loss=small.loss, x=small.x, y=small.y, training=TRAINING, seed=0,
        indices=draw.integers(0, len(small.x), size * samples), offsets=np.arange(0, size * samples + 1, samples),
    )  # fmt: skip


def memory() -> float:
    """Resident megabytes of this process and all below it; what they share is counted once (PSS)."""
    me = psutil.Process()
    return sum(p.memory_full_info().pss for p in [me, *me.children(recursive=True)]) / 2**20


def kept_state(size: int, rounds: int, participate: int = 100) -> dict[str, Any]:
    job = population(size)
    method = create("scaffold")
    seconds, used = [], []
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.db", create=True) as ledger:
        run = ledger.add("scale", {"algorithm": {"name": "scaffold"}}, {})
        states = LedgerStates(ledger, run, method.records()["client"])  # type: ignore[arg-type]
        with Processes(job) as runtime:
            loop = Loop(job, method, runtime, participate)
            runtime.states = states
            snapshot = loop.start()
            for _ in range(rounds):
                began = time.perf_counter()
                played = loop.play(snapshot)
                snapshot = played.snapshot
                ledger.record(run, entry(played, states.unwritten()))
                seconds.append(time.perf_counter() - began)
                if snapshot.round % 5 == 0:
                    used.append(memory())
            ledger.flush()
    half = len(used) // 2
    return {
        "what": "scaffold, mlp, 100 per round", "population": size, "rounds": rounds,
        "s/round (median)": statistics.median(seconds[2:]), "peak MB, first half": max(used[:half]),
        "peak MB, second half": max(used[half:]), "at most": "2048 MB, flat",
    }  # fmt: skip


class Echo(Runtime):
    """Clients that answer at once with what they got: what is left is bookkeeping."""

    name = "echo"

    def __init__(self, job: Federation) -> None:
        super().__init__(job)

    def replies(self, task: Task) -> Iterator[Block]:
        ids = task.cohort.ids
        rows = task.down.x.expand(len(ids), -1)  # type: ignore[attr-defined]
        samples = self.federation.population.samples[ids]
        spent = [Spent() for _ in ids]
        up = task.method.records()["up"](rows)
        yield Block(ids, task.cohort.round, up, None, samples, samples, spent, {}, finite=True)


def bookkeeping(size: int) -> dict[str, Any]:
    job = population(size, samples=2, model="logistic")
    player = Player(job, "fedavg", Echo(job), 100)
    player()
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        player()
        seconds.append(time.perf_counter() - began)
    return {
        "what": "fedavg, sampling and bookkeeping", "population": size, "rounds": 20,
        "s/round (median)": statistics.median(seconds), "at most": "0.010 s" if size == 1_000_000 else "",
    }  # fmt: skip


def slope(what: str, values: list[int]) -> dict[str, Any]:
    seconds = []
    for value in values:
        steps = value if what == "local steps" else 12
        job = federation("mlp", 100, 600, Training(lr=0.01, momentum=0.9, batch_size=50, steps=steps))
        player = Player(job, "fedavg", Serial(job), value if what == "participants" else 10)
        player()
        runs = []
        for _ in range(5):
            began = time.perf_counter()
            player()
            runs.append(time.perf_counter() - began)
        seconds.append(min(runs))
    exponent = float(np.polyfit(np.log(values), np.log(seconds), 1)[0])
    per_unit = float(np.polyfit(values, seconds, 1)[0])
    return {
        "what": f"s/round against {what} {values}", "s/round (median)": [round(s, 4) for s in seconds],
        "slope": f"{per_unit * 1e3:.3g} ms each, exponent {exponent:.3f}", "at most": "linear (1)",
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    on = machine()
    rows = [slope("participants", [5, 10, 20, 40]), slope("local steps", [6, 12, 24, 48])]
    rows += [bookkeeping(size) for size in (10_000, 1_000_000)]
    rows += [kept_state(size, arguments.rounds) for size in (1_000, 10_000, 100_000)]
    columns = ["what", "population", "rounds", "s/round (median)", "peak MB, first half", "peak MB, second half"]
    columns += ["slope", "at most"]
    write("scale", "Cost against size", [{name: row.get(name, "") for name in columns} for row in rows], on)
