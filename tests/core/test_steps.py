"""Steps whose gradient is gathered from several minibatches, and passes in bfloat16."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift
from undrift.core.errors import InvalidInput
from undrift.core.training import Training

OPTIONS: dict[str, Any] = {"model": "mlp", "clients": 4, "rounds": 2}


def trained(method: str = "fedavg", *, runtime: str = "serial", model: Any = "mlp", **training: Any) -> Tensor:
    made = Training(epochs=2, **training)
    result = undrift.run(method, training=made, runtime=runtime, **OPTIONS | {"model": model})
    assert result.module is not None
    return torch.cat([p.detach().reshape(-1) for p in result.module.parameters()])


@pytest.mark.parametrize(
    ("method", "optimiser"),
    [
        ("fedavg", {}),
        ("fedavg", {"momentum": 0.9, "lr": 0.01}),
        ("fedavg", {"optimiser": "adam", "lr": 0.01}),
        ("scaffold", {}),
        ("fedsam", {}),
    ],
)
def test_a_step_is_that_of_one_large_batch(method: str, optimiser: dict[str, Any]) -> None:
    whole = trained(method, batch_size=64, **optimiser)
    parts = trained(method, batch_size=16, accumulate=4, **optimiser)
    torch.testing.assert_close(parts, whole, rtol=1e-3, atol=1e-5)
    assert not torch.equal(parts, trained(method, batch_size=16, **optimiser))


@pytest.mark.parametrize("runtime", ["threads", "processes", "batched"])
def test_in_every_runtime(runtime: str) -> None:
    here, there = (trained(batch_size=16, accumulate=3, runtime=name) for name in ("serial", runtime))
    near = {"rtol": 1e-4, "atol": 1e-6} if runtime == "batched" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(there, here, **near)


def test_only_a_minibatch_passes_at_once() -> None:
    seen: set[int] = set()

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                seen.add(len(x))
            return super().forward(x)

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), Watched(64, 10))

    trained(model=model, batch_size=8, accumulate=4)
    assert max(seen) == 8


def test_a_step_needs_minibatches() -> None:
    with pytest.raises(InvalidInput, match="accumulate > 1 needs a batch_size"):
        Training(batch_size=0, accumulate=2)


@pytest.mark.parametrize("runtime", ["serial", "threads", "processes"])
@pytest.mark.parametrize("method", ["fedavg", "moon"])
def test_bfloat16(method: str, runtime: str) -> None:
    exact, rough = trained(method, runtime=runtime), trained(method, runtime=runtime, precision="bf16")
    assert rough.dtype == torch.float32
    assert not torch.equal(exact, rough)
    assert float((rough - exact).norm() / exact.norm()) < 0.02
    assert torch.equal(rough, trained(method, precision="bf16"))


def test_bfloat16_is_what_the_layers_see() -> None:
    seen: set[torch.dtype] = set()

    class Watched(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            if torch.is_grad_enabled():
                seen.add(found.dtype)
            return found

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), Watched(64, 10))

    trained(model=model, precision="bf16")
    assert torch.bfloat16 in seen  # the profile of the model is taken in float32


def test_many_clients_at_once_are_float32_alone() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = trained(runtime="batched", precision="bf16")
    assert any("its tensor program is float32 alone" in str(one.message) for one in told)
    assert torch.equal(found, trained(precision="bf16"))
