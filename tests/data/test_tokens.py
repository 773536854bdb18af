"""Inputs that are whole numbers: as they are for models that take them, as floats for those that do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift
from undrift.core.errors import InvalidInput
from undrift.data import Dataset, FeatureSkew, partition

WORDS, LENGTH = 30, 6


class Reader(nn.Module):
    """A small transformer that reads texts of six tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.last = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        assert not tokens.dtype.is_floating_point
        out: Tensor = self.last(self.block(self.embedding(tokens)).mean(1))
        return out


def texts(kind: Any = np.int64) -> tuple[np.ndarray, np.ndarray]:
    """Texts with the word 1 in them, or without."""
    draw = np.random.default_rng(0)
    x = draw.integers(2, WORDS, (240, LENGTH)).astype(kind)
    y = np.arange(240) % 2
    x[y == 1, draw.integers(0, LENGTH, 120)] = 1
    return x, y


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int16])
def test_whole_numbers_pass_unchanged(kind: Any) -> None:
    x, y = texts(kind)
    data = Dataset.from_arrays(x, y, x, y)
    assert data.x.dtype == torch.int64
    assert np.array_equal(data.x, x)
    assert torch.equal(Dataset.from_arrays(torch.from_numpy(x), y, x, y).x, data.x)


def test_large_tokens_lose_nothing(tmp_path: Path) -> None:
    x = np.array([[2**24 + 1, 2**53 + 1]] * 4)
    np.savez(tmp_path / "tokens.npz", x=x, y=[0, 1, 0, 1], x_test=x, y_test=[0, 1, 0, 1])
    assert Dataset.from_npz(tmp_path / "tokens.npz").x.tolist() == x.tolist()


def test_bytes_are_pixels() -> None:
    assert Dataset.from_arrays(np.zeros((10, 4), np.uint8), np.arange(10) % 2).x.dtype == torch.float32


def test_a_transformer_learns_and_gives_the_same_bits_everywhere() -> None:
    data = Dataset.from_arrays(*texts())
    options: dict[str, Any] = {"data": data, "model": Reader(), "partition": "iid", "clients": 3, "rounds": 12}
    options["training"] = undrift.Training(lr=0.3, epochs=4, batch_size=16)
    results = {name: undrift.run(runtime=name, **options) for name in ("serial", "threads", "processes")}
    assert results["serial"].accuracy > 0.9
    assert len({result.value for result in results.values()}) == 1


def test_models_of_numbers_get_numbers() -> None:
    x, y = texts()
    whole, floats = Dataset.from_arrays(x, y), Dataset.from_arrays(x.astype(np.float32), y)
    for model in ("mlp", nn.Linear(LENGTH, 2)):
        options: dict[str, Any] = {"model": model, "partition": "iid", "clients": 3, "rounds": 2}
        assert undrift.run(data=whole, **options).value == undrift.run(data=floats, **options).value


def test_tokens_cannot_be_skewed() -> None:
    data = Dataset.from_arrays(*texts())
    with pytest.raises(InvalidInput, match="whole numbers"):
        FeatureSkew(noise=0.5).apply(data, partition("iid", data, 3, seed=1), seed=1)
