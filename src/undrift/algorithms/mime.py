"""Mime and MimeLite. Karimireddy et al., NeurIPS 2021: the server's momentum, frozen, acts in every local step."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Broadcast, Cost, D, Trained, U
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Had, Mean, Message, Move, Nothing, Point, State, Upload, Vector
from undrift.core.settings import between, positive


class Server(State):
    x: Vector
    m: Vector  # momentum: exponential mean of the cohorts' gradients
    c: Tensor  # within a round of Mime: the cohort's gradient at x; otherwise empty


class Down(Message):
    x: Vector
    m: Vector


class Up(Upload):
    x: Mean[Point[Vector]]
    c: Mean[Move[Vector]]  # the full gradient at the received model, not at the trained one


class Frozen(Algorithm[Server, Nothing, D, U]):
    """What the two have in common: the base optimiser's state changes on the server alone."""

    paper: ClassVar[str] = (
        "Karimireddy et al., Breaking the centralized barrier for cross-device federated learning, NeurIPS 2021"
    )
    caution: ClassVar[str] = (
        "under strong label skew many local steps leave the place where its corrections hold; fewer steps "
        "helped an MLP, nothing that was tried helped LeNet"
    )
    assumes_sgd: ClassVar[str] = "the server's momentum is that of a frozen sgd"
    refuses_momentum: ClassVar[str] = "the server's momentum takes its place"

    beta: Annotated[float, "momentum β of all steps", between(0, 1, "at 1 no gradient counts", open_high=True)] = 0.5
    server_lr: Annotated[float, "server step size η_g", positive("at 0 the model stays, below 0 it climbs")] = 1.0

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x), x[:0])

    def moved(self, server: Server, x: Tensor, c: Tensor) -> Server:
        """The server after a round in which the cohort's mean model is x and its gradient c."""
        x = x if self.server_lr == 1 else server.x + self.server_lr * (x - server.x)
        return Server(x, (1 - self.beta) * c + self.beta * server.m, c[:0])


class MimeLite(Frozen[Down, Up]):
    title: ClassVar[str] = "MimeLite"
    cost: ClassVar[Cost] = Cost(down="d", up="d", gradients="n", flops="3 * K * d")

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.m)

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        x = local.descend(lambda x, b: (1 - self.beta) * local.grad(x, b) + self.beta * down.m, down.x)
        return Up(x, local.full_grad(down.x)), me

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        return self.moved(server, up.x, up.c)


class Gradient(Upload):
    c: Mean[Move[Vector]]


class FullDown(Message):
    x: Had[Vector]
    m: Vector
    c: Vector


class Mime(Frozen[FullDown, Trained]):
    title: ClassVar[str] = "Mime"
    cost: ClassVar[Cost] = Cost(down="2 * d", up="d", gradients="n + n * E", flops="6 * K * d")
    exchanges: ClassVar[int] = 2

    def ask(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def survey(self, down: Broadcast, me: Nothing, local: Local) -> Gradient:
        return Gradient(local.full_grad(down.x))

    def surveyed(self, server: Server, up: Gradient, cohort: Cohort) -> Server:
        return Server(server.x, server.m, up.c)

    def broadcast(self, server: Server, cohort: Cohort) -> FullDown:
        return FullDown(server.x, server.m, server.c)

    def client_update(self, down: FullDown, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        w, beta = down.x, self.beta  # SVRG, with the same batch at x and at w:
        x = local.descend(lambda x, b: (1 - beta) * (local.grad(x, b) - local.grad(w, b) + down.c) + beta * down.m, w)
        return Trained(x), me

    def server_update(self, server: Server, up: Trained, cohort: Cohort) -> Server:
        return self.moved(server, up.x, server.c)
