"""FedSAM and MoFedSAM. Qu et al., ICML 2022: gradients are taken a little uphill, so that flat minima win."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.algorithms.parts.sharpness import Uphill, sharp
from undrift.core.algorithm import Algorithm, Averaging, Broadcast, Cost, Displaced, Trained
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Message, Nothing, State, Vector
from undrift.core.settings import between, positive

PAPER = "Qu et al., Generalized federated learning via sharpness aware minimization, ICML 2022"


class FedSAM(Uphill, Averaging[Nothing]):
    title: ClassVar[str] = "FedSAM"
    paper: ClassVar[str] = PAPER
    cost: ClassVar[Cost] = Cost(gradients="n * E", flops="3 * K * d")

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        rho = self.radius(down.x)
        return Trained(local.descend(lambda x, b: sharp(local, local.grad, x, b, rho), down.x)), me


class Server(State):
    x: Vector
    delta: Vector  # the last round's mean direction, in the units of a gradient


class Down(Message):
    x: Vector
    delta: Vector


class MoFedSAM(Uphill, Algorithm[Server, Nothing, Down, Displaced]):
    title: ClassVar[str] = "MoFedSAM"
    paper: ClassVar[str] = PAPER
    cost: ClassVar[Cost] = Cost(down="d", gradients="n * E", flops="5 * K * d")
    assumes_sgd: ClassVar[str] = "the last update over the steps and their rate stands for a gradient"
    refuses_momentum: ClassVar[str] = "its direction is already a momentum, and its scale assumes plain steps"

    alpha: Annotated[
        float, "share α of the client's own gradient (the paper's β)", between(0, 1, "it is a mixture")
    ] = 0.1
    server_lr: Annotated[float, "server step size η_g", positive("at 0 the model stays, below 0 it climbs")] = 1.0
    weights: Annotated[Literal["samples", "uniform"], "weights of the mean of the displacements"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.delta)

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        rho, rest = self.radius(down.x), (1 - self.alpha) * down.delta
        x = local.descend(lambda x, b: self.alpha * sharp(local, local.grad, x, b, rho) + rest, down.x)
        return Displaced(down.x - x), me

    def server_update(self, server: Server, up: Displaced, cohort: Cohort) -> Server:
        delta = up.d / (cohort.lr * cohort.steps.mean())
        return Server(server.x - self.server_lr * up.d, delta)
