"""The papers' other convolutional networks: FedTrip's AlexNet, FedADM's CNN, VGG-16, FireNet, COVID-Net, a 1-D CNN."""

from __future__ import annotations

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.core.errors import InvalidInput
from undrift.core.settings import at_least, between
from undrift.models.layers import FastConv2d, GlobalMean
from undrift.models.spec import Classifier, ModelSpec

Rate = Annotated[float, "dropout rate", between(0, 1, open_high=True)]


class Layers(Classifier):
    """A chain of layers and a head."""

    def __init__(self, body: nn.Sequential, width: int, classes: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, classes)

    def features(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


def _conv(a: int, b: int, kernel: int, padding: int) -> list[nn.Module]:
    return [nn.Conv2d(a, b, kernel, padding=padding), nn.ReLU()]


class AlexNet(ModelSpec):
    """FedTrip's "AlexNet": five convolutions, global average pool, 1024."""

    name = "alexnet"
    title = "AlexNet of FedTrip"
    paper = "FedTrip"
    example = ((3, 32, 32), 10)
    dropout: Rate = 0.5

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = self.image(shape, 17)
        body = nn.Sequential(
            *_conv(channels, 64, 7, 2),
            nn.MaxPool2d(3, 2),
            *_conv(64, 192, 5, 2),
            nn.MaxPool2d(3, 2),
            *_conv(192, 384, 3, 1),
            *_conv(384, 256, 3, 1),
            *_conv(256, 256, 3, 1),
            GlobalMean(),
            nn.Dropout(self.dropout),
            nn.Linear(256, 1024),
            nn.ReLU(),
            nn.Dropout(self.dropout),
        )
        return Layers(body, 1024, classes)


class FedADMCNN(ModelSpec):
    """The CNN of FedADM and Wang et al.: conv 5x5 (32), pool, normalise, conv 5x5 (32), normalise, pool, 256."""

    name = "fedadm-cnn"
    title = "CNN of FedADM"
    paper = "FedADM; Wang et al., JSAC 2019"
    example = ((1, 28, 28), 10)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = self.image(shape, 4)
        # The published TensorFlow code sums over 4 neighbours on each side; torch divides alpha by the window.
        body = nn.Sequential(
            *_conv(channels, 32, 5, 2),
            nn.MaxPool2d(2),
            nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0),
            *_conv(32, 32, 5, 2),
            nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 256),
            nn.ReLU(),
        )
        return Layers(body, 256, classes)


class McMahanCNN(ModelSpec):
    """The CNN of the paper that named federated learning: conv 5x5 (32), pool, conv 5x5 (64), pool, 512."""

    name = "mcmahan-cnn"
    title = "CNN of McMahan et al."
    paper = "McMahan et al., AISTATS 2017"
    example = ((1, 28, 28), 10)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = self.image(shape, 4)
        body = nn.Sequential(
            *_conv(channels, 32, 5, 2),
            nn.MaxPool2d(2),
            *_conv(32, 64, 5, 2),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * (height // 4) * (width // 4), 512),
            nn.ReLU(),
        )
        return Layers(body, 512, classes)


class VGG16(ModelSpec):
    """VGG-16 without batch norm; the classifier reads the 512 globally pooled features."""

    name = "vgg16"
    title = "VGG-16, small-picture head"
    paper = "pFedMo"
    example = ((3, 32, 32), 10)
    width: Annotated[int, "width of the two hidden layers of the classifier", at_least(1)] = 4096
    dropout: Rate = 0.5

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = self.image(shape, 32)
        layers: list[nn.Module] = []
        for block in ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)):
            for width in block:
                layers += _conv(channels, width, 3, 1)
                channels = width
            layers.append(nn.MaxPool2d(2))
        layers.append(GlobalMean())
        for a, b in ((512, self.width), (self.width, self.width)):
            layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(self.dropout)]
        return Layers(nn.Sequential(*layers), self.width, classes)


