"""What a sample costs on its way through a model: measured once, not claimed.

Multiply-accumulates (MACs) are stated as such: ``torch.utils.flop_counter`` counts two operations for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from undrift.core.spent import Spent


@dataclass(frozen=True)
class Profile:
    """MACs of one sample through a model."""

    forward: int
    gradient: int
    head_gradient: int

    def macs(self, spent: Spent) -> int:
        """Client MACs for what was spent."""
        return (
            spent.gradients * self.gradient + spent.forwards * self.forward + spent.head_gradients * self.head_gradient
        )


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``FlopCounterMode`` without its table per module, and without what it imports: torch's compiler, for a second."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None:
            with self:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        found = func(*args, **kwargs)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=found)
        return found


def _macs(run: Callable[[], object]) -> int:
    with _Counter() as counter:
        run()
    return int(counter.flops) // 2


def profile(module: nn.Module, sample: Tensor, head: int = 0) -> Profile:
    """Profile a module on one input; ``head`` is the number of weights of its last linear layer."""
    training = module.training
    module.eval()
    params = [p for p in module.parameters() if p.requires_grad]
    with torch.no_grad():
        forward = _macs(lambda: module(sample))
    gradient = _macs(lambda: torch.autograd.grad(module(sample).sum(), params, allow_unused=True))
    module.train(training)
    return Profile(forward, gradient, forward + head)


def convolution_biases(module: nn.Module, sample: Tensor) -> int:
    """Additions for convolution biases, which some papers count as MACs."""
    total = 0

    def count(layer: nn.Module, inputs: object, output: Tensor) -> None:
        nonlocal total
        total += output.numel()

    hooks = [
        m.register_forward_hook(count)
        for m in module.modules()
        if isinstance(m, nn.Conv2d | nn.Conv1d) and m.bias is not None
    ]
    with torch.no_grad():
        module(sample)
    for hook in hooks:
        hook.remove()
    return total
