"""FedExP. Jhunjhunwala, Wang, Joshi, ICLR 2023: FedAvg, with a server step that grows where the clients disagree."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from torch import Tensor, float64, tensor

from undrift.core.algorithm import Algorithm, Broadcast, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Mean, Move, Nothing, Scalar, State, Upload, Vector
from undrift.core.settings import nonnegative
from undrift.core.vector import double


class Server(State):
    x: Vector
    last: Vector  # the model of the round before
    lr: Scalar  # the learning rate of the first round; 0 before it


class Up(Upload):
    d: Mean[Move[Vector]]
    square: Mean[Scalar]  # ‖d_i‖²

    def derived(self) -> Up:
        return Up(self.d, double(self.d).square().sum(-1))


class FedExP(Algorithm[Server, Nothing, Broadcast, Up]):
    title: ClassVar[str] = "FedExP"
    paper: ClassVar[str] = (
        "Jhunjhunwala, Wang, Joshi, FedExP: speeding up federated averaging via extrapolation, ICLR 2023"
    )
    cost: ClassVar[Cost] = Cost(flops="2 * d")

    eps: Annotated[
        float,
        "ε in the denominator; shrinks with the square of the learning rate",
        nonnegative("a negative one could make it 0"),
    ] = 1e-3
    eps_scale: Annotated[Literal["cohort", "one"], "ε times |S| (authors' code) or as it is (paper)"] = "cohort"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, x, tensor(0.0).double())

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        d = down.x - local.descend(local.grad, down.x)
        return Up(d, double(d).square().sum()), me

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        first = float(server.lr) or cohort.lr
        eps = self.eps * (cohort.size if self.eps_scale == "cohort" else 1) * (cohort.lr / first) ** 2
        below = 2 * (float(double(up.d).square().sum()) + eps)
        server_lr = max(1.0, float(up.square) / below) if below else 1.0  # eq. 7
        cohort.note("server_lr", server_lr)
        return Server(server.x - server_lr * up.d, server.x, tensor(first, dtype=float64))

    def skipped(self, server: Server, cohort: Cohort) -> Server:
        return replace(server, lr=tensor(float(server.lr) or cohort.lr, dtype=float64))  # ε counts from the first round

    def models(self, server: Server) -> dict[str, Tensor]:
        return {
            "global": (server.x + server.last) / 2,
            "last": server.x,
        }  # the paper evaluates the mean of the last two
