"""FedADM, Algorithm 1: FedProx whose proximal weights and number τ of local steps (``parts/budget``) adapt."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from torch import Tensor, float64, isfinite, where, zeros, zeros_like

from undrift.algorithms.parts.budget import EVALUATION, Budgeted, Estimates, Last, Outlook, Report, objective
from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.local import Batch, Local
from undrift.core.records import Each, Mean, Message, Point, Scalar, Vector
from undrift.core.settings import nonnegative
from undrift.core.vector import Layout


class Server(Outlook):  # the plan: τ, what the next round is, resources used so far
    x: Vector  # w: the latest aggregate, where clients start
    best: Vector  # w_k,global: the best model so far, which is returned
    mu_first: float  # mean proximal weight of the first round; -1 before it


class Client(Last):  # the last local model y, its loss f and gradient g on the batch k of round t that it ended with
    mu: Scalar  # the proximal weight μ_i


class Down(Message):
    x: Vector
    best: Vector
    tau: int


class Up(Report):  # the report: g at the received model, ρ_i and β_i, and whether they are known
    x: Mean[Point[Vector]]
    f: Each[Scalar]  # loss of the received model, and of the best one, on the same batch
    f_best: Each[Scalar]
    mu: Each[Scalar]

    def doubt(self, samples: int, steps: int) -> str | None:
        least = min(float(value) for value in (self.rho, self.beta, self.mu))
        return (
            "rho, beta or mu is negative" if least < 0 else None if float(self.known) in (0, 1) else "known is no bit"
        )


class FedADM(Budgeted, Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedADM"
    paper: ClassVar[str] = "FedADM: adaptive federated learning via dissimilarity measure (under review)"
    caution: ClassVar[str] = (
        "it plans a single local step for most of its rounds, so that 30 rounds are about 30 steps: give it a "
        "budget and the rounds to use it, or set tau"
    )
    refuses_optimisers: ClassVar[str] = "the estimates that choose its number of steps hold for plain gradient descent"
    cost: ClassVar[Cost] = Cost(
        down="d", up="d", kept="2 * d", gradients="(tau or K) * M + M - n * E", forwards="M", flops="2 * (tau or K) * d"
    )
    refuses_momentum: ClassVar[str] = "the estimates that choose its number of steps hold for plain gradient descent"

    alpha: Annotated[float, "step size α of the proximal weights", nonnegative("distance would be rewarded")] = 0.1
    xi: Annotated[float, "tolerated distance ξ of a local model from the anchor", nonnegative("a distance")] = 0.1
    mu: Annotated[float, "initial proximal weight μ_0", nonnegative("the local problem would be unbounded")] = 0.0
    anchor: Annotated[Literal["best", "latest"], "what local models are held near: the best or the latest"] = "best"

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(**vars(self.first_plan()), x=x, best=x, mu_first=-1.0)

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        zero = zeros((), dtype=float64)
        return Client(x, x.new_zeros(()), zeros_like(x), zero, zero, zero + self.mu)

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.best, server.tau)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        w, a, known = down.x, down.best if self.anchor == "best" else down.x, me.t > 0
        mu = where(known, (me.mu + self.alpha * ((me.y - a).norm() - self.xi)).clamp(min=0), me.mu)  # eq. 7
        local.note("mu", mu)
        t, k = where(known, me.t, local.round), me.k
        b = local.batch(t, k)  # estimates need the batch that ended the client's last round
        f, g = local.value_and_grad(w, b)
        f = objective(local, w, f)
        rho, beta, apart = me.slopes(w, f, g)

        def step(carry: tuple[Tensor, int], b: Batch) -> tuple[Tensor, int]:
            x, k = carry
            v = local.grad(x, b) if k else g  # the first step is on the batch of the estimates
            return local.move(x, v + mu * (x - a), zeros_like(x))[0], k + 1  # eq. 8, with the vector x - a

        y, _ = local.fold(step, (w, 0), down.tau)
        if down.tau > 1:
            t, k = t * 0 + local.round, k * 0 + down.tau - 1
        f_y, g_y = local.value_and_grad(y, local.batch(t, k))
        f_best = objective(local, down.best, local.value(down.best, b))
        up = Up(g, rho, beta, apart.double(), y, f, f_best, mu)  # lines 8, 9
        return up, Client(y, objective(local, y, f_y), g_y, t, k, mu)

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        up = up.map(lambda field, value: value.cpu().double() if field.axes == () else value)
        q, sound, mu_bar = cohort.weights, bool(isfinite(up.x).all()), float(up.mu.mean())
        cohort.note("B", float(up.f.square().mean().sqrt() / up.f.mean()))  # eq. 10
        cohort.note("Hs", float(up.f.std(correction=0)))  # eq. 11 is 0 by construction: the spread of the F_i instead
        best = server.x if q @ up.f < q @ up.f_best else server.best  # line 14
        x = up.x if sound and server.phase != EVALUATION else server.x
        mu_first = mu_bar if server.mu_first < 0 else server.mu_first
        found = Estimates(cohort.lr, *up.means(q), up.mu, self.xi, mu_bar - mu_first)
        plan = self.next_plan(server, cohort, found, bool(up.known.any()), sound)
        return Server(**vars(plan), x=x, best=best, mu_first=mu_first)

    def models(self, server: Server) -> dict[str, Tensor]:
        return {"global": server.best, "latest": server.x}
