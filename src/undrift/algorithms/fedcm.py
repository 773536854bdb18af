"""FedCM. Xu et al., 2021, Algorithm 2: every local step mixes the client's gradient with the last global direction."""

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
    delta: Vector  # the last round's mean direction, in the units of a gradient


class Down(Message):
    x: Vector
    delta: Vector


class FedCM(Algorithm[Server, Nothing, Down, Displaced]):
    title: ClassVar[str] = "FedCM"
    paper: ClassVar[str] = "Xu et al., FedCM: federated learning with client-level momentum, arXiv:2106.10874, 2021"
    assumes_sgd: ClassVar[str] = "the last update over the steps and their rate stands for a gradient"
    cost: ClassVar[Cost] = Cost(down="d", flops="2 * K * d")
    refuses_momentum: ClassVar[str] = "its direction is already a momentum, and its scale assumes plain steps"
    steep: ClassVar[tuple[str, ...]] = ("server_lr",)

    alpha: Annotated[float, "share α of the client's own gradient", between(0, 1, "it is a mixture")] = 0.1
    server_lr: Annotated[float, "server step size η_g", positive("at 0 the model stays, below 0 it climbs")] = 1.0
    weights: Annotated[Literal["samples", "uniform"], "weights of the mean of the displacements"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.delta)

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        rest = (1 - self.alpha) * down.delta
        x = local.descend(lambda x, b: self.alpha * local.grad(x, b) + rest, down.x)  # v = αg + (1-α)Δ
        return Displaced(down.x - x), me

    def server_update(self, server: Server, up: Displaced, cohort: Cohort) -> Server:
        delta = up.d / (cohort.lr * cohort.steps.mean())  # by the rate that made it: 1/(η K |S|) Σ d_i
        return Server(server.x - self.server_lr * up.d, delta)
