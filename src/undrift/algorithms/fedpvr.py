"""FedPVR. Li et al., CVPR 2023: SCAFFOLD's variance reduction for the last layer alone, plain FedAvg below."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Head, Mean, Message, Move, Point, State, Upload, Vector
from undrift.core.vector import Layout


class Server(State):
    x: Vector
    c: Head


class Client(State):
    c: Head


class Down(Message):
    x: Vector
    c: Head


class Up(Upload):
    x: Mean[Point[Vector]]
    dc: Mean[Move[Head]]


class FedPVR(Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedPVR"
    paper: ClassVar[str] = (
        "Li et al., On the effectiveness of partial variance reduction in federated learning with heterogeneous data, "
        "CVPR 2023"
    )
    assumes_sgd: ClassVar[str] = "a client's control variate is its displacement over the steps and their rate"
    cost: ClassVar[Cost] = Cost(down="head", up="head", kept="head", flops="K * head + 4 * head")

    weights: Annotated[Literal["samples", "uniform"], "weights of the means of models and variates"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(population.layout.split(x, "head")))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(layout.split(x, "head")))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.c)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        split = local.layout.split
        nothing = zeros_like(split(down.x, "body"))
        correction = local.layout.join(body=nothing, head=down.c - me.c)  # 1_P (c - c_i)
        x = local.descend(lambda x, b: local.grad(x, b) + correction, down.x)
        c = me.c - down.c + split(down.x - x, "head") / (local.lr * local.travel)  # SCAFFOLD's option II on P
        return Up(x, c - me.c), Client(c)

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        return Server(up.x, server.c + cohort.fraction * up.dc)
