"""The jobs as every library gets them: data, model and settings in plain PyTorch, and the clock of the rounds."""

from __future__ import annotations

import functools
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

JOBS = {
    "lenet": {"clients": 100, "samples": 600, "participate": 10, "batch": 50, "lr": 0.01, "momentum": 0.9},
    "logistic": {"clients": 1000, "samples": 60, "participate": 100, "batch": 10, "lr": 0.01, "momentum": 0.0},
}


class LeNet(nn.Module):
    """LeNet-5 with 61,706 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.conv3, self.fc, self.head = nn.Conv2d(16, 120, 5), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        return self.head(torch.relu(self.fc(torch.relu(self.conv3(x)).flatten(1))))


def model(job: str) -> nn.Module:
    torch.manual_seed(0)
    return LeNet() if job == "lenet" else nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


@functools.cache  # once per process: libraries ask again for every client
def data(job: str) -> tuple[Tensor, Tensor]:
    """All clients' samples; client i holds the i-th stretch."""
    chosen = JOBS[job]
    generator = torch.Generator().manual_seed(0)
    total = int(chosen["clients"] * chosen["samples"])
    return torch.randn(total, 1, 28, 28, generator=generator), torch.randint(0, 10, (total,), generator=generator)


def train(net: nn.Module, x: Tensor, y: Tensor, job: str) -> None:
    """One epoch of a client, written by hand: what a user of a library without a trainer would write."""
    chosen = JOBS[job]
    optimiser = torch.optim.SGD(net.parameters(), lr=chosen["lr"], momentum=chosen["momentum"])
    net.train()
    for rows in torch.randperm(len(x)).split(int(chosen["batch"])):
        optimiser.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()


class Clock:
    """Writes when each round ended and how many clients had trained in it, for the process that started this one."""

    def tick(self, trained: int) -> None:
        print("TICK", json.dumps([time.time(), trained]), flush=True)


def arguments() -> tuple[str, int]:
    """The job and the number of rounds."""
    return sys.argv[1], int(sys.argv[2])


def mode() -> str:
    """Which of its ways to run a library should take, where it has several."""
    return sys.argv[3] if len(sys.argv) > 3 else ""
