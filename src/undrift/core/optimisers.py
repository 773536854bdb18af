"""The local optimisers as functions of flat vectors: each turns a direction into the one that is stepped along.

Equal to ``torch.optim`` up to rounding. What an optimiser remembers, its moments, is a value: how many steps it has
taken, and some vectors. Nothing here knows of clients or of rounds; whoever keeps the moments decides how long.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from undrift.core.records import Scalar, State, Vector
from undrift.core.training import Training

Moments = tuple[Any, ...]  # steps taken so far, then the vectors that ``remembered`` names

STEPS, PREFIX = "optimiser_steps", "optimiser_"
ORDER = ("mean", "square", "momentum")  # of the vectors, in all that remember them


def remembered(training: Training) -> tuple[str, ...]:
    """The vectors that the optimiser carries from step to step, by name."""
    if training.optimiser in ("adam", "adamw"):
        return ("mean", "square")
    if training.optimiser == "adagrad":
        return ("square",)
    momentum = ("momentum",) if training.momentum else ()
    return ("square", *momentum) if training.optimiser == "rmsprop" else momentum


def begun(training: Training, x: Tensor) -> Moments:
    """Before the first step."""
    return (0, *(torch.zeros_like(x) for _ in remembered(training)))


def adapted(training: Training, v: Tensor, x: Tensor, moments: Moments) -> tuple[Tensor, Moments]:
    """The direction to step along from ``x`` where the method's is ``v``, and the moments afterwards."""
    steps, *old = moments
    steps = steps + 1
    square, eps = training.square_decay, training.floor
    if training.optimiser in ("adam", "adamw"):
        m = torch.lerp(old[0], v, 1 - training.beta_mean)
        s = torch.addcmul(square * old[1], v, v, value=1 - square)
        scale = (s.sqrt() / (1 - square**steps) ** 0.5).add(eps)
        v = m / (1 - training.beta_mean**steps) / scale
        if training.optimiser == "adamw" and training.weight_decay:
            v = v + training.weight_decay * x
        return v, (steps, m, s)
    if training.optimiser == "adagrad":
        s = torch.addcmul(old[0], v, v)
        return v / (s.sqrt() + eps), (steps, s)
    squares = []
    if training.optimiser == "rmsprop":
        squares = [torch.addcmul(square * old[0], v, v, value=1 - square)]
        v = v / (squares[0].sqrt() + eps)
    if not training.momentum:
        return v, (steps, *squares)
    m = training.momentum * old[-1] + v
    return (v + training.momentum * m if training.nesterov else m), (steps, *squares, m)


# -- moments that a client keeps from round to round, beside what its method keeps ------------------------------------


class Keeping(State):
    """Base of the states that hold moments as well; ``own`` is the method's part."""

    own: ClassVar[type[State]]


@cache
def keeping(kind: Any, names: tuple[str, ...]) -> Any:
    """A method's state with the moments beside its own fields."""
    hints = {STEPS: Scalar} | {PREFIX + name: Vector for name in names}
    return type(kind.__name__, (kind, Keeping), {"__annotations__": hints, "own": kind, "__module__": __name__})


def joined(state: State, names: tuple[str, ...], moments: Moments) -> State:
    """What a client keeps: its method's state and the moments."""
    steps = moments[0] if isinstance(moments[0], Tensor) else torch.tensor(float(moments[0]), dtype=torch.float64)
    values = [value for _, value in state.items()]
    kind: Any = type(state)
    found: State = keeping(kind, names)(*values, steps, *moments[1:])
    return found


def parted(state: State) -> tuple[State, Moments | None]:
    """The inverse: the method's own state, and the moments where they are kept."""
    if not isinstance(state, Keeping):
        return state, None
    names = {field.name for field in state.own.schema()}
    own = {field.name: value for field, value in state.items() if field.name in names}
    return state.own(**own), tuple(value for field, value in state.items() if field.name not in names)


def kind_of(kind: Any, fields: list[str]) -> Any:
    """The type of a state of which these fields were stored, in whatever order."""
    return keeping(kind, tuple(name for name in ORDER if PREFIX + name in fields)) if STEPS in fields else kind
