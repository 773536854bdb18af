"""Your own model, loss and arrays: a plain `nn.Module`, no base class, nothing to register."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import undrift


class Waves(nn.Module):
    """A small convolutional network for one-dimensional signals."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4), nn.Flatten())
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x))
        return out


def smooth(outputs: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, y, label_smoothing=0.05)


# Three kinds of waves; each of six clients has a mixture of its own.
draw = np.random.default_rng(0)
y = draw.integers(0, 3, 900)
t = np.linspace(0, 1, 64)
x = np.sin(2 * np.pi * (2 + 3 * y[:, None]) * (t + draw.random((900, 1)))) + 0.5 * draw.normal(size=(900, 64))
data = undrift.Dataset.from_arrays(x[:, None].astype(np.float32), y)

result = undrift.run(
    "scaffold",
    data=data,
    model=Waves,  # the class, not an object, so that the seed covers the initial weights
    loss=smooth,
    training=undrift.Training(lr=0.1, batch_size=20, epochs=2),
    clients=6,
    rounds=15,
    seed=1,
)
print(result)
print("to 80 %:", result.reached(0.8))

with tempfile.TemporaryDirectory() as folder:  # the trained model, for any other program
    saved = result.save(Path(folder) / "waves.pt")
    again = Waves()
    again.load_state_dict(torch.load(saved, weights_only=True))
    print("saved and loaded:", sum(p.numel() for p in again.parameters()), "parameters")
