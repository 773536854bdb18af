"""FedNTD. Lee et al., NeurIPS 2022: the received model's view of the not-true classes is kept by distillation."""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor, arange
from torch.nn.functional import log_softmax

from undrift.core.algorithm import Averaging, Broadcast, Cost, Trained
from undrift.core.local import Batch, Local
from undrift.core.records import Nothing
from undrift.core.settings import nonnegative, positive


class FedNTD(Averaging[Nothing]):
    title: ClassVar[str] = "FedNTD"
    paper: ClassVar[str] = (
        "Lee et al., Preservation of the global knowledge by not-true distillation in federated learning, NeurIPS 2022"
    )
    cost: ClassVar[Cost] = Cost(forwards="n * E")
    steep: ClassVar[tuple[str, ...]] = ("beta",)

    beta: Annotated[float, "weight β of the not-true distillation", nonnegative("it would teach the opposite")] = 1.0
    temperature: Annotated[float, "temperature τ of the distillation", positive("logits are divided by it")] = 1.0

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        def direction(x: Tensor, b: Batch) -> Tensor:
            teacher = local.outputs(down.x, b)

            def loss(x: Tensor, b: Batch) -> Tensor:
                z = local.outputs(x, b)
                return local.criterion(z, b) + self.beta * b.mean(self.not_true(z, teacher, b.y))

            return local.grad_of(loss)(x, b)

        return Trained(local.descend(direction, down.x)), me

    def not_true(self, z: Tensor, teacher: Tensor, y: Tensor) -> Tensor:
        """KL(q_g ‖ q_l) over the C - 1 classes that are not y, one number per sample, without a factor τ²."""
        others = arange(z.shape[1] - 1)
        others = others + (others >= y.unsqueeze(1))  # the classes other than y, in order
        log_q_l = log_softmax(z.gather(1, others) / self.temperature, dim=1)
        log_q_g = log_softmax(teacher.gather(1, others) / self.temperature, dim=1)
        return (log_q_g.exp() * (log_q_g - log_q_l)).sum(1)
