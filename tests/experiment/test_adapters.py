"""Adapters: only what is trained travels; what is frozen stays as it was, everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift


class LowRank(nn.Module):
    """A frozen linear layer with a trained product of two thin matrices beside it."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.up(self.down(x))
        return out


def adapted() -> nn.Module:
    return nn.Sequential(nn.Flatten(), LowRank(nn.Linear(64, 32), 4), nn.ReLU(), nn.Linear(32, 10))


def head_only() -> nn.Module:
    body = nn.Linear(64, 32).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(32, 10))


HEAD = 32 * 10 + 10
TRAINED = {adapted: 64 * 4 + 4 * 32 + HEAD, head_only: HEAD}


@pytest.mark.parametrize("runtime", ["serial", "processes", "batched"])
@pytest.mark.parametrize("make", TRAINED)
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_only_what_is_trained_travels(make: Any, algorithm: str, runtime: str) -> None:
    torch.manual_seed(0)
    module = make()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    training = undrift.Training(lr=0.2, batch_size=16, epochs=2)
    result = undrift.run(
        algorithm, data="digits", model=module, training=training, partition="iid", clients=4, rounds=4, runtime=runtime
    )
    assert result.history.facts["parameters"] == TRAINED[make]
    vectors = {"fedavg": 1, "scaffold": 2}[algorithm]
    sent = result.history.rounds[0].bytes_up / 4
    assert vectors * 4 * TRAINED[make] < sent < vectors * 4 * TRAINED[make] + 500
    for name, p in result.module.named_parameters():
        assert torch.equal(p, before[name]) == (not p.requires_grad), name
    assert result.accuracy > 0.5


def test_the_whole_model_is_saved(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    result = undrift.run(data="digits", model=head_only(), clients=3, rounds=1)
    stored = load_file(result.save(tmp_path / "model.safetensors"))
    state = result.module.state_dict()
    assert stored.keys() == state.keys()
    assert all(torch.equal(stored[name], value) for name, value in state.items())
