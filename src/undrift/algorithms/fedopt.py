"""FedAdam, FedYogi, FedAdagrad. Reddi et al., ICLR 2021, Algorithm 2: an adaptive optimiser on the server."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, full_like, sign, sqrt, zeros_like

from undrift.core.algorithm import Algorithm, Broadcast, Displaced
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Nothing, State, Vector
from undrift.core.settings import between, nonnegative, positive

PAPER = "Reddi et al., Adaptive federated optimization, ICLR 2021"


class Server(State):
    x: Vector
    m: Vector  # first moment
    v: Vector  # second moment


class FedOpt(Algorithm[Server, Nothing, Broadcast, Displaced]):
    """What the three have in common: all but the second moment."""

    steep: ClassVar[tuple[str, ...]] = ("server_lr",)

    server_lr: Annotated[float, "server step size η", positive("at 0 the model stays, below 0 it climbs")] = 0.03
    beta1: Annotated[float, "decay β_1 of the first moment", between(0, 1, "at 1 it stays at 0", open_high=True)] = 0.9
    tau: Annotated[float, "adaptivity τ", positive("the step divides by √v + τ")] = 1e-3
    v0: Annotated[float | None, "second moment before the first round; none: τ²", nonnegative("it is a square")] = None

    def second(self, v: Tensor, D: Tensor) -> Tensor:
        raise NotImplementedError

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x), full_like(x, self.tau**2 if self.v0 is None else self.v0))

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def server_update(self, server: Server, up: Displaced, cohort: Cohort) -> Server:
        D = -up.d  # the paper's Δ_t points downhill
        m = self.beta1 * server.m + (1 - self.beta1) * D
        v = self.second(server.v, D)
        return Server(server.x + self.server_lr * m / (sqrt(v) + self.tau), m, v)  # no bias correction


class FedAdagrad(FedOpt):
    title: ClassVar[str] = "FedAdagrad"
    paper: ClassVar[str] = PAPER

    beta1: Annotated[float, "decay β_1 of the first moment", between(0, 1, "at 1 it stays at 0", open_high=True)] = 0.0

    def second(self, v: Tensor, D: Tensor) -> Tensor:
        return v + D**2

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        return Displaced(down.x - local.descend(local.grad, down.x)), me


class FedYogi(FedOpt):
    title: ClassVar[str] = "FedYogi"
    paper: ClassVar[str] = PAPER

    beta2: Annotated[float, "decay β_2 of the second moment", between(0, 1, "it is a mixture")] = 0.99

    def second(self, v: Tensor, D: Tensor) -> Tensor:
        return v - (1 - self.beta2) * D**2 * sign(v - D**2)

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        return Displaced(down.x - local.descend(local.grad, down.x)), me


class FedAdam(FedOpt):
    title: ClassVar[str] = "FedAdam"
    paper: ClassVar[str] = PAPER

    beta2: Annotated[float, "decay β_2 of the second moment", between(0, 1, "it is a mixture")] = 0.99

    def second(self, v: Tensor, D: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * D**2

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Displaced, Nothing]:
        return Displaced(down.x - local.descend(local.grad, down.x)), me
