"""FedDyn. Acar et al., ICLR 2021, Algorithm 1: a dual variable per client aligns local optima with the global one."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Broadcast, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Like, Mean, Move, Point, State, Upload, Vector
from undrift.core.settings import positive
from undrift.core.vector import Layout


class Server(State):
    x: Vector
    h: Vector  # mean of the clients' duals
    last: Tensor  # mean of all clients' last models; empty unless it is followed


class Client(State):
    lam: Vector  # ∇L_k at the client's last model
    last: Tensor  # that model; empty unless it is followed


class Up(Upload):
    x: Mean[Point[Vector]]
    moved: Mean[Move[Annotated[Tensor, Like("last")]]]  # since its last model; empty unless that is followed


class FedDyn(Algorithm[Server, Client, Broadcast, Up]):
    title: ClassVar[str] = "FedDyn"
    paper: ClassVar[str] = "Acar et al., Federated learning based on dynamic regularization, ICLR 2021"
    cost: ClassVar[Cost] = Cost(up="d * follow", kept="d + d * follow", flops="4 * K * d")

    alpha: Annotated[float, "weight α of the dynamic regulariser", positive("the server divides by it")] = 0.1
    weights: Annotated[Literal["samples", "uniform"], "weights of the means of models and duals"] = "uniform"
    follow: Annotated[bool, "evaluate the mean of all clients' last models too; it takes one more vector up"] = False

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x), x if self.follow else x[:0])

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(x), x if self.follow else x[:0])

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def client_update(self, down: Broadcast, me: Client, local: Local) -> tuple[Up, Client]:
        w = down.x
        x = local.descend(lambda x, b: local.grad(x, b) - me.lam + self.alpha * (x - w), w)
        last = x if self.follow else me.last
        return Up(x, last - me.last), Client(me.lam - self.alpha * (x - w), last)

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        h = server.h - self.alpha * cohort.fraction * (up.x - server.x)  # (α/N) Σ_S (w_i - w)
        return Server(up.x - h / self.alpha, h, server.last + cohort.fraction * up.moved)

    def models(self, server: Server) -> dict[str, Tensor]:
        found = {"global": server.x, "cohort mean": server.x + server.h / self.alpha}
        return found | ({"client mean": server.last} if self.follow else {})
