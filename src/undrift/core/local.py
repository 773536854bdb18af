"""``Local``: everything a client may use while it trains.

The inner loop belongs to the library; the author of a method writes the *direction*. This page is the whole interface;
``eager`` runs it for one client with plain autograd, and the batched runtime for many clients in one tensor program.
Nothing here says where the client runs, or what its data are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from torch import Tensor, add, arange, float64, where, zeros

from undrift.core.errors import InvalidInput
from undrift.core.optimisers import Moments, adapted, begun
from undrift.core.training import Training
from undrift.core.vector import Layout, Part, double

Carry = TypeVar("Carry")


class Batch(ABC):
    """A minibatch: inputs ``x``, targets ``y``, and ``index``, the samples' places in the client's data.

    ``index`` is padded with -1 to the batch size, so that it can be kept in a record.
    """

    x: Tensor
    y: Tensor
    index: Tensor

    @abstractmethod
    def mean(self, values: Tensor) -> Tensor:
        """The mean over the samples of the batch (first axis). Never use ``values.mean()``: batches may be padded."""

    @abstractmethod
    def sum(self, values: Tensor) -> Tensor:
        """The sum over the samples of the batch (first axis)."""


Direction = Callable[[Tensor, Batch], Tensor]


class Local(ABC):
    """One client in one round."""

    n: Any  # number of samples
    round: int  # 1, 2, ...
    lr: float  # learning rate of this round
    steps: Any  # K, the number of local steps
    travel: Any  # A_K: K without momentum (0.3 of the specification)
    training: Training
    layout: Layout
    moments: Moments | None = None  # of the optimiser, where the client keeps them; None: every descent begins afresh

    # -- gradients: training mode, counted ----------------------------------------------------------------------------

    @abstractmethod
    def grad(self, w: Tensor, b: Batch, only: Part | None = None) -> Tensor:
        """The minibatch gradient of the mean training loss at ``w`` (zero outside the part ``only``)."""

    @abstractmethod
    def value_and_grad(self, w: Tensor, b: Batch) -> tuple[Tensor, Tensor]:
        """The minibatch loss and its gradient, for the price of the gradient."""

    @abstractmethod
    def value(self, w: Tensor, b: Batch) -> Tensor:
        """The same minibatch loss without its gradient, for the price of a forward pass."""

    @abstractmethod
    def grad_of(self, loss: Callable[[Tensor, Batch], Tensor]) -> Direction:
        """The gradient of a loss that the method defines, as a function of ``(w, b)``."""

    @abstractmethod
    def full_grad(self, w: Tensor) -> Tensor:
        """The gradient of the mean loss over all of the client's samples."""

    # -- forward passes: with the gradient inside ``grad_of`` at its own w; elsewhere eval mode, constant -------------

    @abstractmethod
    def forward(self, w: Tensor, b: Batch) -> tuple[Tensor, Tensor]:
        """Features and outputs of the model ``w`` on a batch, in one pass."""

    @abstractmethod
    def head(self, w: Tensor, z: Tensor) -> Tensor:
        """The outputs of the last linear layer of ``w`` for given features."""

    @abstractmethod
    def criterion(self, outputs: Tensor, b: Batch) -> Tensor:
        """The mean training loss of given outputs."""

    def features(self, w: Tensor, b: Batch) -> Tensor:
        """The features of the model ``w``: the input of its last linear layer."""
        return self.forward(w, b)[0]

    def outputs(self, w: Tensor, b: Batch) -> Tensor:
        """The outputs (logits) of the model ``w``."""
        return self.forward(w, b)[1]

    def loss(self, w: Tensor, b: Batch) -> Tensor:
        """The mean training loss of the model ``w`` on a batch."""
        return self.criterion(self.outputs(w, b), b)

    # -- loops --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def descend(
        self,
        direction: Direction,
        start: Tensor,
        steps: Any = None,
        *,
        first: Batch | None = None,
        only: Part | None = None,
    ) -> Tensor:
        """Run the local optimiser from ``start`` along ``direction(x, batch)``; the model after the last step.

        ``x`` is valid only during the call of ``direction``: it moves on afterwards. ``first`` replaces the first
        batch; ``only`` freezes the rest of the model.
        """

    @abstractmethod
    def fold(self, step: Callable[[Carry, Batch], Carry], carry: Carry, steps: Any = None) -> Carry:
        """``carry = step(carry, batch)`` for every local step: for methods with their own optimiser."""

    def move(self, x: Tensor, v: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the local optimiser as a value: the model and the momentum buffer (zeros at first)."""
        self._needs_sgd()
        v = self.decayed(self.clipped(v), x)
        if not self.training.momentum:
            return add(x, v, alpha=-self.lr), m
        m = self.training.momentum * m + v
        v = v + self.training.momentum * m if self.training.nesterov else m
        return add(x, v, alpha=-self.lr), m  # the same operation, and so the same bits, as in ``descend``

    def adapt(self, v: Tensor, x: Tensor, moments: Moments, mask: Tensor | None) -> tuple[Tensor, Moments]:
        """The direction of an optimiser other than plain SGD, and its moments; nothing moves outside of the mask."""
        v, after = adapted(self.training, self.decayed(self.clipped(v), x), x, moments)
        if mask is None:
            return v, after
        steps, *new = after
        return v * mask, (steps, *(where(mask > 0, a, b) for a, b in zip(new, moments[1:], strict=True)))

    def begin(self, x: Tensor) -> Moments:
        """The moments before the first step of a descent."""
        return begun(self.training, x) if self.moments is None else self.moments

    def end(self, moments: Moments) -> None:
        """Remember the moments after the last step, where the client keeps them."""
        if self.moments is not None:
            self.moments = moments

    def _needs_sgd(self) -> None:
        if not self.training.plain:
            raise InvalidInput(
                f"this method takes steps of its own, which know sgd alone: optimiser = {self.training.optimiser}, "
                f"optimiser_state = {self.training.optimiser_state} have no effect on them"
            )

    def nesterov(self, x: Tensor, u: Tensor, gamma: float, steps: Any = None) -> tuple[Tensor, Tensor]:
        """Nesterov steps from ``(x, u)``, for methods that carry u on: u = γu + g, x = x - η (g + γu)."""
        self._needs_sgd()

        def step(carry: tuple[Tensor, Tensor], b: Batch) -> tuple[Tensor, Tensor]:
            x, u = carry
            g = self.decayed(self.clipped(self.grad(x, b)), x)
            u = gamma * u + g
            return x - self.lr * (g + gamma * u), u

        return self.fold(step, (x, u), steps)

    def decayed(self, v: Tensor, x: Tensor) -> Tensor:
        """``v`` plus the weight decay at ``x``, unless the decay is already part of the gradient."""
        decay = self.training.weight_decay
        return v + decay * x if decay and self.training.adds_decay else v

    def undecayed(self, g: Tensor, x: Tensor) -> Tensor:
        """``g`` without the weight decay at ``x`` that an inner decay put into it; SAM has to take it out."""
        decay = self.training.weight_decay
        return g - decay * x if decay and self.training.decay_mode == "inner" else g

    def clipped(self, v: Tensor) -> Tensor:
        """``v``, shortened to the clipping norm where it is longer."""
        clip = self.training.clip
        return v if clip is None else v * (clip / (v.norm() + 1e-12)).clamp(max=1)

    def epochs(self, count: int) -> Any:
        """The number of steps in ``count`` passes over the client's data."""
        return count * self.epoch_steps

    epoch_steps: Any

    @abstractmethod
    def batch(self, round: Any, step: Any) -> Batch:
        """The client's minibatch number ``step`` (from 0) of a round: all are keyed by the seed, none need be kept."""

    @abstractmethod
    def sweep(self) -> Iterable[Batch]:
        """All samples once, in order, in large batches."""

    def class_sums(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the features of ``w`` over the samples of each class, and how many samples each class has."""
        classes = arange(self.layout.classes, device=w.device)
        sums = w.new_zeros(len(classes), self.layout.features)
        counts = w.new_zeros(len(classes))
        for b in self.sweep():
            z, member = self.features(w, b), (b.y.unsqueeze(1) == classes).to(w.dtype)
            sums = sums + b.sum(member.unsqueeze(2) * z.unsqueeze(1))
            counts = counts + b.sum(member)
        return sums, counts

    def disagreement(self, models: Sequence[Tensor], teacher: Tensor) -> list[Tensor]:
        """For each model the mean cross-entropy of its outputs under a teacher's probabilities, over all samples."""
        totals = [zeros((), dtype=float64) for _ in models]
        for b in self.sweep():
            p = double(self.outputs(teacher, b)).softmax(1)
            scores = [b.sum((p * double(self.outputs(w, b)).log_softmax(1)).sum(1)) for w in models]
            totals = [total - score for total, score in zip(totals, scores, strict=True)]
        return [total / self.n for total in totals]

    @abstractmethod
    def note(self, name: str, value: Any) -> None:
        """Report a number for the run's record (mean over the cohort). It does not travel and costs no bytes."""
