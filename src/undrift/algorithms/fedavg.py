"""FedAvg. McMahan et al., AISTATS 2017, Algorithm 1: clients train, the server averages their models."""

from __future__ import annotations

from typing import Annotated, ClassVar

from undrift.core.algorithm import Averaging, Broadcast, Global, Trained
from undrift.core.cohort import Cohort
from undrift.core.local import Local
from undrift.core.records import Nothing
from undrift.core.settings import positive


class FedAvg(Averaging[Nothing]):
    title: ClassVar[str] = "FedAvg"
    paper: ClassVar[str] = (
        "McMahan et al., Communication-efficient learning of deep networks from decentralized data, AISTATS 2017"
    )

    server_lr: Annotated[float, "server step size η_g", positive("at 0 the model stays, below 0 it climbs")] = 1.0

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        return Trained(local.descend(local.grad, down.x)), me

    def server_update(self, server: Global, up: Trained, cohort: Cohort) -> Global:
        return Global(up.x if self.server_lr == 1 else server.x + self.server_lr * (up.x - server.x))
