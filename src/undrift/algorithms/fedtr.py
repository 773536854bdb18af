"""FedTR. Chen et al., Algorithm 1: features are drawn to class centroids, a drift variable ties w_i to the global w."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, where, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.errors import no_features
from undrift.core.local import Batch, Local
from undrift.core.records import Mean, Message, PerClass, State, Sum, Table, Upload
from undrift.core.settings import nonnegative
from undrift.core.training import Training
from undrift.core.vector import Layout


class Server(State):
    x: Tensor  # w, or its body where the classifier is private
    d: Tensor  # mean drift of all clients; used by the dual rule
    cen: Table  # C_j: mean feature of class j
    seen: PerClass  # 1 for a class that has a centroid, 0 for the others


class Client(State):
    d: Tensor  # the drift d_i
    head: Tensor  # the private classifier; empty where all is shared


class Down(Message):
    x: Tensor
    cen: Table
    seen: PerClass


class Up(Upload):
    x: Mean[Tensor]  # w_i + d_i; w_i with the dual rule, where the server knows the mean drift
    sums: Sum[Table]  # n_ij c_ij
    n: Sum[PerClass]  # n_ij


class FedTR(Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedTR"
    paper: ClassVar[str] = (
        "Chen et al., Making local models learn autonomously with global feature tracking and client drift releasing "
        "for federated learning"
    )
    cost: ClassVar[Cost] = Cost(
        down="C * f + C - (0 if share == 'all' else head)",
        up="C * f + C - (0 if share == 'all' else head)",
        kept="d",
        forwards="n if lam_r else 0",
        flops="(6 if drift == 'descent' else 4) * K * d + 3 * K * M * f",
    )

    drift: Annotated[
        Literal["descent", "dual"], "rule for the drift: gradient step (Algorithm 1) or dual update (its Appendix A)"
    ] = "descent"
    alpha: Annotated[float, "weight α = 2 λ_G of the tie to the global model", nonnegative("it would repel")] = 0.1
    lam_r: Annotated[float, "weight λ_R of the distance to the centroids", nonnegative("it would repel")] = 1.0
    order: Annotated[
        Literal["after", "together"], "rule descent: the drift moves after the model (as printed) or together with it"
    ] = "after"
    eta_d: Annotated[float, "step size η_d of the drift (rule descent); it does not decay", nonnegative()] = 0.01
    reduction: Annotated[
        Literal["mse", "mean", "sum"], "distance to centroids: mean over batch and features, over the batch, or a sum"
    ] = "mse"
    share: Annotated[Literal["all", "extractor"], "what is shared: the model, or all but its last layer"] = "all"

    def shared(self, x: Tensor, layout: Layout) -> Tensor:
        return x if self.share == "all" else layout.split(x, "body")

    def private(self, x: Tensor, layout: Layout) -> Tensor:
        return x[:0] if self.share == "all" else layout.split(x, "head")

    def whole(self, shared: Tensor, private: Tensor, layout: Layout) -> Tensor:
        return shared if self.share == "all" else layout.join(body=shared, head=private)

    def server_init(self, x: Tensor, population: Population) -> Server:
        layout, w = population.layout, self.shared(x, population.layout)
        return Server(w, zeros_like(w), x.new_zeros(layout.classes, layout.features), x.new_zeros(layout.classes))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(self.shared(x, layout)), self.private(x, layout))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.cen, server.seen)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        w, layout, free = down.x, local.layout, zeros_like(me.head)  # a private classifier is tied to nothing

        def loss(x: Tensor, b: Batch) -> Tensor:
            z, outputs = local.forward(x, b)
            return local.criterion(outputs, b) + self.lam_r * self.distance(z.flatten(1), down, b)  # eq. 5

        gradient = local.grad_of(loss) if self.lam_r else local.grad

        def step(carry: tuple[Tensor, Tensor, Tensor], b: Batch) -> tuple[Tensor, Tensor, Tensor]:
            x, m, d = carry
            r = d + self.shared(x, layout) - w
            v = gradient(x, b) + self.alpha * self.whole(r, free, layout)  # line 9
            x, m = local.move(x, v, m)  # line 10
            if self.order == "after":
                r = d + self.shared(x, layout) - w
            if self.drift == "descent":
                d = d - self.eta_d * self.alpha * r  # line 11
            return x, m, d

        start = self.whole(w, me.head, layout)  # line 5
        x, _, d = local.fold(step, (start, zeros_like(start), me.d))
        w_i, head = self.shared(x, layout), self.private(x, layout)
        sums, n = local.class_sums(x) if self.lam_r else (zeros_like(down.cen), zeros_like(down.seen))  # eq. 7
        if self.drift == "dual":
            return Up(w_i, sums, n), Client(d + (w_i - w), head)  # Appendix A
        return Up(w_i + d, sums, n), Client(d, head)  # line 14

    def distance(self, z: Tensor, down: Down, b: Batch) -> Tensor:
        """R of eq. 4: squared distance of the features to their class's centroid, where there is one."""
        gaps = (z - down.cen[b.y]).square() * down.seen[b.y].unsqueeze(1)
        if self.reduction == "sum":
            return b.sum(gaps.sum(1))
        return b.mean(gaps.mean(1) if self.reduction == "mse" else gaps.sum(1))

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        here = up.n > 0
        cen = up.sums / where(here, up.n, 1).unsqueeze(1)  # eq. 9
        x, d = up.x, server.d  # eq. 8
        if self.drift == "dual":
            d = d + cohort.fraction * (up.x - server.x)
            x = x + d
        return Server(x, d, where(here.unsqueeze(1), cen, server.cen), where(here, 1, server.seen))

    def models(self, server: Server) -> dict[str, Tensor]:
        return {"global": server.x} if self.share == "all" else {}

    def personal(self, server: Server, me: Client, client: int, layout: Layout) -> Tensor | None:
        return None if self.share == "all" else self.whole(server.x, me.head, layout)

    def check(self, training: Training, layout: Layout, steps: int) -> None:
        if not layout.features and (self.lam_r or self.share == "extractor"):
            raise no_features(self.title)
