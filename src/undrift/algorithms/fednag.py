"""FedNAG. Yang et al., 2022: clients take Nesterov steps, and the server averages their models and their momenta."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Mean, Message, Nothing, Point, State, Upload, Vector
from undrift.core.settings import between


class Server(State):
    x: Vector
    u: Vector  # momentum in the units of a gradient: the paper's y is x + ηγu


class Down(Message):
    x: Vector
    u: Vector


class Up(Upload):
    x: Mean[Point[Vector]]
    u: Mean[Point[Vector]]


class FedNAG(Algorithm[Server, Nothing, Down, Up]):
    title: ClassVar[str] = "FedNAG"
    paper: ClassVar[str] = (
        "Yang et al., Federated learning with Nesterov accelerated gradient, IEEE Trans. Parallel Distrib. Syst. 2022"
    )
    refuses_optimisers: ClassVar[str] = "its Nesterov steps are its own"
    cost: ClassVar[Cost] = Cost(down="d", up="d", flops="4 * K * d")
    refuses_momentum: ClassVar[str] = "it carries its own momentum gamma from round to round"

    gamma: Annotated[float, "momentum γ", between(0, 1, "at 1 no gradient is ever forgotten", open_high=True)] = 0.5

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.u)

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        x, u = local.nesterov(down.x, down.u, self.gamma)  # y' = x - ηg, x' = y' + γ(y' - y)
        return Up(x, u), me

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        return Server(up.x, up.u)
