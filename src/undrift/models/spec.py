"""``ModelSpec``: a model by name with its settings; and what all of undrift's own modules have in common.

A model is a plain ``nn.Module``: nothing in undrift needs a base class. The modules here all have the pair
``features(x)`` (input of the last linear layer) and ``head`` (that layer), with ``forward(x) == head(features(x))``.
"""

from __future__ import annotations

import math
from typing import ClassVar

from torch import Tensor, nn

from undrift.core.errors import InvalidInput
from undrift.core.settings import Settings


class Classifier(nn.Module):
    """A module made of a feature extractor and a last linear layer."""

    head: nn.Module

    def features(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.features(x))
        return out


class ModelSpec(Settings):
    """A model by name. ``build`` makes the module for inputs of ``shape``, with weights from torch's generator."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str] = ""
    loss: ClassVar[str] = "cross_entropy"
    regresses: ClassVar[bool] = True  # can predict numbers, with the mean squared error as loss
    example: ClassVar[tuple[tuple[int, ...], int]]  # the input shape and classes of the paper, for tables and counts

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        raise NotImplementedError

    def image(self, shape: tuple[int, ...], smallest: int = 1) -> tuple[int, int, int]:
        """The shape as (channels, height, width), or a sentence that says what the model needs."""
        if len(shape) != 3 or min(shape[1:]) < smallest:
            raise InvalidInput(
                f"model {self.name}: it needs pictures (channels, height, width) of at least {smallest} x {smallest} "
                f"pixels, the data has inputs of shape {shape}"
            )
        return shape[0], shape[1], shape[2]


def flat_size(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
