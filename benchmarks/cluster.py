"""Ray against worker processes on this machine: many small clients, LeNet, one node or two, and what a client costs.

Ratios of rounds measured in turn, in one run. On one machine Ray cannot be faster: the question is what it costs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common import Player, federation, interleave, machine, ratios, write

import undrift.runtimes.ray as on_ray
from undrift.core.federation import Federation
from undrift.core.training import Training
from undrift.runtimes.processes import Processes

SMALL = Training(lr=0.01, momentum=0.0, batch_size=10, epochs=1)
CORES = len(os.sched_getaffinity(0))
TARGETS = {"100 small clients": 1.3, "LeNet, 8 clients": 1.15, "two nodes against one": 1.1}


@contextmanager
def cluster(nodes: int) -> Iterator[None]:
    """Local nodes with all cores of this machine between them."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": CORES // nodes, "include_dashboard": False})
    for _ in range(nodes - 1):
        made.add_node(num_cpus=CORES // nodes)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()
        made.shutdown()


def against_processes(name: str, job: Federation, participate: int, repetitions: int, rounds: int) -> dict[str, Any]:
    with Processes(job, CORES) as processes, on_ray.Ray(job) as ray:
        players = {
            "processes": Player(job, "fedavg", processes, participate),
            "ray": Player(job, "fedavg", ray, participate),
        }
        seconds = interleave(players, repetitions, warmup=4, rounds=rounds)
    return row(name, "processes", seconds["processes"], "ray", seconds["ray"])


def row(job: str, base: str, theirs: list[float], other: str, ours: list[float]) -> dict[str, Any]:
    median, best = ratios(ours, theirs)
    return {
        "job": job, "against": base, "its s a round": min(theirs), "ray": other, "s a round": min(ours),
        "ratio (median)": median, "(best)": best, "at most": TARGETS[job],
    }  # fmt: skip


def overhead(repetitions: int) -> dict[str, Any]:
    """1,000 clients a round, 250 KB each way, next to no work: what a client costs."""
    job = federation("mlp", 1000, 1, Training(lr=0.01, batch_size=1, steps=1), hidden=78)
    with on_ray.Ray(job) as ray:
        player = Player(job, "fedavg", ray, 1000)
        seconds = interleave({"ray": player}, repetitions, warmup=2)["ray"]
        sent = job.start()[0].nbytes
    return {
        "job": f"1,000 clients, {sent // 1000} KB each way, next to no work", "s a round": min(seconds),
        "ms a client": min(seconds), "at most": "5 ms a client",
    }  # fmt: skip


def rounds_of(nodes: int, repetitions: int) -> list[float]:
    job = federation("lenet", 8, 100, SMALL)
    with cluster(nodes), on_ray.Ray(job) as ray:
        return interleave({"ray": Player(job, "fedavg", ray, 8)}, repetitions, warmup=4, rounds=3)["ray"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10)
    count = parser.parse_args().repetitions
    on = machine()
    with cluster(1):
        rows = [
            against_processes("100 small clients", federation("logistic", 1000, 20, SMALL), 100, count, 5),
            against_processes("LeNet, 8 clients", federation("lenet", 8, 100, SMALL), 8, count, 3),
        ]
        costs = [overhead(max(3, count // 3))]
    rows.append(row("two nodes against one", "one node", rounds_of(1, count), "two nodes", rounds_of(2, count)))
    columns = list(dict.fromkeys(key for found in [*rows, *costs] for key in found))
    write("cluster", "Ray on one machine", [{c: found.get(c, "") for c in columns} for found in [*rows, *costs]], on)
