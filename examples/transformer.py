"""A transformer on tokens, of which clients train adapters alone: what does not train does not travel.

The backbone stands for one that was trained elsewhere; here its weights are random and stay as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import undrift

WORDS, LENGTH, WIDTH, RANK = 40, 12, 32, 4


class Adapter(nn.Module):
    """A narrow detour around a frozen layer; it begins as no detour."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(WIDTH, RANK), nn.Linear(RANK, WIDTH)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.up(torch.relu(self.down(x)))
        return out


class Reader(nn.Module):
    """Reads texts of twelve tokens, and says which of two kinds they are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)
        for backbone in (self.embedding, self.block):
            backbone.requires_grad_(False)
        self.adapter = Adapter()
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.last(self.adapter(self.block(self.embedding(tokens))).mean(1))
        return out


# Texts of the second kind hold words below 5 twice as often; every client has its own mixture of kinds.
draw = np.random.default_rng(0)
y = draw.integers(0, 2, 1200)
x = np.where(draw.random((1200, LENGTH)) < 0.1 + 0.3 * y[:, None], draw.integers(0, 5, (1200, LENGTH)), 0)
x = np.where(x > 0, x, draw.integers(5, WORDS, (1200, LENGTH)))

result = undrift.run(
    "fedavgm",
    data=undrift.Dataset.from_arrays(x, y),
    model=Reader,
    training=undrift.Training(lr=0.1, batch_size=20, epochs=2),
    clients=8,
    rounds=15,
    seed=1,
)
parameters = list(Reader().parameters())
trained = sum(p.numel() for p in parameters if p.requires_grad)
print(result)
print(f"{trained} of {sum(p.numel() for p in parameters)} parameters train and travel:")
print(f"{result.history.rounds[-1].bytes_up / 8:.0f} bytes up per client and round")
