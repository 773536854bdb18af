"""How many local steps fit a resource budget: the control of Wang et al., JSAC 2019.

A round of τ local steps uses c_m τ + b_m of resource m, whose total is R_m. Clients estimate how their losses and
gradients change (``Last``, ``Report``). ``Estimates`` bound the loss that is left when the budget is used up, as a
function of τ. ``Budgeted`` draws or measures what a round used, picks the best τ for the next one, and ends the run so
that the best model can still be found out. Clients may be held near an anchor by proximal weights μ_i: with μ = 0 the
bound is Wang et al.'s, otherwise FedADM's, whose equations are cited. Nothing here knows how clients train.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Annotated, Any, Literal

from torch import Tensor, arange, expm1, float64, log1p, stack, tensor, where, zeros, zeros_like

from undrift.core.cohort import Cohort
from undrift.core.errors import InvalidInput
from undrift.core.local import Local
from undrift.core.records import Each, Move, Scalar, State, Upload, Vector
from undrift.core.settings import Settings, at_least, positive
from undrift.core.vector import double

TRAINING, LAST, EVALUATION, STOP = range(4)  # what the next round is: the last two make sure that the best is returned


class Outlook(State):
    """What the next round is to be, and what has been used so far."""

    tau: int
    phase: int
    used: Tensor  # of each resource


class Last(State):
    """A client's last model, with its loss and gradient on the batch that it ended with: number k of round t."""

    y: Vector
    f: Scalar
    g: Vector
    t: Scalar  # 0 before the first participation
    k: Scalar

    def slopes(self, w: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """ρ_i and β_i: how fast loss and gradient change on the way to another model, on the same batch.

        And whether they are known: a last model that is missing, or the same, says nothing.
        """
        far = (self.y - w).norm()
        known = (self.t > 0) & (far > 1e-10)
        rho, beta = where(known, (self.f - f).abs() / far, 0.0), where(known, (self.g - g).norm() / far, 0.0)
        return rho, beta.clamp(min=1e-5), known


def objective(local: Local, x: Tensor, f: Tensor) -> Tensor:
    """The loss at ``x`` with all that its gradient contains: an inner weight decay is a part of both."""
    training = local.training
    inner = training.weight_decay and training.decay_mode == "inner"
    return f + training.weight_decay / 2 * x.square().sum() if inner else f


class Report(Upload):
    """What a client says about its loss around the received model."""

    g: Each[Move[Vector]]  # gradient at the received model
    rho: Each[Scalar]
    beta: Each[Scalar]
    known: Each[Scalar]  # 1 where there is another model, the last one, to estimate ρ_i and β_i from

    def means(self, q: Tensor) -> tuple[float, float, float]:
        """δ (eq. 15), ρ and β of the cohort; clients that know no ρ_i and β_i yet are left out."""
        g, known = double(self.g), (q @ self.known).clamp(min=1e-30)
        rho, beta = (float(q @ (value * self.known) / known) for value in (self.rho, self.beta))
        there = q.to(g.device)
        return float(there @ (g - there @ g).norm(dim=1)), rho, beta


@dataclass(frozen=True)
class Estimates:
    """What a round says about the clients' losses."""

    eta: float  # the learning rate of the round
    delta: float  # δ: how far the clients' gradients lie apart
    rho: float  # ρ: how fast their losses change
    beta: float  # β: how fast their gradients do
    mu: Tensor  # μ_i, one for each client
    xi: float = 0.0  # the distance ξ from the anchor that is tolerated
    rise: float = 0.0  # how much the mean of the μ_i rose since the first round

    def gap(self, tau: Tensor) -> Tensor:
        """h(τ): how far τ local steps can lead away from centralised ones (eq. 17)."""
        if self.delta == 0:
            return zeros_like(tau)
        s = (self.beta + self.mu).unsqueeze(1)
        terms = (self.beta + self.mu.mean()) / s * (expm1(tau * log1p(self.eta * s)) / s - self.eta * tau)
        return (self.delta * terms.mean(0)).clamp(min=0)

    def bound(self, tau: Tensor, T: Tensor, phi: float) -> Tensor:
        """G(τ) where the budget allows T steps in all: the bound on the loss that is left (eq. 22, rederived)."""
        h, e, pull = self.gap(tau), self.eta * phi, float(self.mu.mean()) * self.xi
        A = T * self.rho * h / tau + pull * h + self.xi**2 / 2 * max(0.0, self.rise)
        return 1 / (2 * e * T) + (1 / (2 * e * T) ** 2 + A / (e * T)).sqrt() + (self.rho + pull) * h

    def printed_bound(self, tau: Tensor, T: Tensor, phi: float) -> Tensor:
        """G(τ) as eq. 22 is printed."""
        h, e, pull = self.gap(tau), self.eta * phi, float(self.mu.mean()) * self.xi
        inside = (2 * T * self.rho * h + 2 * tau * pull * h + tau * max(0.0, self.rise)) / (e * T**2)
        return 1 / (4 * e * T) + inside.sqrt() + (self.rho + pull) * self.rho * h


class Budgeted(Settings):
    """The settings of a method that chooses its number of local steps within a budget, and the choice."""

    tau: Annotated[int | None, "fixed number τ of local steps; none: adapted", at_least(1, "no step, no round")] = None
    form: Annotated[Literal["corrected", "printed"], "control function: rederived, or eq. 22 as printed"] = "corrected"
    phi: Annotated[float, "control parameter φ", positive("the bound divides by it")] = 0.025
    tau_max: Annotated[int, "largest τ", at_least(1, "no step, no round")] = 100
    growth: Annotated[int, "τ grows at most by this factor from round to round", at_least(1, "it would shrink")] = 10
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
            exact = name.endswith("_sd")  # which may be 0
            fit = all(math.isfinite(v) and (v > 0 or (exact and v == 0)) for v in values)
            if not values or len(values) != len(self.budget) or not fit:
                raise InvalidInput(
                    f"{type(self).__name__}: {name} = {values}: it must be {len(self.budget) or 'one or more'} "
                    "positive numbers, one for each resource of the budget"
                )

    def finished(self, server: Outlook) -> bool:
        return server.phase == STOP

    def first_plan(self) -> Outlook:
        return Outlook(self.tau or 1, TRAINING, zeros(len(self.budget), dtype=float64))

    def skipped(self, server: Any, cohort: Cohort) -> Any:
        """A round without a single finite upload is charged like any other, and the next one takes a single step."""
        return replace(server, **vars(self.next_plan(server, cohort, None, known=False, sound=False)))

    def next_plan(self, done: Outlook, cohort: Cohort, found: Estimates | None, known: bool, sound: bool) -> Outlook:
        """The plan after a round. ``known``: has anybody estimated ρ and β? ``sound``: is the new model finite?"""
        cohort.note("tau", done.tau)
        for name in ("delta", "rho", "beta") if found else ():
            cohort.note(name, getattr(found, name))
        c, b = self.spent(cohort, done.tau)
        R, used, tau = tensor(self.budget, dtype=float64), done.used + c * done.tau + b, self.tau or done.tau
        if not sound:  # one careful step
            found, tau = None, 1
        if self.tau is None and cohort.size == 1:
            title = type(self).__name__
            warnings.warn(f"{title}: a cohort of one has no gradient divergence; tau stays as it is", stacklevel=2)
        elif self.tau is None and found and known:
            limit = min(self.growth * tau, self.tau_max)
            tau = 1 + int(self.bounds(found, limit, c, b, R - b - c).nan_to_num(float("inf")).argmin())  # eq. 24
        phase = min(done.phase + 1, STOP) if done.phase else TRAINING
        if phase == TRAINING and bool((used + c * (tau + 1) + 2 * b >= R).any()):
            tau, phase = max(1, min(tau, int(((R - used - 2 * b - c) / c).min().floor()))), LAST
        return Outlook(tau if phase != EVALUATION else 1, phase, used)

    def spent(self, cohort: Cohort, tau: int) -> tuple[Tensor, Tensor]:
        """What a local step (c_m) and an aggregation (b_m) of this round used of each resource."""
        draw = cohort.rng("resources").normal
        c, b = [], []
        for step, step_sd, aggregation, sd in zip(
            self.step_cost, self.step_sd, self.round_cost, self.round_sd, strict=True
        ):
            steps = (max(v, 1e-10) for v in draw(step, step_sd, tau).tolist())
            c.append(reduce(add, steps) / tau)  # not sum(): from Python 3.12 on its last bit is another
            b.append(max(float(draw(aggregation, sd)), 1e-10))
        if self.resources == "measured":
            longest = max((spent.seconds for spent in cohort.cost), default=cohort.elapsed)  # lost: all was waiting
            rest = time.perf_counter() - cohort.began - longest  # with the server's own work up to here
            c[0], b[0] = max(longest / tau, 1e-10), max(rest, 1e-10)
        return tensor(c, dtype=float64), tensor(b, dtype=float64)

    def bounds(self, found: Estimates, limit: int, c: Tensor, b: Tensor, R: Tensor) -> Tensor:
        """G(τ) for τ = 1, 2, ... up to a limit; of several resources the scarcest says how many steps there can be."""
        tau = arange(1, limit + 1).double()
        T = stack([R_m * tau / (c_m * tau + b_m) for R_m, c_m, b_m in zip(R, c, b, strict=True)]).amin(0)
        return (found.bound if self.form == "corrected" else found.printed_bound)(tau, T, self.phi)
