"""Random changes of training pictures as the papers use them: whole batches at once, keyed, so runs repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from undrift.core import rng


def _draws(key: int, rows: int, count: int) -> list[Tensor]:
    values = rng.uniform(key, rows * count).reshape(rows, count)
    return [torch.from_numpy(row) for row in values]


@dataclass(frozen=True)
class FlipCrop:
    """Mirror with probability ``flip``; with probability ``crop`` pad with ``fill`` and cut out at a random place."""

    pad: int
    fill: tuple[float, ...]  # one value per channel: black after normalisation
    flip: float = 0.5
    crop: float = 1.0

    def __call__(self, batch: Tensor, key: int, /) -> Tensor:
        n, c, h, w = batch.shape
        mirror, cut, down, right = _draws(key, 4, n)
        span = 2 * self.pad + 1
        moved = cut < self.crop
        top = torch.where(moved, (down * span).long(), self.pad)
        left = torch.where(moved, (right * span).long(), self.pad)
        columns = torch.arange(w).expand(n, w)
        columns = torch.where((mirror < self.flip)[:, None], columns.flip(1), columns) + left[:, None]
        rows = torch.arange(h) + top[:, None]
        fill = torch.tensor(self.fill, dtype=batch.dtype).view(1, c, 1, 1)
        padded = F.pad(batch - fill, [self.pad] * 4)
        picked = padded[
            torch.arange(n)[:, None, None, None],
            torch.arange(c)[None, :, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        return picked + fill


@dataclass(frozen=True)
class FlipAffine:
    """Mirror with probability ``flip``; rotate, shift and scale at random (nearest pixel; ``fill`` where empty)."""

    degrees: float
    shift: float  # of the picture's side
    scale: tuple[float, float]
    fill: float
    flip: float = 0.5

    def __call__(self, batch: Tensor, key: int, /) -> Tensor:
        n, _, h, w = batch.shape
        mirror, turn, right, down, size = _draws(key, 5, n)
        angle = torch.deg2rad((2 * turn - 1) * self.degrees)
        zoom = self.scale[0] + size * (self.scale[1] - self.scale[0])
        # whole pixels, as torchvision draws them; affine_grid counts in half sides
        dx = torch.round((2 * right - 1) * self.shift * w) * 2 / w
        dy = torch.round((2 * down - 1) * self.shift * h) * 2 / h
        cos, sin = torch.cos(angle) / zoom, torch.sin(angle) / zoom
        theta = torch.stack(
            [cos, sin, -(cos * dx + sin * dy), -sin, cos, sin * dx - cos * dy],
            dim=1,
        ).view(n, 2, 3)
        theta[:, :, 0] *= torch.where(mirror < self.flip, -1.0, 1.0)[:, None]
        grid = F.affine_grid(theta.to(batch.dtype), list(batch.shape), align_corners=False)
        moved = F.grid_sample(batch - self.fill, grid, mode="nearest", padding_mode="zeros", align_corners=False)
        return moved + self.fill


def black(mean: tuple[float, ...], spread: tuple[float, ...]) -> tuple[float, ...]:
    """The normalised value of a black pixel, per channel."""
    return tuple(float(np.float32(-m / s)) for m, s in zip(mean, spread, strict=True))
