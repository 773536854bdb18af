"""FedMom. Huo et al., 2020: Nesterov's momentum on the server, over the averaged models."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from undrift.core.algorithm import Algorithm, Broadcast, Displaced
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Nothing, State, Vector
from undrift.core.settings import between, positive


class Server(State):
    x: Vector
    v: Vector  # the last model before its extrapolation


class FedMom(Algorithm[Server, Nothing, Broadcast, Displaced]):
    title: ClassVar[str] = "FedMom"
    paper: ClassVar[str] = (
        "Huo et al., Faster on-device training using new federated momentum algorithm, arXiv:2002.02090, 2020"
    )

    beta: Annotated[float, "server momentum β", between(0, 1, "above 1 every step is longer than the last")] = 0.5
    server_lr: Annotated[float, "server step size η_g", positive("at 0 the model stays, below 0 it climbs")] = 1.0

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, x)

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        return Displaced(down.x - local.descend(local.grad, down.x)), me

    def server_update(self, server: Server, up: Displaced, cohort: Cohort) -> Server:
        v = server.x - self.server_lr * up.d
        return Server(v + self.beta * (v - server.v), v)
