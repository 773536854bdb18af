"""FedADM, Algorithm 1: FedProx whose proximal weights and number τ of local steps adapt, within a resource budget."""

from __future__ import annotations

import warnings
from typing import Annotated, ClassVar, Literal

from torch import Tensor, arange, expm1, float64, isfinite, log1p, stack, tensor, where, zeros, zeros_like

from undrift.core.algorithm import Algorithm, Cost
from undrift.core.cohort import Cohort, Population
from undrift.core.errors import InvalidInput
from undrift.core.local import Batch, Local
from undrift.core.records import Each, Mean, Message, Scalar, State, Upload, Vector
from undrift.core.settings import at_least, nonnegative, positive
from undrift.core.vector import Layout

TRAINING, LAST, EVALUATION, STOP = range(4)  # what the next round is: the last two make sure that the best is returned


class Server(State):
    x: Vector  # w: the latest aggregate, where clients start
    best: Vector  # w_k,global: the best model so far, which is returned
    tau: int
    phase: int
    mu_first: float  # mean proximal weight of the first round; -1 before it
    used: Tensor  # of each resource


class Client(State):
    mu: Scalar  # the proximal weight μ_i
    y: Vector  # the last local model, and its loss and gradient on the batch `index`
    f: Scalar
    g: Vector
    index: Tensor
    seen: Scalar  # 0 before the first participation


class Down(Message):
    x: Vector
    best: Vector
    tau: int


class Up(Upload):
    x: Mean[Vector]
    g: Each[Vector]  # gradient at the received model
    f: Each[Scalar]  # loss of the received model, and of the best one, on the same batch
    f_best: Each[Scalar]
    mu: Each[Scalar]
    rho: Each[Scalar]
    beta: Each[Scalar]
    known: Each[Scalar]  # 1 where there is a last local model to estimate ρ_i and β_i from


