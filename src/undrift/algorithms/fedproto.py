"""FedProto. Tan et al., AAAI 2022, Algorithm 1: clients share the mean feature of each class, never a model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, where

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Local
from undrift.core.records import Message, PerClass, State, Sum, Table, Upload, Vector
from undrift.core.settings import nonnegative
from undrift.core.vector import Layout


class Server(State):
    proto: Table
    seen: PerClass  # 1 for a class that has a prototype, 0 for the others


class Client(State):
    x: Vector  # the client's own model


class Down(Message):
    proto: Table
    seen: PerClass


class Up(Upload):
    proto: Sum[Table]  # m_j times the client's prototype of class j
    m: Sum[PerClass]  # the weight of the client in class j; 0: it has no sample of it


class FedProto(Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedProto"
    paper: ClassVar[str] = "Tan et al., FedProto: federated prototype learning across heterogeneous clients, AAAI 2022"
    cost: ClassVar[Cost] = Cost(down="C * f + C - d", up="C * f + C - d", kept="d", forwards="n", flops="3 * K * M * f")
    needs_features: ClassVar[bool] = True
    shares_buffers: ClassVar[bool] = False

    lam: Annotated[float, "weight λ of the distance to the prototypes", nonnegative()] = 1.0
    average: Annotated[Literal["clients", "samples"], "a class's prototype: mean over its owners, or their samples"] = (
        "clients"
    )

    def server_init(self, x: Tensor, population: Population) -> Server:
        layout = population.layout
        return Server(x.new_zeros(layout.classes, layout.features), x.new_zeros(layout.classes))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(x)

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.proto, server.seen)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        def loss(x: Tensor, b: Batch) -> Tensor:
            z, outputs = local.forward(x, b)
            gap = (z.flatten(1) - down.proto[b.y]).square().mean(1) * down.seen[b.y]
            return local.criterion(outputs, b) + self.lam * b.mean(gap)  # eq. 7

        x = local.descend(local.grad_of(loss), me.x)
        sums, n = local.class_sums(x)  # eq. 3, with the final model
        if self.average == "samples":
            return Up(sums, n), Client(x)
        return Up(sums / n.clamp(min=1).unsqueeze(1), (n > 0).type_as(n)), Client(x)

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        here = up.m > 0
        mean = up.proto / where(here, up.m, 1).unsqueeze(1)  # eq. 6, normalised once: see the page of the method
        return Server(where(here.unsqueeze(1), mean, server.proto), where(here, 1, server.seen))

    def models(self, server: Server) -> dict[str, Tensor]:
        return {}

    def personal(self, server: Server, me: Client, client: int, layout: Layout) -> Tensor:
        return me.x
