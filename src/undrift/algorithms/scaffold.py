"""SCAFFOLD. Karimireddy et al., ICML 2020, Algorithm 1: control variates cancel the clients' drift."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Mean, Message, Move, State, Upload, Vector
from undrift.core.settings import positive
from undrift.core.vector import Layout


class Server(State):
    x: Vector
    c: Vector


class Client(State):
    c: Vector


class Down(Message):
    x: Vector
    c: Vector


class Up(Upload):
    dy: Mean[Move[Vector]]
    dc: Mean[Move[Vector]]


class Scaffold(Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "SCAFFOLD"
    paper: ClassVar[str] = (
        "Karimireddy et al., SCAFFOLD: stochastic controlled averaging for federated learning, ICML 2020"
    )
    caution: ClassVar[str] = (
        "under strong label skew, with part of the clients a round, a convolutional network may collapse at "
        "lr = 0.1; a smaller lr helps"
    )
    assumes_sgd: ClassVar[str] = "a client's control variate is its displacement over the steps and their rate"
    cost: ClassVar[Cost] = Cost(
        down="d",
        up="d",
        kept="d",
        gradients="n if option == 'I' else 0",
        flops="2 * (K + (2 if option == 'II' else 1)) * d",
    )
    steep: ClassVar[tuple[str, ...]] = ("server_lr",)

    server_lr: Annotated[float, "global step size η_g", positive("at 0 the model stays, below 0 it climbs")] = 1.0
    option: Annotated[Literal["II", "I"], "refresh of c_i: from the path walked (II) or a full gradient at x (I)"] = (
        "II"
    )
    weights: Annotated[Literal["samples", "uniform"], "weights of the means of models and variates"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.c)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        y = local.descend(lambda y, b: local.grad(y, b) - me.c + down.c, down.x)  # line 10
        if self.option == "I":
            c = local.decayed(local.full_grad(down.x), down.x)  # line 12 (i)
        else:
            c = me.c - down.c + (down.x - y) / (local.lr * local.travel)  # line 12 (ii), A_K with momentum
        return Up(dy=y - down.x, dc=c - me.c), Client(c)

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        return Server(server.x + self.server_lr * up.dy, server.c + cohort.fraction * up.dc)  # lines 16, 17