class FedADM(Algorithm[Server, Client, Down, Up]):
    title: ClassVar[str] = "FedADM"
    paper: ClassVar[str] = "FedADM: adaptive federated learning via dissimilarity measure (under review)"
    cost: ClassVar[Cost] = Cost(
        down="d",
        up="d",
        kept="2 * d + M",
        gradients="((tau or K) + 1) * M - n * E",
        forwards="2 * M",
        flops="2 * (tau or K) * d",
    )
    refuses_momentum: ClassVar[str] = "the estimates that choose its number of steps hold for plain gradient descent"

    alpha: Annotated[float, "step size α of the proximal weights", nonnegative()] = 0.1
    xi: Annotated[float, "tolerated distance ξ of a local model from the anchor", nonnegative()] = 0.1
    mu: Annotated[float, "initial proximal weight μ_0", nonnegative("the local problem would be unbounded")] = 0.0
    anchor: Annotated[Literal["best", "latest"], "what local models are held near: the best or the latest model"] = (
        "best"
    )
    tau: Annotated[int | None, "fixed number τ of local steps; none: adapted", at_least(1)] = None
    form: Annotated[Literal["corrected", "printed"], "control function: rederived, or eq. 22 as printed"] = "corrected"
    phi: Annotated[float, "control parameter φ", positive()] = 0.025
    tau_max: Annotated[int, "largest τ", at_least(1)] = 100
    growth: Annotated[int, "τ grows at most by this factor from round to round", at_least(1)] = 10
    budget: Annotated[tuple[float, ...], "total budget R_m of each resource"] = (60.0,)
    step_cost: Annotated[tuple[float, ...], "mean use of each resource by a local step"] = (0.013015156,)
    step_sd: Annotated[tuple[float, ...], "its standard deviation"] = (0.006946299,)
    round_cost: Annotated[tuple[float, ...], "mean use of each resource by an aggregation"] = (0.131604348,)
    round_sd: Annotated[tuple[float, ...], "its standard deviation"] = (0.053873234,)
    resources: Annotated[
        Literal["simulated", "measured"], "use of resources: drawn from the seed, or the first one in measured seconds"
    ] = "simulated"

    def validate(self) -> None:
        for name in ("budget", "step_cost", "step_sd", "round_cost", "round_sd"):
            values = getattr(self, name)
            if not values or len(values) != len(self.budget) or min(values) < 0 or (name[-2:] != "sd" and 0 in values):
                raise InvalidInput(
                    f"FedADM: {name} = {values}: it must be {len(self.budget) or 'one or more'} positive numbers, "
                    "one for each resource of the budget"
                )

    def server_init(self, x: Tensor, population: Population) -> Server:
        return Server(x, x, self.tau or 1, TRAINING, -1.0, zeros(len(self.budget), dtype=float64))

    def client_init(self, x: Tensor, layout: Layout) -> Client:
        zero = zeros((), dtype=float64)
        return Client(zero + self.mu, x, x.new_zeros(()), zeros_like(x), tensor(-1), zero)

    def broadcast(self, server: Server, cohort: Cohort) -> Down:
        return Down(server.x, server.best, server.tau)

    def client_update(self, down: Down, me: Client, local: Local) -> tuple[Up, Client]:
        w, a = down.x, down.best if self.anchor == "best" else down.x
        mu = where(me.seen > 0, (me.mu + self.alpha * ((me.y - a).norm() - self.xi)).clamp(min=0), me.mu)  # eq. 7
        local.note("mu", mu)
        index = local.fold(lambda _, b: b.index, me.index, 1)
        b = local.batch(where(me.seen > 0, me.index, index))  # estimates need the batch that ended the last round
        f, g = local.value_and_grad(w, b)
        far = (me.y - w).norm()
        apart = (me.seen > 0) & (far > 1e-10)
        rho = where(apart, (me.f - f).abs() / far, 0.0)
        beta = where(apart, (me.g - g).norm() / far, 0.0).clamp(min=1e-5)

        m = zeros_like(w)  # no momentum

        def step(carry: tuple[Tensor, Tensor], b: Batch) -> tuple[Tensor, Tensor]:
            x = carry[0]
            return local.move(x, local.grad(x, b) + mu * (x - a), m)[0], b.index  # eq. 8, with the vector x - a

        start = local.move(w, g + mu * (w - a), m)[0]  # the first step needs no second gradient
        y, index = local.fold(step, (start, b.index), down.tau - 1)
        f_y, g_y = local.value_and_grad(y, local.batch(index))
        up = Up(y, g, local.loss(w, b), local.loss(down.best, b), mu, rho, beta, me.seen)  # lines 8, 9
        return up, Client(mu, y, f_y, g_y, index, me.seen * 0 + 1)

    def server_update(self, server: Server, up: Up, cohort: Cohort) -> Server:
        q, tau = cohort.weights, server.tau
        up = up.map(lambda field, value: value.double() if field.axes == () else value)
        mu_bar = float(up.mu.mean())
        mu_first = mu_bar if server.mu_first < 0 else server.mu_first
        cohort.note("B", float(up.f.square().mean().sqrt() / up.f.mean()))  # eq. 10
        cohort.note("Hs", float(up.f.std(correction=0)))  # eq. 11 is 0 by construction: the spread of the F_i instead
        cohort.note("tau", tau)
        best = server.x if q @ up.f < q @ up.f_best else server.best  # line 14
        c, b = self.spent(cohort, tau)
        used = server.used + c * tau + b
        x = server.x if server.phase == EVALUATION or not isfinite(up.x).all() else up.x
        G = up.g.double()
        estimates = {
            "delta": float(q @ (G - q @ G).norm(dim=1)),
            "rho": float(q @ up.rho / (q @ up.known).clamp(min=1e-30)),
            "beta": float(q @ (up.beta * up.known) / (q @ up.known).clamp(min=1e-30)),
        }
        for name, value in estimates.items():
            cohort.note(name, value)
        R = tensor(self.budget, dtype=float64)
        if self.tau is None and bool(up.known.any()):
            if cohort.size == 1:
                warnings.warn("FedADM: a cohort of one has no gradient divergence; tau stays as it is", stacklevel=2)
            else:
                search = arange(1, min(self.growth * tau, self.tau_max) + 1).double()
                G_tau = self.control(search, cohort.lr, up.mu, mu_bar - mu_first, c, b, R - b - c, **estimates)
                tau = 1 + int(G_tau.nan_to_num(float("inf")).argmin())  # eq. 24
        phase = min(server.phase + 1, STOP) if server.phase else TRAINING
        if phase == TRAINING and bool((used + c * (tau + 1) + 2 * b >= R).any()):
            tau, phase = max(1, min(tau, int(((R - used - 2 * b - c) / c).min().floor()))), LAST
        if not isfinite(up.x).all() or phase == EVALUATION:
            tau = 1
        return Server(x, best, tau, phase, mu_first, used)

    def models(self, server: Server) -> dict[str, Tensor]:
        return {"global": server.best, "latest": server.x}

    def finished(self, server: Server) -> bool:
        return server.phase == STOP

    def spent(self, cohort: Cohort, tau: int) -> tuple[Tensor, Tensor]:
        """What a local step (c_m) and an aggregation (b_m) of this round used of each resource."""
        draw = cohort.rng("resources").normal
        c, b = [], []
        for step, step_sd, aggregation, sd in zip(
            self.step_cost, self.step_sd, self.round_cost, self.round_sd, strict=True
        ):
            c.append(sum(max(v, 1e-10) for v in draw(step, step_sd, tau).tolist()) / tau)
            b.append(max(float(draw(aggregation, sd)), 1e-10))
        if self.resources == "measured":
            longest = max(spent.seconds for spent in cohort.cost)
            c[0], b[0] = max(longest / tau, 1e-10), max(cohort.elapsed - longest, 1e-10)
        return tensor(c, dtype=float64), tensor(b, dtype=float64)

    def control(
        self, tau: Tensor, eta: float, mu: Tensor, rise: float, c: Tensor, b: Tensor, R: Tensor,
        delta: float, rho: float, beta: float,
    ) -> Tensor:  # fmt: skip
        """G(τ) for many τ at once: the bound on the loss that is left when the budget is used (eq. 22)."""
        xi, mu_bar = self.xi, float(mu.mean())
        T = stack([R_m * tau / (c_m * tau + b_m) for R_m, c_m, b_m in zip(R, c, b, strict=True)]).amin(0)
        h = self.gap(tau, eta, mu, delta, beta)
        e = eta * self.phi
        if self.form == "printed":
            inside = (2 * T * rho * h + 2 * tau * mu_bar * xi * h + tau * max(0.0, rise)) / (e * T**2)
            return 1 / (4 * e * T) + inside.sqrt() + (rho + mu_bar * xi) * rho * h
        A = T * rho * h / tau + mu_bar * xi * h + xi**2 / 2 * max(0.0, rise)
        return 1 / (2 * e * T) + (1 / (2 * e * T) ** 2 + A / (e * T)).sqrt() + (rho + mu_bar * xi) * h

    def gap(self, tau: Tensor, eta: float, mu: Tensor, delta: float, beta: float) -> Tensor:
        """h(τ): how far τ local steps can lead away from centralised ones (eq. 17)."""
        if delta == 0:
            return zeros_like(tau)
        s = (beta + mu).unsqueeze(1)
        terms = (beta + mu.mean()) / s * (expm1(tau * log1p(eta * s)) / s - eta * tau)
        return (delta * terms.mean(0)).clamp(min=0)
