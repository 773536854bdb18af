"""Gradients taken a little uphill, so that flat minima win. What a method makes of them it does not know."""

from __future__ import annotations

import warnings
from typing import Annotated

from torch import Tensor

from undrift.core.cohort import Population
from undrift.core.errors import InvalidInput
from undrift.core.local import Batch, Direction, Local
from undrift.core.settings import Settings, nonnegative
from undrift.core.vector import double

RADIUS = 0.05
FAR = 0.02  # of the norm of the model: farther up, small models learn late or never


class Uphill(Settings):
    """For methods that take their gradients uphill: how far."""

    rho: Annotated[float, "radius ρ of the ascent", nonnegative("a negative one looks downhill")] = RADIUS
    rho_relative: Annotated[
        float | None, "ρ as a share of the norm of w, in the place of rho", nonnegative("a negative one looks downhill")
    ] = None

    def radius(self, w: Tensor) -> float | Tensor:
        """ρ in a round that begins with w."""
        return self.rho if self.rho_relative is None else self.rho_relative * w.norm()

    def validate(self) -> None:
        super().validate()
        if self.rho_relative is not None and self.rho != RADIUS:
            raise InvalidInput(
                f"{type(self).__name__}: rho = {self.rho:g} and rho_relative = {self.rho_relative:g} are two radii; "
                "give one of them"
            )

    def check_start(self, x: Tensor, population: Population) -> None:
        """Warn of a radius that is far for the initial model; one that is all zeros has no scale to compare with."""
        length, rho = float(double(x).norm()), float(self.radius(double(x)))
        if length and rho > FAR * length:
            warnings.warn(
                f"{type(self).__name__}: the radius {rho:.3g} is {100 * rho / length:.2g} % of the norm of the initial "
                f"model ({length:.3g}); above {100 * FAR:g} % small models learn late or never: "
                "take a smaller rho, or rho_relative = 0.006",
                stacklevel=2,
            )


def sharp(local: Local, grad: Direction, x: Tensor, b: Batch, rho: float | Tensor) -> Tensor:
    """The gradient ρ uphill of x, on the same minibatch; weight decay stays at x and never bends the ascent."""
    e = ascent(local.undecayed(grad(x, b), x), rho)
    return local.undecayed(grad(x + e, b), e)


def ascent(a: Tensor, rho: float | Tensor) -> Tensor:
    """ρ along a; 0 where a is 0."""
    e: Tensor = rho * a / (a.norm() + 1e-12)
    return e
