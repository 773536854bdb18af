"""MOON. Li, He, Song, CVPR 2021: features close to the global model's, far from those of the client's last model."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, tensor
from torch.nn.functional import cosine_similarity, softplus

from undrift.core.algorithm import Averaging, Broadcast, Cost, Trained
from undrift.core.local import Batch, Local
from undrift.core.records import Scalar, State, Vector
from undrift.core.settings import nonnegative, positive
from undrift.core.vector import Layout


class Client(State):
    h: Vector  # the last local model
    seen: Scalar  # 0 before the first participation: no contrastive term


class Moon(Averaging[Client]):
    title: ClassVar[str] = "MOON"
    paper: ClassVar[str] = "Li, He, Song, Model-contrastive federated learning, CVPR 2021"
    cost: ClassVar[Cost] = Cost(kept="d", forwards="2 * n * E")

    mu: Annotated[float, "weight μ of the contrastive loss", nonnegative()] = 1.0
    temperature: Annotated[float, "temperature τ of the contrastive loss", positive()] = 0.5

    def needs_features(self) -> bool:
        return True

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(x, tensor(0.0).double())

    def client_update(self, down: Broadcast, me: Client, local: Local) -> tuple[Trained, Client]:
        def direction(x: Tensor, b: Batch) -> Tensor:
            z_glob, z_prev = local.features(down.x, b), local.features(me.h, b)

            def loss(x: Tensor, b: Batch) -> Tensor:
                z, outputs = local.forward(x, b)
                return local.criterion(outputs, b) + self.mu * me.seen * b.mean(
                    self.contrastive(z, z_glob, z_prev)
                )  # eq. 5

            return local.grad_of(loss)(x, b)

        x = local.descend(direction, down.x)
        return Trained(x), Client(x, me.seen * 0 + 1)

    def contrastive(self, z: Tensor, z_glob: Tensor, z_prev: Tensor) -> Tensor:
        """-log( e^(s_g/τ) / (e^(s_g/τ) + e^(s_p/τ)) ), one number per sample (eq. 3)."""
        s_g, s_p = cosine_similarity(z.flatten(1), z_glob, dim=1), cosine_similarity(z.flatten(1), z_prev, dim=1)
        return softplus((s_p - s_g) / self.temperature)
