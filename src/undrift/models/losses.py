"""Training losses by name: functions of (output, target) that give the mean over the batch, usable under vmap."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]


def mse_onehot(output: Tensor, target: Tensor) -> Tensor:
    """The mean squared error, over batch and classes: of one-hot targets, or of targets that are numbers."""
    if target.dtype.is_floating_point:
        return F.mse_loss(output.squeeze(-1), target)
    return F.mse_loss(output, _one_hot(output, target))


def squared_hinge(output: Tensor, target: Tensor) -> Tensor:
    """Half the squared hinge of each class against the rest; two classes from zero weights make the binary SVM."""
    sign = 2 * _one_hot(output, target) - 1
    return 0.5 * torch.relu(1 - sign * output).square().sum(-1).mean()


def _one_hot(output: Tensor, target: Tensor) -> Tensor:
    classes = torch.arange(output.shape[-1], device=output.device)
    return (target.unsqueeze(-1) == classes).to(output.dtype)


# PyTorch's own cross-entropy, and no wrapper: the batched runtime knows it and writes its gradient out.
LOSSES: dict[str, Loss] = {"cross_entropy": F.cross_entropy, "mse_onehot": mse_onehot, "squared_hinge": squared_hinge}
