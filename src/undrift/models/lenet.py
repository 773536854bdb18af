"""LeNet-5, once in plain layers and once rewritten for CPUs with the same parameters and the same numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.models.spec import Classifier, ModelSpec


def _pooled(side: int) -> int:
    """The side of the map after conv 5x5 (pad 2), pool, conv 5x5, pool."""
    return (side // 2 - 4) // 2


class LeNet(Classifier):
    """conv 5x5 (6, pad 2), pool, conv 5x5 (16), pool, conv over the whole map (120), 84, classes; ReLU throughout."""

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        window = (_pooled(height), _pooled(width))
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, window)
        self.fc = nn.Linear(120, 84)
        self.head = nn.Linear(84, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.conv3(x)).flatten(1)
        return torch.relu(self.fc(x))


class LeNetPlain(ModelSpec):
    """LeNet-5 in plain PyTorch layers."""

    name = "lenet-plain"
    title = "LeNet-5, plain layers"
    paper = "FedTrip, pFedMo, FedTR"
    example = ((1, 28, 28), 10)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return LeNet(*self.image(shape, 12), classes)


class LeNetFast(ModelSpec):
    """LeNet-5 with exact CPU rewrites."""

    name = "lenet"
    title = "LeNet-5"
    paper = "FedTrip, pFedMo, FedTR"
    example = ((1, 28, 28), 10)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return LeNet(*self.image(shape, 12), classes)
