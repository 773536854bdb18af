"""What a client and a megabyte cost the driver of a cluster: the constants of docs/scale.md, on one core each.

Overhead of a client: next to no work, a model of next to no size. Per megabyte of a reply: fetching it from the object
store of its own machine, the copy out of it and the check at the door, the reduction, the norms of the drift, and the
model that a round leaves in the ledger.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cluster import cluster
from common import Player, federation, machine, write

import undrift.runtimes.ray as on_ray
from undrift.algorithms import create
from undrift.core.reduce import Reduction, reach
from undrift.core.training import Training
from undrift.ledger.rows import Entry, RoundRow
from undrift.ledger.store import Ledger
from undrift.runtimes.raytask import tensors_of

SIZES = (1, 10, 100)  # megabytes


def best(work: Callable[[], Any], repetitions: int = 7) -> float:
    seconds = []
    for _ in range(repetitions):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def reply(size: int) -> dict[str, Any]:
    """Milliseconds for each megabyte of one reply, at the driver."""
    values = torch.randn(size * 250_000)
    arrays = {"x": values.numpy()}
    up = create("fedavg").records()["up"]
    total = Reduction(up)  # type: ignore[arg-type]
    total.add(up(values), 1.0)  # type: ignore[arg-type]
    work = {
        "copy": lambda: tensors_of(arrays, "cpu"),
        "check": lambda: reach(values),
        "reduction": lambda: total.add(up(values), 0.7),  # type: ignore[arg-type]
        "fetch": fetched(size),
    }
    return {"MB": size} | {f"{name}, ms/MB": 1e3 * best(each) / size for name, each in work.items()}


def fetched(size: int) -> Callable[[], Any]:
    """A reply from a worker of this machine into the driver's hands, where the worker has to write it first."""
    import ray

    def make(count: int) -> Any:
        return np.ones(count, np.float32)

    task = ray.remote(num_cpus=1)(make)
    ray.get(task.remote(1))
    return lambda: ray.get(task.remote(size * 250_000))


def written(size: int) -> float:
    """Milliseconds for each megabyte of the server's model in the ledger."""
    from undrift.core.records import State

    method = create("fedavg")
    kind: type[State] = method.records()["server"]  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "ledger.sqlite", create=True) as book:
        run, at = book.add("it", {}, {}), iter(range(1, 100))
        values = torch.randn(size * 250_000)

        def record() -> None:
            book.record(run, Entry(RoundRow(next(at)), server=kind(values)))
            book.flush()

        return 1e3 * best(record, 5) / size


def per_client(count: int = 1000) -> float:
    """Milliseconds of a client that has next to nothing to do, with a model of 31 KB."""
    job = federation("logistic", count, 1, Training(lr=0.01, batch_size=1, steps=1))
    with on_ray.Ray(job) as runtime:
        player = Player(job, "fedavg", runtime, count)
        player()
        player()
        return 1e3 * best(player, 5) / count


if __name__ == "__main__":
    torch.set_num_threads(1)
    on = machine()
    with cluster(1):
        rows = [reply(size) | {"ledger, ms/MB": written(size)} for size in SIZES]
        rows[0]["a client, ms"] = per_client()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    write("costs", "What a client and a megabyte cost", [{c: row.get(c, "") for c in columns} for row in rows], on)
