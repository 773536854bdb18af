"""``ModelSpec``: a model by name with its settings; and what all of undrift's own modules have in common.

A model is a plain ``nn.Module``: nothing in undrift needs a base class. The modules here all have the pair
``features(x)`` (input of the last linear layer) and ``head`` (that layer), with ``forward(x) == head(features(x))``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from undrift.core.errors import InvalidInput
from undrift.core.settings import Settings

COPIES = 3  # of the weights, at the least: the server's, a client's, and its gradient


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

    def factory(self, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
        """What builds the module; a model that this machine cannot hold is refused here, before it takes memory."""
        try:
            with torch.device("meta"):
                weights = sum(p.numel() for p in self.build(shape, classes).parameters())
        except (RuntimeError, OverflowError):  # what torch says of a size that it cannot even count
            raise InvalidInput(f"model {self.name}: with these settings it has too many weights to count") from None
        needed, there = 4 * COPIES * weights, memory()
        if needed > there:
            raise InvalidInput(
                f"model {self.name}: with these settings it has {weights:,} weights; training them takes at least "
                f"{needed / 1e9:,.0f} GB of memory, and this machine has {there / 1e9:,.0f} GB"
            )
        return partial(self.build, shape, classes)

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


def memory() -> float:
    """The bytes of memory that this machine has; without end where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
