"""FedSpeed. Sun et al., ICLR 2023: a proximal term, a dual that takes out its bias, and sharpness-aware gradients."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.algorithms.parts.sharpness import Uphill, sharp
from undrift.core.algorithm import Algorithm, Broadcast, Cost, Trained
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Local
from undrift.core.records import State, Vector
from undrift.core.settings import nonnegative
from undrift.core.vector import Layout


class Server(State):
    x: Vector
    h: Vector  # the mean of all clients' duals


class Client(State):
    h: Vector  # the dual, in the units of the model: the paper's ĝ_i is -λ_p h_i


class FedSpeed(Uphill, Algorithm[Server, Client, Broadcast, Trained]):
    title: ClassVar[str] = "FedSpeed"
    paper: ClassVar[str] = (
        "Sun et al., FedSpeed: larger local interval, less communication round, and higher generalization accuracy, "
        "ICLR 2023"
    )
    cost: ClassVar[Cost] = Cost(kept="d", gradients="n * E", flops="6 * K * d")

    lambda_p: Annotated[float, "proximal weight λ_p", nonnegative("a negative one pushes away from w")] = 0.1
    weights: Annotated[Literal["samples", "uniform"], "weights of the means of models and duals"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def client_update(self, down: Broadcast, me: Client, local: Local) -> tuple[Trained, Client]:
        w, rho = down.x, self.radius(down.x)

        def direction(x: Tensor, b: Batch) -> Tensor:
            return sharp(local, local.grad, x, b, rho) + self.lambda_p * (x - w + me.h)

        x = local.descend(direction, w)
        return Trained(x), Client(me.h + (x - w))

    def server_update(self, server: Server, up: Trained, cohort: Cohort) -> Server:
        h = server.h + cohort.fraction * (up.x - server.x)  # every dual moved by w_i - w: it need not be sent
        return Server(up.x + h, h)

    def models(self, server: Server) -> dict[str, Tensor]:
        return {"global": server.x, "cohort mean": server.x - server.h}