class Same(nn.Module):
    """Zero padding after which a window of ``kernel`` and ``stride`` gives ceil(side / stride), as in TensorFlow."""

    def __init__(self, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        pads: list[int] = []
        for side in (x.shape[-1], x.shape[-2]):
            total = max((-(-side // self.stride) - 1) * self.stride + self.kernel - side, 0)
            pads += [total // 2, total - total // 2]
        return F.pad(x, pads)


class FireNet(ModelSpec):
    """FireNet of Dunnings and Breckon: three convolutions, 4096, 4096; made for 224 x 224, works from 32 x 32."""

    name = "firenet"
    title = "FireNet"
    paper = "pFedMo; Dunnings and Breckon, ICIP 2018"
    example = ((3, 224, 224), 2)
    width: Annotated[int, "width of the two hidden layers", at_least(1)] = 4096
    dropout: Rate = 0.5

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = self.image(shape, 32)
        layers: list[nn.Module] = []
        for a, b, kernel, stride in ((channels, 64, 5, 4), (64, 128, 4, 1), (128, 256, 1, 1)):
            layers += [Same(kernel, stride), nn.Conv2d(a, b, kernel, stride), nn.ReLU()]
            # After a ReLU, padding with zeros never wins a maximum. 5 neighbours on each side, alpha per neighbour.
            layers += [Same(3, 2), nn.MaxPool2d(3, 2), nn.LocalResponseNorm(11, alpha=0.0011, beta=0.75, k=1.0)]
            height, width = (math.ceil(math.ceil(side / stride) / 2) for side in (height, width))
        layers.append(nn.Flatten())
        for inputs in (256 * height * width, self.width):
            layers += [nn.Linear(inputs, self.width), nn.Tanh(), nn.Dropout(self.dropout)]
        return Layers(nn.Sequential(*layers), self.width, classes)


class FireNetLight(ModelSpec):
    """The other FireNet (Jadon et al.): three convolutions with average pooling, 256, 128; for 64 x 64."""

    name = "firenet-light"
    title = "FireNet for small devices"
    paper = "Jadon et al., 2019"
    example = ((3, 64, 64), 2)
    dropout: Annotated[float, "dropout rate after each convolution", between(0, 1, open_high=True)] = 0.5

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = self.image(shape, 22)
        layers: list[nn.Module] = []
        for a, b in ((channels, 16), (16, 32), (32, 64)):
            layers += [FastConv2d(a, b, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Dropout(self.dropout)]
            height, width = (height - 2) // 2, (width - 2) // 2
        layers += [nn.Flatten(), nn.Linear(64 * height * width, 256), nn.ReLU(), nn.Dropout(0.4 * self.dropout)]
        layers += [nn.Linear(256, 128), nn.ReLU()]
        return Layers(nn.Sequential(*layers), 128, classes)


class Pepx(nn.Module):
    """COVID-Net's block: project, expand, depthwise 3x3, project, extend (all else 1x1), around a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        narrow = max(inputs // 2, 4)
        wide = 2 * narrow
        self.body = nn.Sequential(
            FastConv2d(inputs, narrow, 1),
            FastConv2d(narrow, wide, 1),
            FastConv2d(wide, wide, 3, padding=1, groups=wide),
            FastConv2d(wide, narrow, 1),
            FastConv2d(narrow, outputs, 1),
            nn.GroupNorm(4, outputs),
        )
        self.shortcut = nn.Identity() if inputs == outputs else FastConv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class CovidNet(ModelSpec):
    """A small net of COVID-Net's blocks, with group norm; the published net is made for 480 x 480 pictures."""

    name = "covidnet"
    title = "COVID-Net in small"
    paper = "FedTR; after Wang, Lin, Wong, 2020"
    example = ((1, 64, 64), 2)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = self.image(shape, 16)
        body = nn.Sequential(
            FastConv2d(channels, 24, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            Pepx(24, 32),
            Pepx(32, 32),
            nn.MaxPool2d(2),
            Pepx(32, 64),
            Pepx(64, 64),
            nn.MaxPool2d(2),
            Pepx(64, 128),
            GlobalMean(),
        )
        return Layers(body, 128, classes)


class Sequence(Classifier):
    """Convolutions along time on (channels, time) windows, then the mean over time."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(channels, width, 5, padding=2)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2)
        self.conv3 = nn.Conv1d(width, 2 * width, 5, padding=2)
        self.fc = nn.Linear(2 * width, 2 * width)
        self.head = nn.Linear(2 * width, classes)

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu(F.max_pool1d(self.conv1(x), 2))
        x = torch.relu(F.max_pool1d(self.conv2(x), 2))
        x = torch.relu(self.conv3(x)).mean(2)
        return torch.relu(self.fc(x))


class HarNet(ModelSpec):
    """A 1-D CNN for windows of wearables' signals (channels, time): three convolutions, mean over time, 128."""

    name = "harnet"
    title = "1-D CNN for wearables"
    paper = "FedTR (PAMAP2-Net, layers not published)"
    example = ((9, 128), 6)
    width: Annotated[int, "channels of the first two convolutions", at_least(1)] = 64

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 2 or shape[1] < 4:
            raise InvalidInput(
                f"model {self.name}: it needs windows (channels, time), the data has inputs of shape {shape}"
            )
        return Sequence(shape[0], classes, self.width)
