"""How a client trains: the local optimiser, the batches, and the learning rate of each round."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from undrift.core.errors import InvalidInput
from undrift.core.settings import Settings, at_least, between, nonnegative, positive

EPS = {"adagrad": 1e-10}  # 1e-8 for the others, as in ``torch.optim``


class Training(Settings):
    """The local optimiser as PyTorch defines it; unless its state is kept, every round begins with a fresh one."""

    lr: Annotated[float, "local learning rate", positive()] = 0.1
    momentum: Annotated[float, "momentum of the local optimiser", between(0, 1, open_high=True)] = 0.0
    optimiser: Annotated[Literal["sgd", "adam", "adamw", "rmsprop", "adagrad"], "local optimiser"] = "sgd"
    optimiser_state: Annotated[
        Literal["reset", "kept"], "its moments: fresh in every round, or kept by each client from round to round"
    ] = "reset"
    beta_mean: Annotated[float, "decay β1 of Adam's mean gradient", between(0, 1, open_high=True)] = 0.9
    beta_square: Annotated[
        float | None,
        "decay of the mean square: β2 of Adam (unset: 0.999), α of RMSprop (unset: 0.99)",
        between(0, 1, open_high=True),
    ] = None
    optimiser_eps: Annotated[
        float | None, "added to the root of the squares; unset: 1e-8, with Adagrad 1e-10", nonnegative()
    ] = None
    nesterov: Annotated[bool, "Nesterov form of the momentum"] = False
    weight_decay: Annotated[float, "L2 weight decay", nonnegative()] = 0.0
    decay_mode: Annotated[
        Literal["outer", "inner"], "decay added to the method's direction, or part of the gradient"
    ] = "outer"
    clip: Annotated[float | None, "clip the direction to this L2 norm", positive()] = None
    batch_size: Annotated[int, "samples per minibatch; 0 = all of the client's samples", at_least(0)] = 32
    accumulate: Annotated[
        int, "minibatches whose gradients make one step: as one so many times as large, in less memory", at_least(1)
    ] = 1
    precision: Annotated[
        Literal["float32", "bf16"], "training passes in bfloat16 (autocast); weights and evaluation stay as they are"
    ] = "float32"
    drop_last: Annotated[bool, "leave out an epoch's last batch where it is smaller (for batch norm)"] = False
    epochs: Annotated[int, "passes over the client's data per round", at_least(1)] = 5
    steps: Annotated[int | None, "number of local steps per round, instead of epochs", at_least(1)] = None
    schedule: Annotated[Literal["constant", "exponential", "step", "cosine"], "learning rate over the rounds"] = (
        "constant"
    )
    lr_decay: Annotated[float, "factor per round (exponential) or per stage (step)", between(0, 1, open_low=True)] = 1.0
    lr_every: Annotated[int, "rounds per stage of the step schedule", at_least(1)] = 100
    lr_rounds: Annotated[int, "rounds until the cosine schedule ends", at_least(1)] = 100
    warmup: Annotated[int, "rounds over which the learning rate rises in a line to its full size", at_least(0)] = 0

    def validate(self) -> None:
        if self.accumulate > 1 and not self.batch_size:
            raise InvalidInput("Training: accumulate > 1 needs a batch_size: with 0 a minibatch is all there is")
        if self.nesterov and not self.momentum:
            raise InvalidInput("Training: nesterov = true needs momentum > 0")
        if self.optimiser not in ("sgd", "rmsprop") and self.momentum:
            raise InvalidInput(f"Training: {self.optimiser} has no momentum; set momentum = 0, or use beta_mean")
        if self.optimiser == "rmsprop" and self.nesterov:
            raise InvalidInput("Training: nesterov = true belongs to sgd, not to rmsprop")
        if self.optimiser == "adamw" and self.decay_mode == "inner":
            raise InvalidInput("Training: adamw decays beside its gradient; decay_mode = 'inner' belongs to the others")
        if self.lr_decay != 1 and self.schedule not in ("exponential", "step"):
            raise InvalidInput(
                f"Training: lr_decay = {self.lr_decay} has no effect with schedule = {self.schedule!r}; "
                "use exponential or step"
            )

    def lr_at(self, round: int) -> float:
        """The learning rate of round 1, 2, ..."""
        rate = self._scheduled(round - 1)
        return rate * round / self.warmup if round < self.warmup else rate

    def _scheduled(self, t: int) -> float:
        if self.schedule == "exponential":
            return self.lr * self.lr_decay**t
        if self.schedule == "step":
            return self.lr * self.lr_decay ** (t // self.lr_every)
        if self.schedule == "cosine":
            t = min(t, self.lr_rounds - 1)  # never 0: a momentum in the units of a gradient is divided by the rate
            return self.lr * 0.5 * (1 + math.cos(math.pi * t / self.lr_rounds))
        return self.lr

    @property
    def plain(self) -> bool:
        """Is it SGD that remembers nothing from round to round, as the formulas of many methods assume?"""
        return self.optimiser == "sgd" and not self.keeps

    @property
    def keeps(self) -> bool:
        """Do clients keep the optimiser's moments from round to round?"""
        return self.optimiser_state == "kept" and (self.optimiser != "sgd" or self.momentum > 0)

    @property
    def adds_decay(self) -> bool:
        """Is the weight decay added to the method's direction?"""
        return self.decay_mode == "outer" and self.optimiser != "adamw"

    @property
    def square_decay(self) -> float:
        return (0.99 if self.optimiser == "rmsprop" else 0.999) if self.beta_square is None else self.beta_square

    @property
    def floor(self) -> float:
        return EPS.get(self.optimiser, 1e-8) if self.optimiser_eps is None else self.optimiser_eps

    @property
    def per_step(self) -> int:
        """Samples per step; 0: all of the client's."""
        return self.batch_size * self.accumulate

    def batches_per_epoch(self, n: int) -> int:
        if not self.per_step:
            return 1
        return max(n // self.per_step, 1) if self.drop_last else -(-n // self.per_step)

    def steps_for(self, n: int) -> int:
        """Local steps K of a client with n samples."""
        return self.steps or self.epochs * self.batches_per_epoch(n)

    def travel(self, steps: Any) -> Any:
        """A_K: how far K steps of a constant unit direction move the model, in units of the learning rate."""
        rho = self.momentum
        if not rho:
            return steps
        K = steps + 1 if self.nesterov else steps  # a Nesterov step uses the buffer one step ahead
        return (K - rho * (1 - rho**K) / (1 - rho)) / (1 - rho) - (1 if self.nesterov else 0)
