"""No library: two processes, each looping over half of the participants, without sampling or averaging."""

from __future__ import annotations

import multiprocessing
from multiprocessing.synchronize import Barrier

import torch
from jobs import JOBS, Clock, arguments, data, model, train

PROCESSES = 2


def work(job: str, rounds: int, first: int, over: Barrier) -> None:
    net, (x, y), n = model(job), data(job), int(JOBS[job]["samples"])
    for _ in range(rounds):
        for i in range(first, int(JOBS[job]["participate"]), PROCESSES):
            train(net, x[i * n : (i + 1) * n], y[i * n : (i + 1) * n], job)
        over.wait()


if __name__ == "__main__":
    job, rounds = arguments()
    torch.set_num_threads(1)  # before the data, so that no thread is lost in the fork
    data(job)
    fork = multiprocessing.get_context("fork")
    over = fork.Barrier(PROCESSES + 1)
    processes = [fork.Process(target=work, args=(job, rounds, first, over)) for first in range(PROCESSES)]
    for process in processes:
        process.start()
    clock = Clock()
    for _ in range(rounds):
        over.wait()
        clock.tick(int(JOBS[job]["participate"]))
    for process in processes:
        process.join()
