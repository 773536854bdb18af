"""FedSMOO. Sun et al., ICML 2023: FedSpeed, with a second dual that makes the clients agree on the ascent as well."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.algorithms.parts.sharpness import Uphill, ascent
from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Local
from undrift.core.records import Mean, Message, Move, Point, State, Upload, Vector
from undrift.core.settings import nonnegative
from undrift.core.vector import Layout

Carry = tuple[Tensor, Tensor, Tensor]


class Server(State):
    x: Vector
    h: Vector  # the mean of all clients' duals h_i
    s: Vector  # the common ascent


class Client(State):
    h: Vector  # dual of the model
    mu: Vector  # dual of the ascent


class Down(Message):
    x: Vector
    s: Vector


class Up(Upload):
    x: Mean[Point[Vector]]
    mu: Mean[Move[Vector]]


class FedSMOO(Uphill, Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedSMOO"
    paper: ClassVar[str] = (
        "Sun et al., Dynamic regularized sharpness aware minimization in federated learning, ICML 2023"
    )
    refuses_optimisers: ClassVar[str] = "its dual variable moves with every step of sgd"
    cost: ClassVar[Cost] = Cost(down="d", up="d", kept="2 * d", gradients="n * E", flops="9 * K * d")

    lambda_p: Annotated[float, "proximal weight λ_p", nonnegative("a negative one pushes away from w")] = 0.1
    weights: Annotated[Literal["samples", "uniform"], "weights of the means of models and duals"] = "uniform"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x), zeros_like(x))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(x), zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.s)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        w, s, rho = down.x, down.s, self.radius(down.x)

        def step(carry: Carry, b: Batch) -> Carry:
            x, mu, m = carry
            e = ascent(local.undecayed(local.grad(x, b), x) - mu - s, rho)
            g = local.undecayed(local.grad(x + e, b), e)
            x, m = local.move(x, g + self.lambda_p * (x - w + me.h), m)
            return x, mu + e - s, m

        x, mu, _ = local.fold(step, (w, me.mu, zeros_like(w)))
        return Up(x, mu), Client(me.h + (x - w), mu)

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        h = server.h + cohort.fraction * (up.x - server.x)  # every dual moved by w_i - w: it need not be sent
        x = up.x + h
        return Server(x, h, ascent(up.mu, self.radius(x)))

    def models(self, server: Server) -> dict[str, Tensor]:
        return {"global": server.x, "cohort mean": server.x - server.h}
