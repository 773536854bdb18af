"""A transformer that is fine-tuned by LoRA: of every client only the thin matrices and the head travel.

With `peft` installed its LoRA is taken, and else the few lines below, which do the same. The transformer stands for
one that was trained elsewhere; here it is tiny, and its weights are random and stay as they are.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

import undrift

WORDS, LENGTH, WIDTH, RANK = 40, 12, 32, 4


class Reader(nn.Module):
    """Reads texts of twelve tokens, and says which of two kinds they are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        z = self.embedding(tokens)
        z = z + nn.functional.scaled_dot_product_attention(self.query(z), self.key(z), self.value(z))
        out: Tensor = self.last(torch.relu(z).mean(1))
        return out


class LowRank(nn.Module):
    """A frozen linear layer, and a product of two thin matrices beside it that begins at zero."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.A = nn.Parameter(torch.randn(RANK, base.in_features) / base.in_features**0.5)
        self.B = nn.Parameter(torch.zeros(base.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + x @ self.A.T @ self.B.T
        return out


def head_only() -> nn.Module:
    model = Reader().requires_grad_(False)
    model.last.requires_grad_(True)
    return model


def lora() -> nn.Module:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        model = head_only()
        model.query, model.value = LowRank(model.query), LowRank(model.value)
        return model
    config = LoraConfig(r=RANK, lora_alpha=RANK, target_modules=["query", "value"], modules_to_save=["last"])
    found: nn.Module = get_peft_model(Reader(), config)
    return found


# Texts of the second kind hold words below 5 twice as often; every client has its own mixture of kinds.
draw = np.random.default_rng(0)
y = draw.integers(0, 2, 1200)
x = np.where(draw.random((1200, LENGTH)) < 0.1 + 0.3 * y[:, None], draw.integers(0, 5, (1200, LENGTH)), 0)
x = np.where(x > 0, x, draw.integers(5, WORDS, (1200, LENGTH)))
data, training = undrift.Dataset.from_arrays(x, y), undrift.Training(lr=0.1, momentum=0.9, batch_size=20, epochs=2)
for what, model in (("everything", Reader), ("LoRA and head", lora), ("head only", head_only)):
    result = undrift.run("fedavg", data=data, model=model, training=training, clients=8, rounds=10, seed=1)
    bytes_up = result.history.rounds[-1].bytes_up / 8
    print(f"{what:14} {100 * result.accuracy:.1f} %, {bytes_up:,.0f} bytes up per client and round")
