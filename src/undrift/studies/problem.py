"""Small problems to try methods on: six uneven clients with skewed classes, and a little public data."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core import rng
from undrift.core.federation import Federation
from undrift.core.training import Training
from undrift.core.vector import Replica

SIZES = (8, 12, 16, 20, 24, 16)  # all divisible by the batch size
CLASSES, INPUTS, HIDDEN = 3, 12, 8
TRAINING = {"lr": 0.05, "batch_size": 4, "epochs": 2, "weight_decay": 1e-3}


class Network(nn.Module):
    """One hidden layer."""

    def __init__(self, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(inputs, hidden), nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        return torch.tanh(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(x))
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "network": lambda: Network(INPUTS, HIDDEN, CLASSES),
    "logistic": lambda: nn.Linear(INPUTS, CLASSES),
}


@functools.cache
def _data() -> tuple[Tensor, Tensor]:
    draw = rng.generator(11, "conformance")
    y = np.concatenate([draw.choice(CLASSES, n, p=np.roll([0.8, 0.15, 0.05], i)) for i, n in enumerate(SIZES)])
    y = np.concatenate([y, np.tile(np.arange(CLASSES), 8)])  # the server's own
    x = draw.normal(size=(CLASSES, INPUTS))[y] + draw.normal(size=(len(y), INPUTS))
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def federation(kind: str = "network", **training: Any) -> Federation:
    """A problem by the name of its model, with the usual training settings unless others are given."""
    x, y = _data()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = MODELS[kind]()
    total = sum(SIZES)
    return Federation(
        module=module,
        loss=nn.functional.cross_entropy,
        x=x,
        y=y,
        indices=np.arange(total),
        offsets=np.concatenate([[0], np.cumsum(SIZES)]),
        training=Training.create(**TRAINING | training),
        seed=5,
        public=np.arange(total, total + 12),
        scoring=np.arange(total + 12, total + 24),
    )


def loss(problem: Federation, w: Tensor, client: int | None = None) -> float:
    """The mean training loss of a model, on everybody's data or on one client's."""
    rows = problem.rows(client) if client is not None else torch.arange(int(problem.offsets[-1]))
    replica = Replica(problem.module, problem.layout)
    replica.flat.copy_(w)
    with torch.no_grad():
        return float(problem.loss(replica.module(problem.x[rows]), problem.y[rows]))
