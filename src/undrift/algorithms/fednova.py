"""FedNova. Wang et al., NeurIPS 2020: clients' updates are normalised by how far their steps can carry."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, tensor, zeros_like

from undrift.core.algorithm import Algorithm, Broadcast
from undrift.core.cohort import Cohort, Population
from undrift.core.errors import InvalidInput
from undrift.core.local import Local
from undrift.core.records import Mean, Move, Nothing, Scalar, State, Upload, Vector
from undrift.core.settings import between, nonnegative
from undrift.core.training import Training
from undrift.core.vector import Layout

FARTHEST = 1e3  # of plain steps that a step carries, with any momentum


class Server(State):
    x: Vector
    b: Vector  # slow momentum, in the units of a gradient


class Up(Upload):
    step: Mean[Move[Vector]]  # d_i / a_i
    a: Mean[Scalar]  # ‖a_i‖_1

    def doubt(self, samples: int, steps: int) -> str | None:
        return None if 0 < float(self.a) <= FARTHEST * steps else f"a = {float(self.a):.3g} after {steps} steps"


class FedNova(Algorithm[Server, Nothing, Broadcast, Up]):
    title: ClassVar[str] = "FedNova"
    paper: ClassVar[str] = (
        "Wang et al., Tackling the objective inconsistency problem in heterogeneous federated optimization, "
        "NeurIPS 2020"
    )
    assumes_sgd: ClassVar[str] = "how far a client travels is worked out from its steps"
    steep: ClassVar[tuple[str, ...]] = ("mu", "gmf")

    mu: Annotated[float, "proximal weight μ of the local steps", nonnegative("a negative one pushes away from w")] = 0.0
    gmf: Annotated[
        float, "slow momentum on the server", between(0, 1, "at 1 no update is ever forgotten", open_high=True)
    ] = 0.0

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, zeros_like(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        w, a = down.x, tensor(1.0).double()
        if self.mu:
            x = local.descend(lambda x, b: local.grad(x, b) + self.mu * (x - w), w)
            a = a * (1 - (1 - local.lr * self.mu) ** local.steps) / (local.lr * self.mu)
        else:
            x = local.descend(local.grad, w)
            a = a * local.travel  # K, or with momentum [K - ρ(1-ρ^K)/(1-ρ)]/(1-ρ)
        return Up((w - x) / a, a), me

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        b = self.gmf * server.b + up.a * up.step / cohort.lr  # τ_eff Σ p_i d_i/a_i, τ_eff = Σ p_i a_i
        return Server(server.x - cohort.lr * b, b)

    def check(self, training: Training, layout: Layout, steps: int) -> None:
        if self.mu and training.momentum:
            raise InvalidInput(
                f"FedNova: mu = {self.mu:g} with local momentum {training.momentum:g}: use one of the two, "
                "the normaliser a_i is known only for either"
            )
        if self.mu * training.lr >= 2:
            raise InvalidInput(
                f"FedNova: mu = {self.mu:g} with lr = {training.lr:g}: their product must be below 2, "
                "or the proximal steps swing around w without end and a_i may be 0"
            )
