"""Mime and MimeLite. Karimireddy et al., NeurIPS 2021: the server's momentum, frozen, acts in every local step."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Broadcast, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Local
from undrift.core.records import Had, Mean, Message, Nothing, State, Upload, Vector
from undrift.core.settings import between, positive

PAPER = "Karimireddy et al., Breaking the centralized barrier for cross-device federated learning, NeurIPS 2021"
MOMENTUM = "the server's momentum takes its place"


class Server(State):
    x: Vector
    m: Vector  # momentum: exponential mean of the cohorts' gradients
    c: Vector  # within a round of Mime: the cohort's gradient at x


class Gradient(Upload):
    c: Mean[Vector]


class Down(Message):
    x: Had[Vector]
    m: Vector
    c: Vector


class Up(Upload):
    x: Mean[Vector]


class Mime(Algorithm[Server, Nothing, Down, Up]):
    title: ClassVar[str] = "Mime"
    paper: ClassVar[str] = PAPER
    cost: ClassVar[Cost] = Cost(down="2 * d", up="d", gradients="n + n * E", flops="6 * K * d")
    exchanges: ClassVar[int] = 2
    refuses_momentum: ClassVar[str] = MOMENTUM

    beta: Annotated[float, "momentum β of the base optimiser", between(0, 1, open_high=True)] = 0.9
    server_lr: Annotated[float, "server step size η_g", positive()] = 1.0

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x), zeros_like(x))

    def ask(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def survey(self, down: Broadcast, me: Nothing, local: Local) -> Gradient:
        return Gradient(local.full_grad(down.x))

    def surveyed(self, server: Server, up: Gradient, cohort: Cohort) -> Server:
        return Server(server.x, server.m, up.c)

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.m, server.c)

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        w, beta = down.x, self.beta

        def direction(x: Tensor, b: Batch) -> Tensor:
            v = local.grad(x, b) - local.grad(w, b) + down.c  # SVRG: the same batch at x and at w
            return (1 - beta) * v + beta * down.m

        return Up(local.descend(direction, w)), me

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        x = up.x if self.server_lr == 1 else server.x + self.server_lr * (up.x - server.x)
        return Server(x, (1 - self.beta) * server.c + self.beta * server.m, zeros_like(server.c))


class LiteServer(State):
    x: Vector
    m: Vector


class LiteDown(Message):
    x: Vector
    m: Vector


class LiteUp(Upload):
    x: Mean[Vector]
    c: Mean[Vector]  # the full gradient at the received model, not at the trained one


class MimeLite(Algorithm[LiteServer, Nothing, LiteDown, LiteUp]):
    title: ClassVar[str] = "MimeLite"
    paper: ClassVar[str] = PAPER
    cost: ClassVar[Cost] = Cost(down="d", up="d", gradients="n", flops="3 * K * d")
    refuses_momentum: ClassVar[str] = MOMENTUM

    beta: Annotated[float, "momentum β of the base optimiser", between(0, 1, open_high=True)] = 0.9
    server_lr: Annotated[float, "server step size η_g", positive()] = 1.0

    def server_init(self, x: Tensor, population: Population) -> LiteServer:
        return LiteServer(x, zeros_like(x))

    def broadcast(self, server: LiteServer, cohort: Cohort) -> LiteDown:
        return LiteDown(server.x, server.m)

    def client_update(self, down: LiteDown, me: Nothing, local: Local) -> tuple[LiteUp, Nothing]:
        beta = self.beta
        x = local.descend(lambda x, b: (1 - beta) * local.grad(x, b) + beta * down.m, down.x)
        return LiteUp(x, local.full_grad(down.x)), me

    def server_update(self, server: LiteServer, up: LiteUp, cohort: Cohort) -> LiteServer:
        x = up.x if self.server_lr == 1 else server.x + self.server_lr * (up.x - server.x)
        return LiteServer(x, (1 - self.beta) * up.c + self.beta * server.m)
