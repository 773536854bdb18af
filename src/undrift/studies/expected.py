"""How long a table would take on this machine: local steps times the time of one, measured with random numbers.

An estimate of the order of magnitude, made without the data: the engine's own work is not in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from undrift.algorithms.parts.budget import Budgeted
from undrift.core.vector import Layout, layout_of
from undrift.experiment.description import Experiment
from undrift.experiment.limit import TIME, Limit
from undrift.models import build
from undrift.papers import Table

SIZES: dict[str, tuple[tuple[int, ...], int, int, int]] = {  # shape, classes, training samples, test samples
    "mnist": ((1, 28, 28), 10, 60_000, 10_000),
    "fashion": ((1, 28, 28), 10, 60_000, 10_000),
    "emnist": ((1, 28, 28), 47, 112_800, 18_800),
    "cifar10": ((3, 32, 32), 10, 50_000, 10_000),
    "cifar100": ((3, 32, 32), 100, 50_000, 10_000),
    "tinyimagenet": ((3, 64, 64), 200, 100_000, 10_000),
    "ucihar": ((561,), 6, 7_352, 2_947),
    "pamap2": ((36, 512), 12, 9_600, 2_400),
    "covidx": ((1, 64, 64), 2, 640, 160),
    "organamnist": ((1, 28, 28), 11, 41_000, 17_800),
    "organcmnist": ((1, 28, 28), 11, 15_400, 8_300),
    "organsmnist": ((1, 28, 28), 11, 16_400, 8_800),
}
GLANCE = 1024  # test samples at a time
LONG = 0.03  # seconds from which on work is proportional to the samples


def seconds(table: Table, seeds: int, workers: int) -> float:
    """Of all runs of a table, so many at a time."""
    runs = {table.key(m, c): table.experiment(m, c, seed=1) for c in table.columns for m in table.methods}
    return seeds * sum(_run(values) for values in runs.values()) / max(1, min(workers, seeds * len(runs)))


def _run(values: dict[str, Any]) -> float:
    experiment = Experiment.build(values)
    plan, train = experiment.plan, experiment.train
    shape, classes, total, test = SIZES[experiment.data.name]
    clients = plan.clients or 10
    n = int(values["partition"].get("samples", math.ceil(total / clients)))
    batch = min(train.per_step or n, n)
    classes = 2 if values["data"].get("labels") == "parity" else classes
    step, glance, layout = _timed(_hashable(values["model"]), shape, classes, batch)
    claims = experiment.algorithm.claims(train, layout, n, classes)
    passes = train.steps_for(n) * batch
    more = 1 + max(0, claims["gradients"] + claims["forwards"] / 3) / passes  # a forward pass is a third of both
    local = (plan.participate or clients) * train.steps_for(n) * more * step
    rounds = min(plan.rounds, _fitting(Limit.parse(plan.limit).amounts.get(TIME, math.inf), train.steps_for(n)))
    return rounds * (local + (test + total * plan.eval_training) / GLANCE * glance / plan.eval_every)


def _fitting(time: float, steps: int) -> float:
    """How many rounds of so many steps fit a simulated time."""
    usual = Budgeted()
    return time / (usual.step_cost[0] * steps + usual.round_cost[0])


def _hashable(section: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(section.items()))


@cache
def _timed(
    model: tuple[tuple[str, Any], ...], shape: tuple[int, ...], classes: int, batch: int
) -> tuple[float, float, Layout]:
    """Seconds of a local step and of a pass over some test samples, on one core; and what the model is made of."""
    settings = dict(model)
    module = build(settings.pop("name"), shape, classes, **settings)
    parameters = list(module.parameters())

    def step(samples: int) -> None:
        loss = torch.nn.functional.cross_entropy(module(torch.zeros(samples, *shape)), torch.zeros(samples).long())
        torch.autograd.grad(loss, parameters)

    def glance(samples: int) -> None:
        with torch.no_grad():
            module(torch.zeros(samples, *shape))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _took(step, batch), _took(glance, GLANCE), layout_of(module, torch.zeros(1, *shape))
    finally:
        torch.set_num_threads(threads)


def _took(work: Callable[[int], None], samples: int) -> float:
    """Seconds for so many samples: the faster of two tries, and of a part of them where that takes long already."""
    part = 2
    while True:
        tries = []
        for _ in range(2):
            began = time.perf_counter()
            work(part)
            tries.append(time.perf_counter() - began)
        if part >= samples or min(tries) > LONG:
            return min(tries) * samples / part
        part = min(4 * part, samples)
