"""pFedMo. Fu et al., 2024: FedNAG, with a model that the server trains on public data mixed into what clients get."""

from __future__ import annotations

import warnings
from math import log, sqrt
from typing import Annotated, ClassVar, Literal

from torch import Tensor, float64, maximum, zeros, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Local
from undrift.core.records import Each, Message, Nothing, Point, Scalar, State, Upload, Vector
from undrift.core.reduce import weighted_mean
from undrift.core.settings import between
from undrift.core.training import Training
from undrift.core.vector import Layout

FEW = 10  # public samples per class, below which the server's own model holds the others back


class Server(State):
    x: Vector  # x̄ and ū: the means of the workers' models and momenta (gradient units: y = x + ηγu)
    u: Vector
    x_r: Vector  # the representation model and its momentum
    u_r: Vector
    worst: Tensor  # u_i: the largest score loss of every worker so far; 0 before its first
    s: Tensor  # s_i: the last score of every worker
    pull: Scalar  # Σ_S q_i s_i
    lr: float  # the rate of the last aggregation; 0 before the first


class Down(Message):
    x: Each[Vector]
    u: Each[Vector]


class Up(Upload):
    x: Each[Point[Vector]]
    u: Each[Point[Vector]]


class PFedMo(Algorithm[Server, Nothing, Down, Up]):
    title: ClassVar[str] = "pFedMo"
    paper: ClassVar[str] = "Fu, Yang, Hu, Bao, Personalized federated learning with contrastive momentum, 2024"
    refuses_optimisers: ClassVar[str] = "its Nesterov steps are its own"
    cost: ClassVar[Cost] = Cost(down="d", up="d", flops="4 * K * d")
    refuses_momentum: ClassVar[str] = "it carries its own momentum gamma from round to round"
    refuses_buffers: ClassVar[str] = "it scores single models and keeps no statistics of them"
    needs_public: ClassVar[bool] = True
    controls: ClassVar[tuple[str, ...]] = ("fednag",)

    gamma: Annotated[float, "momentum γ", between(0, 1, "at 1 no gradient is ever forgotten", open_high=True)] = 0.5
    pi: Annotated[float, "largest share π of the representation model", between(0, 1, "it is a share")] = 1.0
    variant: Annotated[
        Literal["literal", "interp", "velocity"],
        "eq. 12 as printed, without its contrastive term, or with that term between velocities",
    ] = "velocity"
    repr_reset: Annotated[bool, "restart the representation model from the global one every round"] = False

    def server_init(self, x: Tensor, population: Population) -> Server:
        none = zeros(population.size, dtype=float64)
        return Server(x, zeros_like(x), x, zeros_like(x), none, none, none[0], 0.0)

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(*self.mix(server, server.s[cohort.ids].type_as(server.x).unsqueeze(1)))

    def client_update(self, down: Down, me: Nothing, local: Local) -> tuple[Up, Nothing]:
        x, u = local.nesterov(down.x, down.u, self.gamma)  # eqs. 6, 7
        return Up(x, u), me

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        assert cohort.public is not None
        x_r, u_r = self.mix(server, server.pull) if self.repr_reset else (server.x_r, server.u_r)
        x_r, u_r = cohort.public.nesterov(x_r, u_r, self.gamma, int(cohort.steps.max()))
        worst, s = self.scores(server, up.x, x_r, cohort)
        x, u = (weighted_mean(list(rows), cohort.portions) for rows in (up.x, up.u))
        return Server(x, u, x_r, u_r, worst, s, cohort.weights @ s[cohort.ids].cpu(), cohort.lr)

    def mix(self, server: Server, s: Tensor) -> tuple[Tensor, Tensor]:
        """(x_i+, u_i+) for a score s. With Δ for "representation minus mean": (11) is y_i+ = ȳ + πs Δy, and (12) is
        x_i+ = x̄ + πs (Δx - Δy). Linear in s, so that the mean score gives the global model of line 14."""
        lr, step = server.lr, server.lr * self.gamma
        dx, du = server.x_r - server.x, server.u_r - server.u  # and Δy = Δx + ηγ Δu
        if self.variant == "literal":  # u_i+ = (y_i+ - x_i+)/(ηγ); where γ = 0 it has no effect
            dx, du = -step * du, 2 * du + dx / step if step else du
        elif self.variant == "velocity":  # (12) with m = -ηu in the place of y
            dx = dx + lr * du
        return server.x + self.pi * s * dx, server.u + self.pi * s * du

    def scores(self, server: Server, x: Tensor, x_r: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor]:
        """Algorithm 2: the largest losses and the scores of all workers, after this cohort's models were looked at."""
        assert cohort.scoring is not None
        worst, s = server.worst.clone(), server.s.clone()
        losses = cohort.scoring.disagreement(list(x), teacher=x_r)  # l_i of eqs. 8 to 10
        for client, loss in zip(cohort.ids.tolist(), losses, strict=True):
            worst[client] = maximum(worst[client], loss)
            s[client] = 1 - loss / worst[client] if worst[client] > 0 else 0.0
        return worst, s

    def models(self, server: Server) -> dict[str, Tensor]:
        return {"global": self.mix(server, server.pull)[0], "representation": server.x_r}

    def personal(self, down: Down, me: Nothing, layout: Layout) -> Tensor:
        return down.x

    def check(self, training: Training, layout: Layout, steps: int) -> None:
        if self.variant == "literal" and self.pi * self.gamma > 0:
            factor = self.growth(steps, s=0.5)
            flat = (1 - self.gamma) * log(factor) / (training.lr * steps)  # K steps shrink by exp(-ηKh/(1-γ))
            warnings.warn(
                "pFedMo: variant = literal drives workers away from the representation model and diverges: at scores "
                f"of 0.5 the distance grows {factor:.3g}-fold a round, in every direction in which the curvature of "
                f"the loss is below {flat:.2g}; interp and velocity do not",
                stacklevel=2,
            )

    def check_start(self, x: Tensor, population: Population) -> None:
        if self.variant != "literal" and self.pi and population.public < FEW * population.layout.classes:
            warnings.warn(
                f"pFedMo: the server has {population.public} public samples for {population.layout.classes} classes; "
                "workers are drawn to the model that it trains on them alone, which is a poor one: give it a larger "
                f"share of public data (at least {FEW} samples per class)",
                stacklevel=2,
            )

    def growth(self, steps: int, s: float) -> float:
        """What ``literal`` multiplies (Δx, ηγΔu) by in a round with scores s, where the loss is flat.

        The mixture is [[1, p], [-p, 1 - 2p]] with p = πs, and K steps without gradients are [[1, -a], [0, γ^K]]. The
        largest eigenvalue of their product exceeds 1 for every p in (0, 1) and γ > 0: at 1 its polynomial is
        p(pγ^K - a), and a = γ + .. + γ^K.
        """
        p, g = self.pi * s, self.gamma**steps
        a = self.gamma * (1 - g) / (1 - self.gamma)
        trace, determinant = 1 + a * p + g * (1 - 2 * p), g * (1 - p) ** 2
        return (trace + sqrt(max(trace**2 - 4 * determinant, 0.0))) / 2
