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

Link = Callable[..., Tensor]  # of the chain; a linear layer takes its parameters too
Losses = Callable[[Tensor, Tensor], Tensor]  # of the outputs and targets of all rows: the sum of the rows' losses
Slope = Callable[[Tensor, Tensor], Tensor]  # its gradient by the outputs


class Stack:
    """The chain of a module, or ``None`` from ``of`` where it is not one."""

    def __init__(self, steps: list[Link], layout: Layout) -> None:
        self._steps, self._layout = steps, layout
        self._linear = [step for step in steps if isinstance(step, _Linear)]
        self._names = [name for step in self._linear for name in (step.weight, step.bias) if name]

    @classmethod
    def of(cls, module: nn.Module, layout: Layout) -> Stack | None:
        try:
            graph: Any = fx.symbolic_trace(module).graph
        except Exception:  # control flow, or whatever else a user's forward may do
            return None
        parts = dict(module.named_modules())
        trainable = set(layout.names)
        steps: list[Link] = []
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

    def gradient(self, at_outputs: Slope, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """For rows of models and of batches: the gradients of the losses, as rows."""
        grads: dict[str, Tensor] = {}
        for layer, before, slope in self.slopes(at_outputs, self._split(w.detach()), x, y):
            grads[layer.weight] = torch.bmm(slope.transpose(1, 2), before)
            if layer.bias:
                grads[layer.bias] = slope.sum(1)
        return self.join(grads)

    def slopes(
        self, at_outputs: Slope, params: list[Tensor], x: Tensor, y: Tensor
    ) -> list[tuple[_Linear, Tensor, Tensor]]:
        """Every linear layer, what goes into it, and the gradient of the loss by what comes out of it."""
        seen: list[tuple[Tensor, Tensor]] = []
        with torch.enable_grad():
            outputs = self._forward(x, params, seen)
            last, points = at_outputs(outputs.detach(), y), [output for _, output in seen]
            found = (last,) if outputs is points[0] else torch.autograd.grad(outputs, points, last)
        return [(layer, before, slope) for layer, (before, _), slope in zip(self._linear, seen, found, strict=True)]

    def join(self, parts: dict[str, Tensor]) -> Tensor:
        """Parameters, or what has their shapes, as rows of vectors."""
        return torch.cat([parts[name].flatten(1) for name in self._layout.names], 1)

    def descent(self, start: Tensor) -> Descent:
        """Plain gradient steps from these rows of models."""
        return Descent(self, start)

    def _forward(self, x: Tensor, params: list[Tensor], seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The outputs; into ``seen`` go inputs and outputs of the linear layers, the latter to differentiate by."""
        places = iter(params)
        for step in self._steps:
            if isinstance(step, _Linear):
                before = x
                x = step(x, next(places), next(places) if step.bias else None)
                seen.append((before.detach(), x if x.requires_grad else x.requires_grad_()))
            else:
                x = step(x)
        return x

    def _split(self, w: Tensor) -> list[Tensor]:
        """Views of the parameters in the order in which the chain uses them."""
        layout = self._layout
        spans = zip(layout.names, layout.offsets, layout.offsets[1:], layout.shapes, strict=False)
        views = {name: w[:, begin:end].view(len(w), *shape) for name, begin, end, shape in spans}
        return [views[name] for name in self._names]


class Descent:
    """Models that take gradient steps where they lie: the last product of a layer's gradient is added to its weights.

    A step then needs neither a gradient in memory nor a pass over the model to apply it. Momentum is the same with the
    buffers in the place of the weights.
    """

    def __init__(self, stack: Stack, w: Tensor) -> None:
        self._stack, self._params = stack, stack._split(w)
        self._own = False  # before the first step the models are somebody else's, perhaps one for all rows
        self._momenta: list[Tensor] = []

    def step(self, at_outputs: Slope, x: Tensor, y: Tensor, lr: float, momentum: float, decay: float) -> None:
        slopes = self._stack.slopes(at_outputs, self._params, x, y)
        if not self._own:
            self._params = [p.clone(memory_format=torch.contiguous_format) for p in self._params]
            self._own = True
        if momentum and not self._momenta:
            self._momenta = [torch.zeros_like(p) for p in self._params]
        targets = self._momenta or self._params
        keep, scale = (momentum, 1.0) if momentum else (1 - lr * decay, -lr)
        places = iter(targets)
        for layer, before, slope in slopes:
            next(places).baddbmm_(slope.transpose(1, 2), before, beta=keep, alpha=scale)
            if layer.bias:
                bias = next(places)
                (bias if keep == 1 else bias.mul_(keep)).add_(slope.sum(1), alpha=scale)
        for p, m in zip(self._params, self._momenta, strict=False):
            if decay:
                m.add_(p, alpha=decay)
            p.sub_(m, alpha=lr)

    def rows(self) -> Tensor:
        """The models as they are now."""
        return self._stack.join(dict(zip(self._stack._names, self._params, strict=True)))


def slope_of(loss: Losses) -> Slope:
    """The gradient of any loss by the outputs."""

    def slope(outputs: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            (found,) = torch.autograd.grad(loss(outputs.requires_grad_(), y), outputs)
        return found

    return slope


def cross_entropy_slope(shares: Tensor | float) -> Slope:
    """The same for cross-entropies with these shares, written out: softmax minus the target."""

    def slope(outputs: Tensor, y: Tensor) -> Tensor:
        found, target = torch.softmax(outputs, -1), y.unsqueeze(-1)
        return found.scatter_add_(-1, target, found.new_tensor(-1.0).expand(target.shape)).mul_(shares)

    return slope


class _Linear:
    def __init__(self, path: str, layer: nn.Linear) -> None:
        names = [name for name, _ in layer.named_parameters(prefix=path)]
        self.weight = names[0]
        self.bias = names[1] if len(names) > 1 else None

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not (weight.stride(0) or weight.requires_grad):  # one model for all rows
            return F.linear(x, weight[0], None if bias is None else bias[0])
        # The weight stands on the left: then its gradient comes out contiguous.
        x = x.transpose(1, 2)
        if bias is None:
            return torch.bmm(weight, x).transpose(1, 2)
        return torch.baddbmm(bias.unsqueeze(2), weight, x).transpose(1, 2)


def _used(steps: list[Any]) -> set[str]:
    names = [name for step in steps if isinstance(step, _Linear) for name in (step.weight, step.bias) if name]
    return set(names) if len(set(names)) == len(names) else set()  # a layer used twice is not a chain


def _step(node: fx.Node, parts: dict[str, nn.Module]) -> Link | None:
    if node.op == "call_module":
        part = parts[str(node.target)]
        if type(part) is nn.Linear:
            return _Linear(str(node.target), part)
        if type(part) is nn.Flatten and (part.start_dim, part.end_dim) == (1, -1):
            return lambda x: x.flatten(2)
        if type(part) in LAYERS:
            return lambda x: part(x)
        return None
    others, named = node.args[1:], node.kwargs
    if node.target in ("flatten", torch.flatten) and others == (1,) and not named:
        return lambda x: x.flatten(2)
    if node.op == "call_function" and node.target in FUNCTIONS:
        function: Any = node.target
        return lambda x: function(x, *others, **named)
    if node.op == "call_method" and node.target in METHODS:
        return lambda x: getattr(x, str(node.target))()
    return None
