"""FedTrip. Li et al., IPDPS 2023, Algorithm 1: near the global model, away from the client's own last one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from torch import Tensor, tensor, where

from undrift.core.algorithm import Averaging, Broadcast, Cost, Trained
from undrift.core.local import Local
from undrift.core.records import Scalar, State, Vector
from undrift.core.settings import between, nonnegative, number
from undrift.core.training import Training
from undrift.core.vector import Layout


class Client(State):
    h: Vector  # the last local model
    t: Scalar  # the round it is from; 0: never took part


class FedTrip(Averaging[Client]):
    title: ClassVar[str] = "FedTrip"
    paper: ClassVar[str] = (
        "Li et al., FedTrip: a resource-efficient federated learning method with triplet regularization, IPDPS 2023"
    )
    assumes_sgd: ClassVar[str] = "the largest stable mu follows from how far sgd travels"
    cost: ClassVar[Cost] = Cost(kept="d", flops="4 * K * d")
    steep: ClassVar[tuple[str, ...]] = ("mu",)

    mu: Annotated[
        float | Literal["auto"],
        "weight μ of the triplet regulariser; auto: 0.4, or 0.9 of the largest stable one if that is less",
        nonnegative("a negative one pushes away from w"),
    ] = "auto"
    first: Annotated[Literal["prox", "init"], "first participation: no historical model (prox) or the initial one"] = (
        "prox"
    )
    xi: Annotated[
        float | None,
        "fixed ξ instead of 1/gap; 0 gives FedProx",
        between(0, 1, "above 1 the regulariser is unbounded below"),
    ] = None

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(x, tensor(0.0).double())

    def client_update(self, down: Broadcast, me: Client, local: Local) -> tuple[Trained, Client]:
        w, h, mu = down.x, me.h, number(self.mu)
        xi = 1 / (local.round - me.t)  # 1/gap: not the gap, see the errata
        if self.xi is not None:
            xi = xi * 0 + self.xi
        if self.first == "prox":
            xi = where(me.t > 0, xi, 0.0)
        local.note("xi", xi)
        x = local.descend(lambda x, b: local.grad(x, b) + mu * ((x - w) - xi * (x - h)), w)  # eq. 5, lines 6 to 8
        return Trained(x), Client(x, me.t * 0 + local.round)

    def resolved(self, training: Training, layout: Layout, steps: int) -> Self:
        if self.mu != "auto":
            return self
        return replace(self, mu=min(0.4, float(f"{0.9 / (training.lr * training.travel(steps)):.3g}")))

    def check(self, training: Training, layout: Layout, steps: int) -> None:
        c = number(self.mu) * training.lr * training.travel(steps)
        if c > 1 + 1e-9:
            warnings.warn(
                f"FedTrip: mu*lr*A_K = {c:.3g} > 1: in flat directions the clients' deviations grow every round; "
                f"mu below {1 / (training.lr * training.travel(steps)):.3g} is stable",
                stacklevel=2,
            )
