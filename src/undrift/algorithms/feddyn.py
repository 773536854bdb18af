"""FedDyn. Acar et al., ICLR 2021, Algorithm 1: a dual variable per client aligns local optima with the global one."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Broadcast, Cost, Trained
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import State, Vector
from undrift.core.settings import positive
from undrift.core.vector import Layout


class Server(State):
    x: Vector
    h: Vector  # mean of the clients' duals


class Client(State):
    lam: Vector  # ∇L_k at the client's last model


class FedDyn(Algorithm[Server, Client, Broadcast, Trained]):
    title: ClassVar[str] = "FedDyn"
    paper: ClassVar[str] = "Acar et al., Federated learning based on dynamic regularization, ICLR 2021"
    cost: ClassVar[Cost] = Cost(kept="d", flops="4 * K * d")

    alpha: Annotated[float, "weight α of the dynamic regulariser", positive("the server divides by it")] = 0.1
    weights: Annotated[Literal["samples", "uniform"], "weights of the means of models and duals"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def client_update(self, down: Broadcast, me: Client, local: Local) -> tuple[Trained, Client]:
        w = down.x
        x = local.descend(lambda x, b: local.grad(x, b) - me.lam + self.alpha * (x - w), w)
        return Trained(x), Client(me.lam - self.alpha * (x - w))

    def server_update(self, server: Server, up: Trained, cohort: Cohort) -> Server:
        h = server.h - self.alpha * cohort.fraction * (up.x - server.x)  # (α/N) Σ_S (w_i - w)
        return Server(up.x - h / self.alpha, h)

    def models(self, server: Server) -> dict[str, Tensor]:
        return {"global": server.x, "cohort mean": server.x + server.h / self.alpha}
