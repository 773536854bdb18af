"""FedGKD. Yao et al., 2021: the mean of the last global models teaches the clients its output distribution."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, cat
from torch.nn.functional import log_softmax

from undrift.core.algorithm import Algorithm, Cost, Trained
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Local
from undrift.core.records import Message, Nothing, State, Vector
from undrift.core.settings import at_least, nonnegative, positive


class Server(State):
    x: Vector
    past: Tensor  # the last global models, one per row, the newest last


class Down(Message):
    x: Vector
    teacher: Tensor  # the mean of the last global models; empty where that is x itself


class FedGKD(Algorithm[Server, Nothing, Down, Trained]):
    title: ClassVar[str] = "FedGKD"
    paper: ClassVar[str] = (
        "Yao et al., Local-global knowledge distillation in heterogeneous federated learning with non-IID data, 2021"
    )
    cost: ClassVar[Cost] = Cost(down="d if history > 1 else 0", forwards="n * E")
    steep: ClassVar[tuple[str, ...]] = ("gamma",)

    gamma: Annotated[
        float, "weight γ of the distillation (the whole factor, not γ/2)", nonnegative("it would teach the opposite")
    ] = 0.2
    temperature: Annotated[float, "temperature T of the distillation", positive("logits are divided by it")] = 1.0
    history: Annotated[
        int, "number of global models that the teacher is the mean of", at_least(1, "no model, no mean")
    ] = 1
    distance: Annotated[Literal["kl", "mse"], "divergence of the distributions, or squared distance of logits"] = "kl"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, x.unsqueeze(0))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.past.mean(0) if self.history > 1 else server.x[:0])

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        w = down.teacher if self.history > 1 else down.x

        def direction(x: Tensor, b: Batch) -> Tensor:
            z_t = local.outputs(w, b)

            def loss(x: Tensor, b: Batch) -> Tensor:
                z = local.outputs(x, b)
                return local.criterion(z, b) + self.gamma * b.mean(self.distillation(z, z_t))

            return local.grad_of(loss)(x, b)

        return Trained(local.descend(direction if local.round > 1 else local.grad, down.x)), me

    def distillation(self, z: Tensor, z_t: Tensor) -> Tensor:
        """T² KL(softmax(z_t/T) ‖ softmax(z/T)) or the mean squared difference of the logits, one number per sample."""
        if self.distance == "mse":
            return (z - z_t).square().mean(1)
        T = self.temperature
        log_p, log_q = log_softmax(z_t / T, dim=1), log_softmax(z / T, dim=1)
        return T**2 * (log_p.exp() * (log_p - log_q)).sum(1)

    def server_update(self, server: Server, up: Trained, cohort: Cohort) -> Server:
        return Server(up.x, cat([server.past, up.x.unsqueeze(0)])[-self.history :])
