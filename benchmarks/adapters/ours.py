"""undrift, with the runtime that it picks itself, or another."""

from __future__ import annotations

import numpy as np
import torch.nn.functional as F
from jobs import JOBS, Clock, arguments, data, mode, model

from undrift.algorithms import create
from undrift.core.federation import Federation
from undrift.core.loop import Loop
from undrift.core.training import Training
from undrift.models import build
from undrift.runtimes import create as create_runtime

if __name__ == "__main__":
    job, rounds = arguments()
    chosen = JOBS[job]
    x, y = data(job)
    federation = Federation(
        module=build("lenet", (1, 28, 28), 10) if job == "lenet" else model(job),
        loss=F.cross_entropy,
        x=x,
        y=y,
        indices=np.arange(len(x)),
        offsets=np.arange(0, len(x) + 1, int(chosen["samples"])),
        training=Training(lr=chosen["lr"], momentum=chosen["momentum"], batch_size=int(chosen["batch"]), epochs=1),
    )
    clock = Clock()
    with create_runtime(mode(), federation) as runtime:
        loop = Loop(federation, create("fedavg"), runtime, int(chosen["participate"]))
        snapshot = loop.start()
        for _ in range(rounds):
            done = loop.play(snapshot)
            snapshot = done.snapshot
            clock.tick(0 if done.skipped else done.cohort.size)
