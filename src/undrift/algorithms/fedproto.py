"""FedProto. Tan et al., AAAI 2022, Algorithm 1: clients share the mean feature of each class, never a model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor

from undrift.algorithms.parts.centroids import Classes, choosing_nearest, distance, no_centroids
from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.errors import InvalidInput
from undrift.core.local import Batch, Local
from undrift.core.records import Message, State, Table, Vector
from undrift.core.settings import nonnegative
from undrift.core.training import Training
from undrift.core.vector import Layout


class Server(State):
    proto: Table  # NaN for a class that nobody has had so far


class Client(State):
    x: Vector  # the client's own model


class Down(Message):
    proto: Table


class FedProto(Algorithm[Server, Client, Down, Classes]):
    title: ClassVar[str] = "FedProto"
    paper: ClassVar[str] = "Tan et al., FedProto: federated prototype learning across heterogeneous clients, AAAI 2022"
    caution: ClassVar[str] = (
        "clients share prototypes only, so where they hold the same classes each learns from its own few samples"
    )
    cost: ClassVar[Cost] = Cost(down="C * f - d", up="C_i * (f + 1) - d", kept="d", forwards="n", flops="3 * K * M * f")
    shares_buffers: ClassVar[bool] = False

    lam: Annotated[float, "weight λ of the distance to the prototypes", nonnegative("it would repel")] = 1.0
    average: Annotated[Literal["clients", "samples"], "a class's prototype: mean over its owners, or their samples"] = (
        "clients"
    )
    inference: Annotated[
        Literal["classifier", "prototypes"], "what decides: the client's classifier, or the nearest prototype"
    ] = "classifier"

    def needs_features(self) -> bool:
        return True

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(no_centroids(x, population.layout))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(x)

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.proto)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Classes, Client]:
        def loss(x: Tensor, b: Batch) -> Tensor:
            z, outputs = local.forward(x, b)
            return local.criterion(outputs, b) + self.lam * distance(z, down.proto, b)  # eq. 7

        x = local.descend(local.grad_of(loss), me.x)
        sums, n = local.class_sums(x)  # eq. 3, with the final model
        if self.average == "samples":
            return Classes(sums, n), Client(x)
        return Classes(sums / n.clamp(min=1).unsqueeze(1), (n > 0).type_as(n)), Client(x)

    def server_update(self, server: Server, up: Classes, cohort: Cohort) -> Server:
        return Server(up.renewed(server.proto))  # eq. 6, normalised once: see the page of the method

    def models(self, server: Server) -> dict[str, Tensor]:
        return {}

    def personal(self, down: Down, me: Client, layout: Layout) -> Tensor:
        return me.x if self.inference == "classifier" else choosing_nearest(down.proto, me.x, layout)

    def check(self, training: Training, layout: Layout, steps: int) -> None:
        shapes = [tuple(shape) for shape, is_head in zip(layout.shapes, layout.head, strict=True) if is_head]
        if self.inference == "prototypes" and shapes != [(layout.classes, layout.features), (layout.classes,)]:
            raise InvalidInput("FedProto: inference = prototypes needs a model whose last layer is linear, with a bias")
