"""FastSlowMo. Yang et al., 2022: FedNAG's clients (fast momentum), and momentum on the server as well (slow)."""

from __future__ import annotations

import warnings
from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Mean, Message, Nothing, Point, State, Upload, Vector
from undrift.core.settings import between
from undrift.core.training import Training
from undrift.core.vector import Layout


class Server(State):
    x: Vector  # x_+: sent, and evaluated
    u: Vector  # the clients' momentum in the units of a gradient: y = x + ηγu
    X: Vector  # the last plain average


class Down(Message):
    x: Vector
    u: Vector


class Up(Upload):
    x: Mean[Point[Vector]]
    u: Mean[Point[Vector]]


class FastSlowMo(Algorithm[Server, Nothing, Down, Up]):
    title: ClassVar[str] = "FastSlowMo"
    paper: ClassVar[str] = (
        "Yang et al., FastSlowMo: federated learning with combined worker and aggregator momenta, 2022"
    )
    refuses_optimisers: ClassVar[str] = "its Nesterov steps are its own"
    cost: ClassVar[Cost] = Cost(down="d", up="d", flops="4 * K * d")
    refuses_momentum: ClassVar[str] = "it carries its own momentum gamma from round to round"
    steep: ClassVar[tuple[str, ...]] = ("gamma", "gamma_a")

    gamma: Annotated[
        float, "worker momentum γ", between(0, 1, "at 1 no gradient is ever forgotten", open_high=True)
    ] = 0.5
    gamma_a: Annotated[
        float, "aggregator momentum γ_a", between(0, 1, "at 1 no update is ever forgotten", open_high=True)
    ] = 0.5
    form: Annotated[
        Literal["position", "velocity"], "workers resume from the mean of their points y, or of their momenta u"
    ] = "velocity"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x), x)

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.u)

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        x, u = local.nesterov(down.x, down.u, self.gamma)
        return Up(x, u), me

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        slow = self.gamma_a * (up.x - server.X)
        u = up.u
        if self.form == "position" and self.gamma:  # y stays at the mean ȳ while x moves on: u = (ȳ - x_+)/(ηγ)
            u = u - slow / (cohort.lr * self.gamma)
        return Server(up.x + slow, u, up.x)

    def check(self, training: Training, layout: Layout, steps: int) -> None:
        total = self.gamma_a / (1 - self.gamma)
        if self.form == "position" and total > 1:
            warnings.warn(
                f"FastSlowMo: in the position form the server momentum acts as gamma_a/(1-gamma) = {total:.3g} > 1 and "
                f"may oscillate without end; gamma_a up to {1 - self.gamma:.3g} or form = velocity is safe",
                stacklevel=2,
            )
