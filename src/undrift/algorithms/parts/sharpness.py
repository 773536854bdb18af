"""Gradients taken a little uphill, so that flat minima win. What a method makes of them it does not know."""

from __future__ import annotations

from torch import Tensor

from undrift.core.local import Batch, Direction, Local


def sharp(local: Local, grad: Direction, x: Tensor, b: Batch, rho: float) -> Tensor:
    """The gradient ρ uphill of x, on the same minibatch; weight decay stays at x and never bends the ascent."""
    e = ascent(local.undecayed(grad(x, b), x), rho)
    return local.undecayed(grad(x + e, b), e)


def ascent(a: Tensor, rho: float) -> Tensor:
    """ρ along a; 0 where a is 0."""
    e: Tensor = rho * a / (a.norm() + 1e-12)
    return e
