"""Local training, the reference line without federation: every client trains its own model, nothing is exchanged."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

import undrift.core.local as client
from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.records import Message, Nothing, State, Upload, Vector
from undrift.core.vector import Layout


class Own(State):
    x: Vector  # the client's own model


class Down(Message):
    """Nothing goes down."""


class Up(Upload):
    """Nothing comes up."""


class Local(Algorithm[Nothing, Own, Down, Up]):
    title: ClassVar[str] = "Local training"
    paper: ClassVar[str] = "reference line: no federation"
    caution: ClassVar[str] = (
        "clients learn nothing from each other: the reference line for personal models, poor where data are alike"
    )
    cost: ClassVar[Cost] = Cost(down="-d", up="-d", kept="d")
    shares_buffers: ClassVar[bool] = False

    def server_init(self, x: Tensor, population: Population) -> Nothing:
        return Nothing()

    def client_init(self, x: Tensor, layout: Layout) -> Own:
        return Own(x)

    def broadcast(self, server: Nothing, cohort: Cohort) -> Down:
        return Down()

    def client_update(self, down: Down, me: Own, local: client.Local) -> tuple[Up, Own]:
        return Up(), Own(local.descend(local.grad, me.x))

    def server_update(self, server: Nothing, up: Up, cohort: Cohort) -> Nothing:
        return server

    def models(self, server: Nothing) -> dict[str, Tensor]:
        return {}

    def personal(self, down: Down, me: Own, layout: Layout) -> Tensor:
        return me.x
