"""Models that are a chain of linear layers and element-wise functions, for many clients at once, without vmap.

Under vmap a small model's step costs more in dispatch than in arithmetic. A chain needs no vmap: a linear layer for a
block of clients is one batched matrix product, everything else works on any number of leading axes. What the chain is,
is read from the module's own code; a model that is anything else is left to vmap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from undrift.core.vector import Layout

LAYERS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.ELU, nn.LeakyReLU, nn.Identity)
FUNCTIONS: tuple[Any, ...] = (torch.relu, F.relu, torch.tanh, torch.sigmoid, F.gelu, F.elu, F.leaky_relu, operator.pos)
METHODS = ("relu", "tanh", "sigmoid")


class Stack:
    """The chain of a module, or ``None`` from ``of`` where it is not one."""

    def __init__(self, steps: list[Callable[[Tensor, dict[str, Tensor]], Tensor]], layout: Layout) -> None:
        self._steps, self._layout = steps, layout

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> Stack | None:
        try:
            graph: Any = fx.symbolic_trace(module).graph
        except Exception:  # control flow, or whatever else a user's forward may do
            return None
        parts = dict(module.named_modules())
        trainable = set(layout.names)
        steps: list[Callable[[Tensor, dict[str, Tensor]], Tensor]] = []
        value: fx.Node | None = None  # the one thing that is handed on
        for node in graph.nodes:
            if node.op == "placeholder":
                if value is not None:
                    return None
            elif node.op == "output":
                return cls(steps, layout) if node.args == (value,) and trainable == _used(steps) else None
            elif node.all_input_nodes != [value]:
                return None
            else:
                step = _step(node, parts)
                if step is None:
                    return None
                steps.append(step)
            value = node
        return None

    def gradient(self, loss: Callable[[Tensor, Tensor], Tensor], w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """For rows of models and of batches: the gradients of the mean losses, as rows."""
        rows = len(w)
        with torch.enable_grad():
            params: dict[str, Tensor] = {n: view.requires_grad_() for n, view in self._split(w.detach()).items()}
            for step in self._steps:
                x = step(x, params)
            total = loss(x.flatten(0, 1), y.flatten(0, 1)).mean() * rows  # a mean of means, all of one length
            grads = torch.autograd.grad(total, list(params.values()))
        return torch.cat([g.reshape(rows, -1) for g in grads], 1)

    def _split(self, w: Tensor) -> dict[str, Tensor]:
        layout = self._layout
        spans = zip(layout.names, layout.offsets, layout.offsets[1:], layout.shapes, strict=False)
        return {name: w[:, begin:end].view(len(w), *shape).detach() for name, begin, end, shape in spans}


class _Linear:
    def __init__(self, path: str, layer: nn.Linear) -> None:
        names = [name for name, _ in layer.named_parameters(prefix=path)]
        self.weight = names[0]
        self.bias = names[1] if len(names) > 1 else None

    def __call__(self, x: Tensor, params: dict[str, Tensor]) -> Tensor:
        # The weight stands on the left: then its gradient comes out contiguous.
        w, x = params[self.weight], x.transpose(1, 2)
        if self.bias is None:
            return torch.bmm(w, x).transpose(1, 2)
        return torch.baddbmm(params[self.bias].unsqueeze(2), w, x).transpose(1, 2)


def _used(steps: list[Any]) -> set[str]:
    names = [name for step in steps if isinstance(step, _Linear) for name in (step.weight, step.bias) if name]
    return set(names) if len(set(names)) == len(names) else set()  # a layer used twice is not a chain


def _step(node: fx.Node, parts: dict[str, nn.Module]) -> Callable[[Tensor, dict[str, Tensor]], Tensor] | None:
    if node.op == "call_module":
        part = parts[str(node.target)]
        if type(part) is nn.Linear:
            return _Linear(str(node.target), part)
        if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
            return lambda x, params: x.flatten(2)
        if type(part) in LAYERS:
            return lambda x, params: part(x)
        return None
    others, named = node.args[1:], node.kwargs
    if node.target in ("flatten", torch.flatten) and others == (1,) and not named:
        return lambda x, params: x.flatten(2)
    if node.op == "call_function" and node.target in FUNCTIONS:
        function: Any = node.target
        return lambda x, params: function(x, *others, **named)
    if node.op == "call_method" and node.target in METHODS:
        return lambda x, params: getattr(x, str(node.target))()
    return None
