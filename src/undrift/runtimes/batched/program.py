"""What all blocks of a federation share: its model as a function of parameters, and its loss, sample by sample."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from undrift.core.federation import Federation
from undrift.core.vector import Layout, Replica
from undrift.runtimes.batched.stack import Stack


class Unbatchable(Exception):
    """This cannot run in one tensor program; the sentence says why."""


class Functional:
    """A module whose parameters are replaced at every call, so that they can be batched or differentiated."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        self.replica = Replica(module, None)
        parts = dict(self.replica.module.named_modules())
        self._places = [(parts[path], name) for path, _, name in (full.rpartition(".") for full in layout.names)]
        self._spans = list(zip(layout.offsets, layout.offsets[1:], layout.shapes, strict=False))
        for part in parts.values():
            if type(part) is nn.Linear:
                part.forward = partial(_linear, part)  # type: ignore[method-assign]

    def split(self, w: Tensor) -> list[Tensor]:
        return [w[begin:end].view(shape) for begin, end, shape in self._spans]

    def __call__(self, params: Sequence[Tensor], x: Tensor) -> tuple[Tensor | None, Tensor]:
        self._bind(params)
        return self.replica.forward(x)

    def head(self, params: Sequence[Tensor], z: Tensor) -> Tensor:
        self._bind(params)
        return self.replica.head(z)

    def _bind(self, params: Sequence[Tensor]) -> None:
        for (part, name), p in zip(self._places, params, strict=True):
            part._parameters[name] = p


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """The same layer, written so that the gradient of a batch of weights comes out contiguous."""
    if x.ndim != 2:
        return nn.functional.linear(x, layer.weight, layer.bias)
    out = (layer.weight @ x.t()).t()
    return out if layer.bias is None else out + layer.bias


class Program:
    """What all blocks of a federation share."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.layout = federation, federation.layout
        self.live, self.frozen = (Functional(copy.deepcopy(federation.module), self.layout) for _ in range(2))
        self.live.replica.module.train()
        self.frozen.replica.module.eval()
        self.stack = Stack.of(federation.module, self.layout)
        replica = self.live.replica
        plain = federation.loss is nn.functional.cross_entropy and federation.y.dtype == torch.int64
        self.classifies = plain and bool((federation.y >= 0).all())  # a negative label means: leave it out
        self.reason = ""  # why nothing at all can be batched
        if replica.has_buffers:
            self.reason = "the model has buffers (batch norm)"
        elif replica.stochastic:
            self.reason = "the model has dropout"
        elif federation.augment is not None:
            self.reason = "the inputs are augmented"
        elif federation.training.precision != "float32":
            self.reason = "its tensor program is float32 alone; serial, threads and processes train in bf16"
        elif not _is_mean(federation):
            self.reason = "the loss is not a mean over the samples of a batch"

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample."""
        loss = self.federation.loss
        if loss is nn.functional.cross_entropy:
            return nn.functional.cross_entropy(outputs, y, reduction="none")

        def one(output: Tensor, target: Tensor) -> Tensor:
            return loss(output.unsqueeze(0), target.unsqueeze(0)).sum()

        found: Tensor = torch.func.vmap(one)(outputs, y)
        return found


def _is_mean(federation: Federation) -> bool:
    """Is the loss of a batch the mean of the losses of its samples?"""
    with torch.no_grad():
        x, y = federation.x[:3], federation.y[:3]
        outputs = copy.deepcopy(federation.module).eval()(x)
        parts = [federation.loss(outputs[i : i + 1], y[i : i + 1]).sum() for i in range(len(x))]
        whole = federation.loss(outputs, y)
        return bool(torch.isclose(whole.mean(), torch.stack(parts).mean(), rtol=1e-4, atol=1e-6))
