"""FedAvgM. Hsu, Qi, Brown, 2019: FedAvg, with heavy-ball momentum on the server."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Broadcast, Displaced
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Nothing, State, Vector
from undrift.core.settings import between, positive


class Server(State):
    x: Vector
    v: Vector  # momentum, in the units of the model


class FedAvgM(Algorithm[Server, Nothing, Broadcast, Displaced]):
    title: ClassVar[str] = "FedAvgM"
    paper: ClassVar[str] = (
        "Hsu et al., Measuring the effects of non-identical data distribution for federated visual classification, 2019"
    )
    caution: ClassVar[str] = (
        "with server momentum 0.9 the model swings for some thirty rounds under strong label skew; beta = 0.5 does not"
    )
    steep: ClassVar[tuple[str, ...]] = ("beta", "server_lr")

    beta: Annotated[float, "server momentum β", between(0, 1, "at 1 no update is ever forgotten", open_high=True)] = 0.9
    server_lr: Annotated[float, "server step size η_g", positive("at 0 the model stays, below 0 it climbs")] = 1.0

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        return Displaced(down.x - local.descend(local.grad, down.x)), me

    def server_update(self, server: Server, up: Displaced, cohort: Cohort) -> Server:
        v = self.beta * server.v + up.d
        return Server(server.x - self.server_lr * v, v)
