"""Many small clients: 1,000 clients x 60 samples, logistic regression 784-10, batch 10, one epoch.

``batched`` against ``serial``, 100 and 1,000 clients per round, and against the bare PyTorch loop split perfectly over
the cores. Processor time is given too: on a machine that others use it says more than the clock.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

from common import Player, federation, interleave, machine, ratios, write
from floor import Bare

from undrift.core.training import Training
from undrift.runtimes.batched import Batched
from undrift.runtimes.serial import Serial

TRAINING = Training(lr=0.01, momentum=0.0, batch_size=10, epochs=1)
TARGETS = {100: 8.0, 1000: 12.0}


def measure(method: str, participate: int, repetitions: int) -> dict[str, Any]:
    job = federation("logistic", 1000, 60, TRAINING)
    bare = Bare(job, participate)
    players = {"serial": Player(job, method, Serial(job), participate)}
    players["batched"] = Player(job, method, Batched(job), participate)
    seconds = interleave({**players, "bare": bare}, repetitions, warmup=2, rounds=500 // participate or 2)
    cpu = {}
    for name, player in players.items():
        began = time.process_time()
        for _ in range(3):
            player()
        cpu[name] = (time.process_time() - began) / 3
    cores = len(os.sched_getaffinity(0))
    median, best = ratios(seconds["serial"], seconds["batched"])
    return {
        "method": method, "clients per round": participate, "serial s": min(seconds["serial"]),
        "batched s": min(seconds["batched"]), "times faster (median)": median, "(best)": best,
        "at least": TARGETS[participate] if method == "fedavg" else "",
        f"bare / {cores} cores s": min(seconds["bare"]) / cores,
        "times faster than bare": min(seconds["bare"]) / cores / min(seconds["batched"]),
        "serial cpu s": cpu["serial"], "batched cpu s": cpu["batched"],
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="fedavg,scaffold")
    parser.add_argument("--repetitions", type=int, default=12)
    arguments = parser.parse_args()
    on = machine()
    rows = [
        measure(
            method, participate, arguments.repetitions if participate < 1000 else max(3, arguments.repetitions // 3)
        )
        for method in arguments.methods.split(",")
        for participate in TARGETS
    ]
    write("crossdevice", "Many small clients: batched against serial", rows, on)
