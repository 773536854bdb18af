"""FedRep. Collins et al., ICML 2021, Algorithm 1: a shared body, and a head of its own for every client."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Body, Head, Mean, Message, Point, State, Upload
from undrift.core.settings import at_least
from undrift.core.vector import Layout


class Server(State):
    body: Body  # φ; the server never sees a head


class Client(State):
    head: Head  # h_i


class Down(Message):
    body: Body


class Up(Upload):
    body: Mean[Point[Body]]


class FedRep(Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedRep"
    paper: ClassVar[str] = (
        "Collins et al., Exploiting shared representations for personalized federated learning, ICML 2021"
    )
    cost: ClassVar[Cost] = Cost(
        down="-head",
        up="-head",
        kept="head",
        gradients="0 if body_epochs is None else (body_epochs - E) * n",
        head_gradients="head_epochs * n",
    )

    head_epochs: Annotated[
        int, "passes over the data for the head, with the body frozen", at_least(0, "a number of passes")
    ] = 10
    body_epochs: Annotated[
        int | None,
        "passes over the data for the body, with the head frozen; none: as every method",
        at_least(1, "it would never learn"),
    ] = None

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(population.layout.split(x, "body"))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(layout.split(x, "head"))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.body)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        head_steps = local.epochs(self.head_epochs)
        body_steps = local.steps if self.body_epochs is None else local.epochs(self.body_epochs)
        w = local.layout.join(body=down.body, head=me.head)
        x = local.descend(lambda x, b: local.grad(x, b, only="head"), w, head_steps, only="head")
        x = local.descend(lambda x, b: local.grad(x, b, only="body"), x, body_steps, only="body")
        return Up(local.layout.split(x, "body")), Client(local.layout.split(x, "head"))

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        return Server(up.body)

    def models(self, server: Server) -> dict[str, Tensor]:
        return {}

    def personal(self, down: Down, me: Client, layout: Layout) -> Tensor:
        return layout.join(body=down.body, head=me.head)

    def needs_features(self) -> bool:
        return self.head_epochs > 0
