"""What sums on the workers save the driver of a cluster, and what they cost: the last table of docs/scale.md.

A round in which clients have next to nothing to do, one by one and with so many added up in a task: the driver's
processor time, and the whole round. Ratios in one run.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from cluster import cluster
from common import Player, federation, interleave, machine, write
from costs import TINY, WIDTH, median

import undrift.runtimes.ray as on_ray
from undrift.runtimes.raysum import Sums

JOBS = {1: 512, 10: 64}  # clients a round, by the model's megabytes
TOGETHER = (8, 32)


def rows(size: int, repetitions: int) -> list[dict[str, Any]]:
    count = JOBS[size]
    job = federation("mlp", count, 1, TINY, hidden=WIDTH * size)
    with on_ray.Ray(job) as usual:
        players = {0: Player(job, "fedavg", usual, count)}
        players |= {n: Player(job, "fedavg", Sums(job, n), count) for n in TOGETHER}
        elapsed = interleave(players, repetitions, warmup=2)
        busy = {n: median(player, time.process_time, repetitions) / count for n, player in players.items()}
    return [
        {
            "MB": size, "clients": count, "added up together": n or "none", "driver, ms a client": busy[n],
            "times less": busy[0] / busy[n], "a round, s": min(elapsed[n]),
            "of the round one by one": min(elapsed[n]) / min(elapsed[0]),
        }
        for n in players
    ]  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=5)
    count = parser.parse_args().repetitions
    torch.set_num_threads(1)
    on = machine()
    with cluster(1):
        found = [row for size in JOBS for row in rows(size, count)]
    write("sums", "Sums on the workers of a cluster", found, on)
