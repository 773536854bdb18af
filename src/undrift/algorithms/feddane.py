"""FedDANE. Li et al., Asilomar 2019: gradients are collected first, then every local step is corrected."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from undrift.core.algorithm import Algorithm, Broadcast, Cost, Trained
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Each, Had, Message, Move, Nothing, State, Upload, Vector
from undrift.core.reduce import weighted_mean
from undrift.core.settings import nonnegative


class Server(State):
    x: Vector
    g: Tensor  # within a round: the cohort's gradients at x, one per row; otherwise empty


class Gradient(Upload):
    g: Each[Move[Vector]]  # ∇F_i(w)


class Down(Message):
    x: Had[Vector]
    correction: Each[Vector]  # ĝ - ∇F_i(w), so that the client need not take its gradient again


class FedDANE(Algorithm[Server, Nothing, Down, Trained]):
    title: ClassVar[str] = "FedDANE"
    paper: ClassVar[str] = "Li et al., FedDANE: a federated Newton-type method, Asilomar 2019"
    caution: ClassVar[str] = (
        "under strong label skew many local steps leave the place where its correction holds; fewer steps "
        "helped an MLP, nothing that was tried helped LeNet"
    )
    cost: ClassVar[Cost] = Cost(down="d", up="d", gradients="n", flops="4 * K * d")
    exchanges: ClassVar[int] = 2
    steep: ClassVar[tuple[str, ...]] = ("mu",)

    mu: Annotated[float, "proximal weight μ of μ/2 ‖x - w‖²", nonnegative("a negative one pushes away from w")] = 0.01

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, x.new_empty(0, len(x)))

    def ask(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def survey(self, down: Broadcast, me: Nothing, local: Local) -> Gradient:
        return Gradient(local.full_grad(down.x))

    def surveyed(self, server: Server, up: Gradient, cohort: Cohort) -> Server:
        return Server(server.x, up.g)

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, weighted_mean(list(server.g), cohort.portions) - server.g)  # ĝ - g_i

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        w = down.x
        x = local.descend(lambda x, b: local.grad(x, b) + down.correction + self.mu * (x - w), w)
        return Trained(x), me

    def server_update(self, server: Server, up: Trained, cohort: Cohort) -> Server:
        return Server(up.x, server.g[:0])
