"""DOMO and DOMO-S. Xu et al., AAAI 2022: momentum on the server and on the clients, fused before or during training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Local
from undrift.core.records import Mean, Message, Move, Nothing, State, Upload, Vector
from undrift.core.settings import between, positive


class Server(State):
    x: Vector
    m: Vector  # server momentum, in the units of a gradient


class Down(Message):
    x: Vector
    m: Vector


class Up(Upload):
    D: Mean[Move[Vector]]  # the mean of the local momenta over the K steps


class Double(Algorithm[Server, Nothing, Down, Up]):
    """What the two have in common: the server, and momentum SGD on the client with a fixed extra push."""

    steep: ClassVar[tuple[str, ...]] = ("mu_s", "mu_l", "alpha")

    mu_s: Annotated[float, "server momentum μ_s", between(0, 1, "at 1 no update is ever forgotten", open_high=True)] = (
        0.5
    )
    mu_l: Annotated[
        float, "local momentum μ_l", between(0, 1, "at 1 no gradient is ever forgotten", open_high=True)
    ] = 0.5
    beta: Annotated[float, "fusion β of the server momentum into local training", between(0, 1, "it is a share")] = 0.5
    alpha: Annotated[float, "factor α of the server step", positive("at 0 the model stays, below 0 it climbs")] = 1.0
    weights: Annotated[Literal["samples", "uniform"], "weights of the mean of D_i"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.m)

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        m = self.mu_s * server.m + up.D
        return Server(server.x - self.alpha * cohort.lr * cohort.steps.mean() * m, m)

    def momentum_sgd(self, local: Local, start: Tensor, push: Tensor) -> Tensor:
        """h = μ_l h + g, x = x - η (h + push), from h = 0; weight decay is part of g."""

        def step(carry: tuple[Tensor, Tensor], b: Batch) -> tuple[Tensor, Tensor]:
            x, h = carry
            h = self.mu_l * h + local.decayed(local.clipped(local.grad(x, b)), x)
            return x - local.lr * (h + push), h

        return local.fold(step, (start, zeros_like(start)))[0]


class DOMO(Double):
    title: ClassVar[str] = "DOMO"
    paper: ClassVar[str] = "Xu, Huang, Zhang, Huang, Coordinating momenta for cross-silo federated learning, AAAI 2022"
    cost: ClassVar[Cost] = Cost(down="d", flops="2 * K * d")
    refuses_momentum: ClassVar[str] = "it has its own, mu_l"
    refuses_optimisers: ClassVar[str] = "its momentum steps are its own"

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        start = down.x - local.lr * local.steps * self.beta * down.m  # the whole push before the first step
        x = self.momentum_sgd(local, start, zeros_like(start))
        return Up((start - x) / (local.lr * local.steps)), me  # from the shifted start: from w it would count βm twice


class DOMOS(Double):
    title: ClassVar[str] = "DOMO-S"
    paper: ClassVar[str] = DOMO.paper
    cost: ClassVar[Cost] = Cost(down="d", flops="4 * K * d")
    refuses_momentum: ClassVar[str] = "it has its own, mu_l"
    refuses_optimisers: ClassVar[str] = "its momentum steps are its own"

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        push = self.beta * down.m  # a part of the push in every step
        x = self.momentum_sgd(local, down.x, push)
        return Up((down.x - x) / (local.lr * local.steps) - push), me
