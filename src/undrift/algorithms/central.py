"""Centralised training, the other reference line: one model on the pooled data, as many steps as a client."""

from __future__ import annotations

from typing import ClassVar

from undrift.core.algorithm import Averaging, Broadcast, Trained
from undrift.core.local import Local
from undrift.core.records import Nothing


class Central(Averaging[Nothing]):
    title: ClassVar[str] = "Centralised training"
    paper: ClassVar[str] = "reference line: the pooled data"
    pools_data: ClassVar[bool] = True  # the cohort is one client that holds all samples

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        return Trained(local.descend(local.grad, down.x)), me
