"""Residual networks with group norm: no batch statistics, so nothing but parameters travels."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undrift.core.errors import InvalidInput
from undrift.core.settings import at_least
from undrift.models.spec import Classifier, ModelSpec


class Residual(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(groups, outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


class ResNet(Classifier):
    def __init__(
        self, channels: int, widths: tuple[int, ...], blocks: int, groups: int, classes: int, large: bool
    ) -> None:
        super().__init__()
        self.large = large
        self.stem = nn.Conv2d(channels, widths[0], 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.norm = nn.GroupNorm(groups, widths[0])
        body, inputs = [], widths[0]
        for stage, width in enumerate(widths):
            for i in range(blocks):
                body.append(Residual(inputs, width, 2 if stage and i == 0 else 1, groups))
                inputs = width
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(inputs, classes)

    def features(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        out: Tensor = self.body(x).mean((2, 3))
        return out


class ResNet8(ModelSpec):
    """ResNet-8 (one block of 16, 32, 64 channels each) with group norm."""

    name = "resnet8"
    title = "ResNet-8 with GroupNorm"
    example = ((3, 32, 32), 10)
    groups: Annotated[int, "groups of the norm; must divide 16", at_least(1)] = 2

    def validate(self) -> None:
        if 16 % self.groups:
            raise InvalidInput(f"model {self.name}: groups = {self.groups}: it must divide 16")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return ResNet(self.image(shape, 4)[0], (16, 32, 64), 1, self.groups, classes, large=False)


class ResNet18(ModelSpec):
    """ResNet-18 with group norm, two groups as in FedMRUR's family of experiments."""

    name = "resnet18"
    title = "ResNet-18 with GroupNorm"
    paper = "FedMRUR, pFedMo"
    example = ((3, 32, 32), 10)
    groups: Annotated[int, "groups of the norm; must divide 64", at_least(1)] = 2
    stem: Annotated[Literal["small", "large"], "small: 3x3, for 32 or 64 pixels; large: 7x7 with pool, for 224"] = (
        "small"
    )

    def validate(self) -> None:
        if 64 % self.groups:
            raise InvalidInput(f"model {self.name}: groups = {self.groups}: it must divide 64")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, _, _ = self.image(shape, 8)
        return ResNet(channels, (64, 128, 256, 512), 2, self.groups, classes, large=self.stem == "large")
