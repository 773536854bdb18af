"""LeNet-5, once in plain layers and once rewritten for CPUs with the same parameters and the same numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.core.errors import InvalidInput
from undrift.models.layers import FastConv2d
from undrift.models.spec import Classifier, ModelSpec


class LeNet(Classifier):
    """conv 5x5 (6), pool, conv 5x5 (16), pool, conv over the whole map left (120), 84, classes; ReLU throughout.

    The input of the original is 32 x 32; smaller ones are padded by 2, so that 28 x 28 leaves the same 5 x 5 map.
    """

    convolution: type[nn.Conv2d] = nn.Conv2d

    def __init__(self, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        pad = 2 if min(height, width) < 32 else 0
        left = [((side + 2 * pad - 4) // 2 - 4) // 2 for side in (height, width)]
        self.conv1 = self.convolution(channels, 6, 5, padding=pad)
        self.conv2 = self.convolution(6, 16, 5)
        self.conv3 = nn.Conv2d(16, 120, (left[0], left[1]))
        self.fc = nn.Linear(120, 84)
        self.head = nn.Linear(84, classes)

    def features(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = F.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.conv3(x)).flatten(1)
        return torch.relu(self.fc(x))


class FastLeNet(LeNet):
    """The same function of the same parameters, with three exact rewrites that pay on a CPU.

    Convolutions run in channels-last layout; pooling comes before the ReLU, which commutes with a maximum and then has
    a quarter of the work; and the convolution over the whole map is the matrix product that it is.
    """

    convolution = FastConv2d

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu(F.max_pool2d(self.conv1(x), 2))
        x = torch.relu(F.max_pool2d(self.conv2(x), 2))
        x = torch.relu(F.linear(x.flatten(1), self.conv3.weight.flatten(1), self.conv3.bias))
        return torch.relu(self.fc(x))


class HarLeNet(FastLeNet):
    """LeNet-5 on a feature vector, zero-padded to a square picture (561 features: 576 = 24 x 24)."""

    def __init__(self, inputs: int, classes: int) -> None:
        side = 1
        while side * side < inputs:
            side += 1
        side += side % 2
        super().__init__(1, side, side, classes)
        self.side = side

    def features(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, self.side**2 - x.shape[1]))
        return super().features(x.reshape(-1, 1, self.side, self.side))


class LeNetFast(ModelSpec):
    """LeNet-5 with exact CPU rewrites."""

    name = "lenet"
    title = "LeNet-5"
    paper = "FedTrip (CNN), pFedMo, FedTR"
    example = ((1, 28, 28), 10)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return FastLeNet(*self.image(shape, 12), classes)


class LeNetPlain(ModelSpec):
    """LeNet-5 in plain PyTorch layers: the same parameters and numbers, for comparison."""

    name = "lenet-plain"
    title = "LeNet-5, plain layers"
    paper = "FedTrip (CNN), pFedMo, FedTR"
    example = ((1, 28, 28), 10)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return LeNet(*self.image(shape, 12), classes)


class LeNetHar(ModelSpec):
    """LeNet-5 for the 561 features of UCI-HAR, as a picture of 24 x 24."""

    name = "lenet-har"
    title = "LeNet-5 on feature vectors"
    paper = "pFedMo"
    example = ((561,), 6)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 1 or shape[0] < 122:
            raise InvalidInput(
                f"model {self.name}: it needs vectors of at least 122 features, the data has inputs of shape {shape}"
            )
        return HarLeNet(shape[0], classes)
