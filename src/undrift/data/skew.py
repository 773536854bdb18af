"""Feature skew: clients whose inputs, not labels, differ. Each client's own samples are changed in its own way.

The test set is left as it is, and so are the partition and the labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F

from undrift.core import rng
from undrift.core.errors import InvalidInput
from undrift.core.settings import Settings, nonnegative
from undrift.data.dataset import Dataset
from undrift.data.partitions.base import Partition


class FeatureSkew(Settings):
    """What differs from client to client."""

    rotation: Annotated[
        float, "a client's pictures are turned by its own angle, up to so many degrees", nonnegative()
    ] = 0.0
    noise: Annotated[float, "client i's inputs carry Gaussian noise of deviation noise * i / (N-1)", nonnegative()] = (
        0.0
    )

    def apply(self, dataset: Dataset, parts: Partition, seed: int) -> Dataset:
        """The data set with every client's samples changed."""
        if self.rotation == 0 and self.noise == 0:
            return dataset
        if len(np.unique(parts.indices)) < len(parts.indices):
            raise InvalidInput("feature skew: clients share samples in this partition, so a sample has no one skew")
        if not dataset.x.dtype.is_floating_point:
            raise InvalidInput("feature skew: the inputs are whole numbers (tokens), which cannot be turned or blurred")
        x = dataset.x.clone()
        if self.rotation:
            if x.ndim != 4:
                raise InvalidInput(f"feature skew: rotation needs pictures, not inputs of shape {dataset.shape}")
            turns = (2 * rng.uniform(rng.key(seed, "rotation"), len(parts)) - 1) * np.deg2rad(self.rotation)
            for begin in range(0, len(parts.indices), 4096):  # in blocks: the grid is as large as the pictures
                rows = torch.from_numpy(parts.indices[begin : begin + 4096])
                owners = np.searchsorted(parts.offsets, np.arange(begin, begin + len(rows)), side="right") - 1
                cos, sin = torch.from_numpy(np.cos(turns[owners])), torch.from_numpy(np.sin(turns[owners]))
                zero = torch.zeros_like(cos)
                theta = torch.stack([cos, sin, zero, -sin, cos, zero], dim=1).view(-1, 2, 3).to(x.dtype)
                pictures = x[rows]
                grid = F.affine_grid(theta, list(pictures.shape), align_corners=False)
                x[rows] = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
        if self.noise:
            for i in range(1, len(parts)):  # client 0 stays clean
                rows = torch.from_numpy(parts[i])
                draw = rng.generator(seed, "noise", i).standard_normal((len(rows), *dataset.shape), dtype=np.float32)
                x[rows] += torch.from_numpy(draw) * (self.noise * i / (len(parts) - 1))
        return replace(dataset, x=x, name=f"{dataset.name}, skewed")
