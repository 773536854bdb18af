"""Training losses by name: functions of (output, target) that give the mean over the batch, usable under vmap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from undrift.core.errors import InvalidInput

Loss = Callable[[Tensor, Tensor], Tensor]


def mse(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error of numbers. One output per sample and one number per sample match, whatever their axes."""
    return F.mse_loss(output.reshape(target.shape), target)


def mse_onehot(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error, over batch and classes: of one-hot targets, or of targets that are numbers."""
    return mse(output, target if target.dtype.is_floating_point else _one_hot(output, target))


def squared_hinge(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared hinge of each class against the rest; two classes from zero weights make the binary SVM."""
    sign = 2 * _one_hot(output, target) - 1
    return 0.5 * torch.relu(1 - sign * output).square().sum(-1).mean()


def _one_hot(output: Tensor, target: Tensor) -> Tensor:
    classes = torch.arange(output.shape[-1], device=output.device)
    return (target.unsqueeze(-1) == classes).to(output.dtype)


# PyTorch's own cross-entropy, and no wrapper: the batched runtime knows it and writes its gradient out.
LOSSES: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "mse": mse,
    "mse_onehot": mse_onehot,
    "squared_hinge": squared_hinge,
}


@dataclass(frozen=True)
class Squeezed:
    """A loss of (n) outputs and (n) targets for a model that gives (n, 1)."""

    loss: Loss

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        return self.loss(output.squeeze(-1), target)


def aligned(loss: Loss, output: Tensor, target: Tensor) -> Loss:
    """A user's loss for a regression, safe from comparing every output with every target.

    An (n, 1) output minus an (n) target is an (n, n) table, and its mean looks like a loss. Where the loss does that
    its outputs are squeezed; where it sees to the shapes itself it is left alone; other shapes are refused.
    """
    if output.shape == target.shape:
        return loss
    if output.shape != (*target.shape, 1):
        raise InvalidInput(
            f"the model gives {_per_sample(output)} per sample and the targets are {_per_sample(target)}: "
            "they must be of the same shape"
        )
    output, target = torch.tensor([[1.0], [3.0], [8.0]]), torch.tensor([2.0, 7.0, 5.0])
    try:
        squeezed = loss(output.squeeze(-1), target)
    except (IndexError, RuntimeError, ValueError):  # it takes the outputs' column itself
        return loss
    return loss if torch.equal(squeezed, loss(output, target)) else Squeezed(loss)


def _per_sample(values: Tensor) -> str:
    shape = tuple(values.shape[1:])
    return "one number" if not shape else f"numbers of shape {shape}"
