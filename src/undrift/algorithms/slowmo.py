"""SlowMo. Wang et al., ICLR 2020, Algorithm 1: server momentum in gradient units, so that it shrinks with the rate."""

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
    u: Vector  # slow momentum, in the units of a gradient


class SlowMo(Algorithm[Server, Nothing, Broadcast, Displaced]):
    title: ClassVar[str] = "SlowMo"
    paper: ClassVar[str] = (
        "Wang et al., SlowMo: improving communication-efficient distributed SGD with slow momentum, ICLR 2020"
    )
    assumes_sgd: ClassVar[str] = "the last update over the rate stands for a gradient"
    steep: ClassVar[tuple[str, ...]] = ("beta", "alpha")

    beta: Annotated[float, "slow momentum β", between(0, 1, "at 1 no update is ever forgotten", open_high=True)] = 0.5
    alpha: Annotated[
        float, "slow learning rate α, a factor on the local rate", positive("at 0 the model stays, below 0 it climbs")
    ] = 1.0

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        return Displaced(down.x - local.descend(local.grad, down.x)), me  # lines 2 to 5, buffers reset

    def server_update(self, server: Server, up: Displaced, cohort: Cohort) -> Server:
        u = self.beta * server.u + up.d / cohort.lr  # line 7
        return Server(server.x - self.alpha * cohort.lr * u, u)  # line 8
