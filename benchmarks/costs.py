"""What a client and a megabyte cost the driver of a cluster: the constants of docs/scale.md.

A client: next to no work and next to no model. A megabyte of a reply, step by step (copied out of the object store,
checked at the door, added to the sum) and altogether: the driver's processor time for a round, divided by clients and
megabytes. A megabyte of the model in the ledger: written once a round, however many clients there are.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from cluster import cluster
from common import Player, entry, federation, machine, write

import undrift.runtimes.ray as on_ray
from undrift.algorithms import create
from undrift.core.federation import Federation
from undrift.core.reduce import Reduction, reach
from undrift.core.training import Training
from undrift.ledger.store import Ledger
from undrift.runtimes.raytask import tensors_of

CLIENTS = {1: 64, 10: 16, 100: 4}  # a round, by the model's megabytes
WIDTH = 315  # hidden units of the MLP for each megabyte
TINY = Training(lr=0.01, batch_size=1, steps=1)


def median(work: Callable[[], Any], clock: Callable[[], float] = time.perf_counter, repetitions: int = 7) -> float:
    """Milliseconds."""
    found = []
    for _ in range(repetitions):
        began = clock()
        work()
        found.append(clock() - began)
    return 1e3 * statistics.median(found)


def steps(size: int) -> dict[str, float]:
    """Milliseconds for each megabyte of one reply, by what the driver does with it."""
    values = torch.randn(size * 250_000)
    arrays, up = {"x": values.numpy()}, create("fedavg").records()["up"]
    total = Reduction(up)  # type: ignore[arg-type]
    total.add(up(values), 1.0)  # type: ignore[arg-type]
    work: dict[str, Callable[[], Any]] = {
        "copy": lambda: tensors_of(arrays, "cpu"),
        "check": lambda: reach(values),
        "reduction": lambda: total.add(up(values), 0.7),  # type: ignore[arg-type]
    }
    return {f"{name}, ms/MB": median(each) / size for name, each in work.items()}


def a_round(size: int) -> dict[str, float]:
    """The same of a whole round, over the cluster; and what the ledger takes for the model."""
    count = CLIENTS[size]
    job = federation("mlp", count, 1, TINY, hidden=WIDTH * size)
    with on_ray.Ray(job) as runtime:
        player = Player(job, "fedavg", runtime, count)
        player()
        player()
        driver = median(player, time.process_time, 5) / count / size
        return {"driver, ms/MB": driver, "ledger, ms/MB": written(player) / size}


def written(player: Player) -> float:
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.sqlite", create=True) as book:
        run = book.add("it", {}, {})

        def record(played: Any) -> float:
            began = time.perf_counter()
            book.record(run, entry(played, {}))
            book.flush()
            return time.perf_counter() - began

        return 1e3 * statistics.median([record(player()) for _ in range(3)])


def a_client(count: int = 1000) -> dict[str, float]:
    """Milliseconds of a client with next to nothing to do and a model of 31 KB: of the round, and of the driver."""
    job: Federation = federation("logistic", count, 1, TINY)
    with on_ray.Ray(job) as runtime:
        player = Player(job, "fedavg", runtime, count)
        player()
        player()
        busy = median(player, time.process_time, 5) / count
        return {"a client, ms": median(player, repetitions=5) / count, "of the driver, ms": busy}


if __name__ == "__main__":
    torch.set_num_threads(1)
    on = machine()
    with cluster(1):
        rows: list[dict[str, Any]] = [{"MB": size, **steps(size), **a_round(size)} for size in CLIENTS]
        rows[0] |= a_client()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write("costs", "What a client and a megabyte cost", [{c: row.get(c, "") for c in columns} for row in rows], on)
