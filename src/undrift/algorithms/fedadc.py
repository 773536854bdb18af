"""FedADC. Ozfatura, Ozfatura, Gündüz, ISIT 2021: the server's momentum is embedded in every local step."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Cost, Displaced
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Message, Nothing, State, Vector
from undrift.core.settings import between, positive


class Server(State):
    x: Vector
    m: Vector  # momentum in the units of a gradient, summed over the K local steps


class Down(Message):
    x: Vector
    m: Vector


class FedADC(Algorithm[Server, Nothing, Down, Displaced]):
    title: ClassVar[str] = "FedADC"
    paper: ClassVar[str] = (
        "Ozfatura, Ozfatura, Gündüz, FedADC: accelerated federated learning with drift control, ISIT 2021"
    )
    assumes_sgd: ClassVar[str] = "the last update over the rate stands for a gradient"
    cost: ClassVar[Cost] = Cost(down="d", flops="2 * K * d")
    refuses_momentum: ClassVar[str] = "the embedded server momentum takes its place"
    steep: ClassVar[tuple[str, ...]] = ("beta_g", "beta_l")

    beta_g: Annotated[
        float, "server momentum β_g", between(0, 1, "at 1 no update is ever forgotten", open_high=True)
    ] = 0.5
    beta_l: Annotated[
        float, "momentum β_l embedded in the local steps", between(0, 1, "it is a momentum", open_high=True)
    ] = 0.5
    alpha: Annotated[float, "factor α of the server step", positive("at 0 the model stays, below 0 it climbs")] = 1.0
    form: Annotated[
        Literal["heavy-ball", "nesterov"], "gradient at the local model, or after the momentum has moved it"
    ] = "heavy-ball"
    weights: Annotated[Literal["samples", "uniform"], "weights of the mean of the displacements"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.m)

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        push = self.beta_l * down.m / local.steps  # β_l m̄, the same in all steps of the round
        if self.form == "nesterov":
            x = local.descend(lambda x, b: push + local.grad(x - local.lr * push, b), down.x)
        else:
            x = local.descend(lambda x, b: local.grad(x, b) + push, down.x)
        return Displaced(down.x - x), me

    def server_update(self, server: Server, up: Displaced, cohort: Cohort) -> Server:
        m = up.d / cohort.lr + (self.beta_g - self.beta_l) * server.m  # β_l m is in d already
        return Server(server.x - self.alpha * cohort.lr * m, m)
