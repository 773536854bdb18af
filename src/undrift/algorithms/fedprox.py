"""FedProx. Li et al., MLSys 2020: FedAvg, with every local step pulled back towards the received model."""

from __future__ import annotations

from typing import Annotated, ClassVar

from undrift.core.algorithm import Averaging, Broadcast, Cost, Trained
from undrift.core.local import Local
from undrift.core.records import Nothing
from undrift.core.settings import nonnegative


class FedProx(Averaging[Nothing]):
    title: ClassVar[str] = "FedProx"
    paper: ClassVar[str] = "Li et al., Federated optimization in heterogeneous networks, MLSys 2020"
    cost: ClassVar[Cost] = Cost(flops="2 * K * d")
    steep: ClassVar[tuple[str, ...]] = ("mu",)

    mu: Annotated[float, "proximal weight μ of μ/2 ‖x - w‖²", nonnegative("a negative one pushes away from w")] = 0.1

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        w = down.x
        return Trained(local.descend(lambda x, b: local.grad(x, b) + self.mu * (x - w), w)), me
