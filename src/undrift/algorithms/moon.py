"""MOON. Li, He, Song, CVPR 2021: features close to the global model's, far from those of the client's last model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from torch import Tensor, arange, cat, stack, tensor, where
from torch.nn.functional import normalize, softplus

from undrift.core.algorithm import Averaging, Broadcast, Cost, Trained
from undrift.core.local import Batch, Local
from undrift.core.records import Scalar, State
from undrift.core.settings import at_least, nonnegative, positive
from undrift.core.vector import Layout


class Client(State):
    h: Tensor  # the last local models, one per row, the newest first
    seen: Scalar  # how many of them there are; 0 before the first participation: no contrastive term


class MOON(Averaging[Client]):
    title: ClassVar[str] = "MOON"
    paper: ClassVar[str] = "Li, He, Song, Model-contrastive federated learning, CVPR 2021"
    cost: ClassVar[Cost] = Cost(kept="history * d", forwards="(1 + history) * n * E")
    steep: ClassVar[tuple[str, ...]] = ("mu",)

    mu: Annotated[float, "weight μ of the contrastive loss", nonnegative("it would draw to the last model")] = 1.0
    temperature: Annotated[
        float, "temperature τ of the contrastive loss", positive("similarities are divided by it")
    ] = 0.5
    history: Annotated[
        int, "number of last local models that features are kept away from", at_least(1, "none is FedAvg")
    ] = 1

    def needs_features(self) -> bool:
        return True

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(x.repeat(self.history, 1), tensor(0.0).double())

    def client_update(self, down: Broadcast, me: Client, local: Local) -> tuple[Trained, Client]:
        past = me.h.unbind()

        def direction(x: Tensor, b: Batch) -> Tensor:
            z_glob, z_prev = local.features(down.x, b), [local.features(h, b) for h in past]

            def loss(x: Tensor, b: Batch) -> Tensor:
                z, outputs = local.forward(x, b)
                far = self.contrastive(z.flatten(1), z_glob, z_prev, me.seen)
                return local.criterion(outputs, b) + self.mu * b.mean(far)  # eq. 5

            return local.grad_of(loss)(x, b)

        x = local.descend(direction, down.x)
        return Trained(x), Client(cat([x.unsqueeze(0), me.h])[: self.history], (me.seen + 1).clamp(max=self.history))

    def contrastive(self, z: Tensor, z_glob: Tensor, z_prev: Sequence[Tensor], seen: Tensor) -> Tensor:
        """-log( e^(s_g/τ) / (e^(s_g/τ) + Σ e^(s_p/τ)) ), one number per sample (eq. 3), over the models there are."""
        z, z_glob, *z_past = (normalize(v, eps=1e-8) for v in (z, z_glob, *z_prev))
        gaps = stack([(z * (z_p - z_glob)).sum(1) for z_p in z_past], dim=1) / self.temperature  # s_p - s_g
        here = arange(len(z_past), device=z.device) < seen
        gaps = where(here, gaps, -1e9)  # not infinite, which would have no gradient
        return softplus(gaps.logsumexp(1))
