"""FedTR. Chen et al., Algorithm 1: features are drawn to class centroids, a drift variable ties w_i to the global w."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, zeros_like

from undrift.algorithms.parts.centroids import Classes, distance, no_centroids
from undrift.algorithms.parts.sharing import Sharing
from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Local
from undrift.core.records import Mean, Message, Point, State, Table
from undrift.core.settings import nonnegative
from undrift.core.vector import Layout


class Server(State):
    x: Tensor  # w, or its body where the classifier is private
    d: Tensor  # mean drift of all clients with the dual rule; otherwise 0
    cen: Table  # C_j: mean feature of class j; NaN where there is none yet


class Client(State):
    d: Tensor  # the drift d_i
    head: Tensor  # the private classifier; empty where all is shared
    w: Tensor  # the local model w_i, the paper's output; empty where nobody looks at it


class Down(Message):
    x: Tensor
    cen: Table


class Up(Classes):  # n_ij c_ij and n_ij
    x: Mean[Point[Tensor]]  # w_i + d_i; w_i with the dual rule, where the server knows the mean drift


class FedTR(Sharing, Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedTR"
    paper: ClassVar[str] = (
        "Chen et al., Making local models learn autonomously with global feature tracking and client drift releasing "
        "for federated learning"
    )
    refuses_optimisers: ClassVar[str] = "its step on the centroids goes with a step of sgd"
    cost: ClassVar[Cost] = Cost(
        down="C * f - head * (share == 'extractor')",
        up="C_i * (f + 1) * (lam_r > 0) - head * (share == 'extractor')",
        kept="d * (1 + (output == 'clients'))",
        forwards="n * (lam_r > 0)",
        flops="(6 if drift == 'descent' else 4) * K * d + 3 * K * M * f",
    )

    drift: Annotated[Literal["descent", "dual"], "rule for the drift: Algorithm 1's or its Appendix A's"] = "descent"
    alpha: Annotated[float, "weight α = 2 λ_G of the tie to the global model", nonnegative("it would repel")] = 0.1
    lam_r: Annotated[float, "weight λ_R of the distance to the centroids", nonnegative("it would repel")] = 1.0
    order: Annotated[Literal["after", "together"], "descent: the drift moves after the model or with it"] = "after"
    eta_d: Annotated[float, "step size η_d of the drift (descent); constant", nonnegative("it would climb")] = 0.01
    output: Annotated[Literal["global", "clients"], "what is evaluated: w, or also the clients' w_i, kept"] = "global"
    reduction: Annotated[Literal["mse", "mean", "sum"], "R: mean over batch and features, over the batch, sum"] = "mse"

    def server_init(self, x: Tensor, population: Population) -> Server:
        w = self.shared(x, population.layout)
        return Server(w, zeros_like(w), no_centroids(x, population.layout))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        return Client(zeros_like(self.shared(x, layout)), self.private(x, layout), self.looked_at(x))

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.cen)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        w, layout, free = down.x, local.layout, zeros_like(me.head)  # a private classifier is tied to nothing

        def loss(x: Tensor, b: Batch) -> Tensor:
            z, outputs = local.forward(x, b)
            return local.criterion(outputs, b) + self.lam_r * distance(z, down.cen, b, self.reduction)  # eqs. 4, 5

        gradient = local.grad_of(loss) if self.lam_r else local.grad

        def step(carry: tuple[Tensor, Tensor, Tensor], b: Batch) -> tuple[Tensor, Tensor, Tensor]:
            x, m, d = carry
            r = d + self.shared(x, layout) - w
            x, m = local.move(x, gradient(x, b) + self.alpha * self.whole(r, free, layout), m)  # lines 9, 10
            if self.order == "after":
                r = d + self.shared(x, layout) - w
            return x, m, d - self.eta_d * self.alpha * r if self.drift == "descent" else d  # line 11

        start = self.whole(w, me.head, layout)  # line 5
        x, _, d = local.fold(step, (start, zeros_like(start), me.d))
        w_i, head = self.shared(x, layout), self.private(x, layout)
        sums, n = local.class_sums(x) if self.lam_r else (zeros_like(down.cen), w.new_zeros(len(down.cen)))  # eq. 7
        if self.drift == "dual":
            return Up(sums, n, w_i), Client(d + (w_i - w), head, self.looked_at(x))  # Appendix A
        return Up(sums, n, w_i + d), Client(d, head, self.looked_at(x))  # line 14

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        d = server.d + cohort.fraction * (up.x - server.x) if self.drift == "dual" else server.d  # which then is 0
        return Server(up.x + d, d, up.renewed(server.cen))  # eqs. 8, 9

    def looked_at(self, x: Tensor) -> Tensor:
        return x if self.output == "clients" else x[:0]

    def personal(self, down: Down, me: Client, layout: Layout) -> Tensor | None:
        return me.w if self.output == "clients" else Sharing.personal(self, down, me, layout)

    def needs_features(self) -> bool:
        return self.lam_r > 0 or self.share == "extractor"
