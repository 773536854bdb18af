"""No library: a hand-written loop over the participants on one core, without sampling or averaging."""

from __future__ import annotations

import torch
from jobs import JOBS, Clock, arguments, data, model, train

if __name__ == "__main__":
    job, rounds = arguments()
    torch.set_num_threads(1)
    net, (x, y), n = model(job), data(job), int(JOBS[job]["samples"])
    clock = Clock()
    for _ in range(rounds):
        for i in range(int(JOBS[job]["participate"])):
            train(net, x[i * n : (i + 1) * n], y[i * n : (i + 1) * n], job)
        clock.tick(int(JOBS[job]["participate"]))
