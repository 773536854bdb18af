"""FedDC. Gao et al., CVPR 2022: a drift variable per client decouples its model from the global one."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Mean, Message, Move, Point, State, Upload, Vector
from undrift.core.settings import nonnegative
from undrift.core.vector import Layout


class Server(State):
    x: Vector
    c: Vector  # mean of the clients' c
    h: Vector  # mean of the clients' drifts


class Client(State):
    c: Vector  # mean of the last local gradients
    h: Vector  # drift


class Down(Message):
    x: Vector
    c: Vector


class Up(Upload):
    x: Mean[Point[Vector]]
    dc: Mean[Move[Vector]]


class FedDC(Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedDC"
    paper: ClassVar[str] = (
        "Gao et al., FedDC: federated learning with non-IID data via local drift decoupling and correction, CVPR 2022"
    )
    caution: ClassVar[str] = (
        "under strong label skew a convolutional network may collapse at lr = 0.1; lr = 0.03 did not"
    )
    assumes_sgd: ClassVar[str] = "a client's correction is its displacement over the steps and their rate"
    cost: ClassVar[Cost] = Cost(down="d", up="d", kept="2 * d", flops="6 * K * d + 4 * d")
    steep: ClassVar[tuple[str, ...]] = ("alpha",)

    alpha: Annotated[float, "weight α of the drift penalty", nonnegative("a negative one pushes away from w - h")] = 0.1
    correct: Annotated[bool, "gradient correction c - c_i; without it the method is FedDyn"] = True
    weights: Annotated[Literal["samples", "uniform"], "weights of the means of models, variates and drifts"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x), zeros_like(x))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(x), zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.c)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        w, h, correction = down.x, me.h, down.c - me.c
        x = local.descend(lambda x, b: local.grad(x, b) + self.alpha * (x - w + h) + correction, w)
        c = me.c - down.c + (w - x) / (local.lr * local.travel) if self.correct else me.c  # as SCAFFOLD's option II
        return Up(x, c - me.c), Client(c, h + (x - w))

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        h = server.h + cohort.fraction * (up.x - server.x)
        return Server(up.x + h, server.c + cohort.fraction * up.dc, h)
