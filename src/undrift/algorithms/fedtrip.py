"""FedTrip. Li et al., IPDPS 2023, Algorithm 1: near the global model, away from the client's own last one."""

from __future__ import annotations

import warnings
from typing import Annotated, ClassVar, Literal

from torch import Tensor, tensor, where

from undrift.core.algorithm import Averaging, Broadcast, Cost, Trained
from undrift.core.local import Local
from undrift.core.records import Scalar, State, Vector
from undrift.core.settings import between, nonnegative
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
    cost: ClassVar[Cost] = Cost(kept="d", flops="4 * K * d")
    steep: ClassVar[tuple[str, ...]] = ("mu",)

    mu: Annotated[float, "weight μ of the triplet regulariser", nonnegative("a negative one pushes away from w")] = 0.4
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
        w, h = down.x, me.h
        xi = 1 / (local.round - me.t)  # 1/gap: not the gap, see the errata
        if self.first == "prox":
            xi = where(me.t > 0, xi, 0.0)
        if self.xi is not None:
            xi = xi * 0 + self.xi
        local.note("xi", xi)
        x = local.descend(lambda x, b: local.grad(x, b) + self.mu * ((x - w) - xi * (x - h)), w)  # eq. 5, lines 6 to 8
        return Trained(x), Client(x, me.t * 0 + local.round)

    def check(self, training: Training, layout: Layout, steps: int) -> None:
        c = self.mu * training.lr * training.travel(steps)
        if c > 1 + 1e-9:
            warnings.warn(
                f"FedTrip: mu*lr*A_K = {c:.3g} > 1: in flat directions the clients' deviations grow every round; "
                f"mu below {1 / (training.lr * training.travel(steps)):.3g} is stable",
                stacklevel=2,
            )
