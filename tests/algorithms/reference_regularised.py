"""The methods once more, in plain NumPy loops, written from the specification: nothing here is shared with undrift.

Every function takes a ``Problem`` and hyper-parameters, and gives the server's numbers after every round and what each
client keeps at the end, both by the names that undrift's records use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Rows = NDArray[np.int64]
Result = tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]


@dataclass
class Problem:
    """Data, clients, and the order of everything that is random."""

    X: Array
    y: Rows
    rows: list[Rows]  # of every client
    cohorts: list[list[int]]  # of every round
    batches: Callable[[int, int, int | None], list[Rows]]  # of (client, round, number of steps)
    w0: Array
    hidden: int  # 0: softmax regression
    lr: float
    rho: float  # local momentum
    decay: float  # weight decay
    lr_decay: float = 1.0  # factor of the learning rate from round to round

    def rounds(self) -> Iterator[tuple[int, list[int]]]:
        """The rounds, each with its cohort; ``lr`` is that of the round."""
        first = self.lr
        for t, S in enumerate(self.cohorts, 1):
            self.lr = first * self.lr_decay ** (t - 1)
            yield t, S

    @property
    def n(self) -> Array:
        return np.array([len(r) for r in self.rows], dtype=float)

    @property
    def head_at(self) -> int:
        """Where the last layer begins in the vector: weights, then biases, layer by layer."""
        return self.hidden * 4 + self.hidden

    def travel(self, K: int) -> float:
        """A_K: the path of K steps along a constant unit gradient."""
        path = speed = 0.0
        for _ in range(K):
            speed = self.rho * speed + 1
            path += speed
        return path

    # -- the model, with gradients by hand ---------------------------------------------------------------------------

    def forward(self, w: Array, X: Array) -> tuple[Array, Array]:
        h, at = self.hidden, self.head_at
        z = np.tanh(X @ w[: h * 4].reshape(h, 4).T + w[h * 4 : at]) if h else X
        width = z.shape[1]
        return z, z @ w[at : at + 3 * width].reshape(3, width).T + w[at + 3 * width :]

    def backward(self, w: Array, X: Array, d_out: Array, d_z: Any = 0.0) -> Array:
        """The gradient of a loss whose derivatives by the outputs and by the features are given."""
        z, _ = self.forward(w, X)
        at, width = self.head_at, z.shape[1]
        head = [(d_out.T @ z).ravel(), d_out.sum(0)]
        if not self.hidden:
            return np.concatenate(head)
        d_z = d_out @ w[at : at + 3 * width].reshape(3, width) + d_z
        d_a = d_z * (1 - z**2)
        return np.concatenate([(d_a.T @ X).ravel(), d_a.sum(0), *head])

    def loss(self, w: Array, rows: Rows) -> float:
        p = softmax(self.forward(w, self.X[rows])[1])
        return float(np.mean([-np.log(p[k, self.y[r]]) for k, r in enumerate(rows)]))

    def d_loss(self, w: Array, rows: Rows) -> Array:
        """The derivative of the mean cross-entropy by the outputs."""
        p = softmax(self.forward(w, self.X[rows])[1])
        for k, r in enumerate(rows):
            p[k, self.y[r]] -= 1
        return p / len(rows)

    def grad(self, w: Array, rows: Rows) -> Array:
        return self.backward(w, self.X[rows], self.d_loss(w, rows))

    # -- the local optimiser -----------------------------------------------------------------------------------------

    def sgd(
        self, start: Array, batches: list[Rows], direction: Callable[[Array, Rows], Array], part: Any = 1.0
    ) -> Array:
        x, buffer = start.copy(), np.zeros_like(start)
        for rows in batches:
            v = direction(x, rows) + self.decay * x
            buffer = self.rho * buffer + v
            x = x - self.lr * buffer * part
        return x


def softmax(z: Array) -> Array:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def mean(p: Problem, S: list[int], values: list[Any], weights: str = "samples") -> Any:
    q = p.n[S] / p.n[S].sum() if weights == "samples" else np.ones(len(S)) / len(S)
    return sum(qi * v for qi, v in zip(q, values, strict=True))


def share(p: Problem, S: list[int], weights: str) -> float:
    return float(p.n[S].sum() / p.n.sum()) if weights == "samples" else len(S) / len(p.rows)


def averaged(p: Problem, direction: Callable[[Array, int, int], Callable[[Array, Rows], Array]]) -> Result:
    """FedAvg with a direction that depends on the received model, the client and the round."""
    w, servers = p.w0, []
    for t, S in p.rounds():
        w = mean(p, S, [p.sgd(w, p.batches(i, t, None), direction(w, i, t)) for i in S])
        servers.append({"x": w})
    return servers, {}


def fedavg(p: Problem, server_lr: float = 1.0, weights: str = "samples") -> Result:
    w, servers = p.w0, []
    for t, S in p.rounds():
        moves = [p.sgd(w, p.batches(i, t, None), p.grad) - w for i in S]
        w = w + server_lr * mean(p, S, moves, weights)
        servers.append({"x": w})
    return servers, {}


def central(p: Problem) -> Result:
    """The cohorts are one client that holds everything."""
    return averaged(p, lambda w, i, t: p.grad)


def fedprox(p: Problem, mu: float) -> Result:
    return averaged(p, lambda w, i, t: lambda x, b: p.grad(x, b) + mu * (x - w))


def fedtrip(p: Problem, mu: float, first: str = "prox", xi: float | None = None) -> Result:
    w, servers, h, last, fixed = p.w0, [], {}, {}, xi
    for t, S in p.rounds():
        models = []
        for i in S:
            xi = 1 / (t - last.get(i, 0)) if fixed is None else fixed
            xi = 0 if first == "prox" and i not in last else xi
            old = h.get(i, p.w0)
            models.append(
                p.sgd(
                    w,
                    p.batches(i, t, None),
                    lambda x, b, w=w, xi=xi, old=old: p.grad(x, b) + mu * ((x - w) - xi * (x - old)),
                )
            )
            h[i], last[i] = models[-1], t
        w = mean(p, S, models)
        servers.append({"x": w})
    return servers, {i: {"h": h[i], "t": last[i]} for i in h}


def scaffold(
    p: Problem, option: str = "II", weights: str = "uniform", server_lr: float = 1.0, head_only: bool = False
) -> Result:
    w, servers, c, ci = p.w0, [], np.zeros_like(p.w0), {}
    P = np.ones_like(w)
    if head_only:
        P[: p.head_at] = 0
    for t, S in p.rounds():
        dw, dc = [], []
        for i in S:
            mine, batches = ci.get(i, np.zeros_like(w)), p.batches(i, t, None)
            x = p.sgd(w, batches, lambda x, b, c=c, mine=mine: p.grad(x, b) + P * (c - mine))
            at_x = p.grad(w, p.rows[i]) + p.decay * w
            new = at_x if option == "I" else mine - c + (w - x) / (p.lr * p.travel(len(batches)))
            dw.append(x - w)
            dc.append(P * (new - mine))
            ci[i] = P * new
        w = w + server_lr * mean(p, S, dw, weights)
        c = c + share(p, S, weights) * mean(p, S, dc, weights)
        at = p.head_at if head_only else 0
        servers.append({"x": w, "c": c[at:]})
    return servers, {i: {"c": v[at:]} for i, v in ci.items()}


def fedpvr(p: Problem, weights: str = "uniform") -> Result:
    return scaffold(p, weights=weights, head_only=True)


def feddyn(p: Problem, alpha: float, weights: str = "uniform", follow: bool = False) -> Result:
    w, servers, h, lam = p.w0, [], np.zeros_like(p.w0), {}
    last = dict.fromkeys(range(len(p.rows)), p.w0)
    for t, S in p.rounds():
        models = []
        for i in S:
            mine = lam.get(i, np.zeros_like(w))
            x = p.sgd(w, p.batches(i, t, None), lambda x, b, w=w, mine=mine: p.grad(x, b) - mine + alpha * (x - w))
            lam[i] = mine - alpha * (x - w)
            last[i] = x
            models.append(x)
        change = mean(p, S, [x - w for x in models], weights)
        h = h - alpha * share(p, S, weights) * change
        w = mean(p, S, models, weights) - h / alpha
        servers.append({"x": w, "h": h})
        if follow:
            servers[-1]["last"] = mean(p, list(last), list(last.values()), weights)
    return servers, {i: {"lam": v} for i, v in lam.items()}


def feddc(p: Problem, alpha: float, weights: str = "uniform", correct: bool = True) -> Result:
    w, servers, c, zero = p.w0, [], np.zeros_like(p.w0), np.zeros_like(p.w0)
    drift, ci = {}, {}
    for t, S in p.rounds():
        models, dc = [], []
        for i in S:
            h, mine, batches = drift.get(i, zero), ci.get(i, zero), p.batches(i, t, None)
            x = p.sgd(w, batches, lambda x, b, w=w, h=h, e=c - mine: p.grad(x, b) + alpha * (x - w + h) + e)
            new = mine - c + (w - x) / (p.lr * p.travel(len(batches))) if correct else zero
            drift[i], ci[i] = h + x - w, new
            models.append(x)
            dc.append(new - mine)
        c = c + share(p, S, weights) * mean(p, S, dc, weights)
        q = p.n / p.n.sum() if weights == "samples" else np.ones(len(p.rows)) / len(p.rows)
        h = sum((q[i] * drift[i] for i in drift), zero)
        w = mean(p, S, models, weights) + h
        servers.append({"x": w, "c": c, "h": h})
    return servers, {i: {"c": ci[i], "h": drift[i]} for i in ci}


def feddane(p: Problem, mu: float) -> Result:
    w, servers = p.w0, []
    for t, S in p.rounds():
        full = {i: p.grad(w, p.rows[i]) for i in S}
        g_hat = mean(p, S, [full[i] for i in S])
        w = mean(
            p,
            S,
            [
                p.sgd(
                    w,
                    p.batches(i, t, None),
                    lambda x, b, w=w, i=i, full=full, g_hat=g_hat: p.grad(x, b) + (g_hat - full[i]) + mu * (x - w),
                )
                for i in S
            ],
        )
        servers.append({"x": w})
    return servers, {}


def mime(p: Problem, beta: float, lite: bool = False, server_lr: float = 1.0) -> Result:
    w, servers, m = p.w0, [], np.zeros_like(p.w0)
    for t, S in p.rounds():
        c = mean(p, S, [p.grad(w, p.rows[i]) for i in S])
        models = []
        for i in S:

            def v(x: Array, b: Rows, w: Array = w, c: Array = c, m: Array = m) -> Array:
                g = p.grad(x, b) if lite else p.grad(x, b) - p.grad(w, b) + c
                return (1 - beta) * g + beta * m

            models.append(p.sgd(w, p.batches(i, t, None), v))
        w, m = w + server_lr * (mean(p, S, models) - w), (1 - beta) * c + beta * m
        servers.append({"x": w, "m": m})
    return servers, {}


def mimelite(p: Problem, beta: float, server_lr: float = 1.0) -> Result:
    return mime(p, beta, lite=True, server_lr=server_lr)


def moon(p: Problem, mu: float, temperature: float, history: int = 1) -> Result:
    h: dict[int, list[Array]] = {}

    def unit(v: Array) -> Array:
        return v / np.linalg.norm(v)

    def direction(w: Array, past: list[Array]) -> Callable[[Array, Rows], Array]:
        def v(x: Array, b: Rows) -> Array:
            z, zg, *zp = (p.forward(u, p.X[b])[0] for u in (x, w, *past))
            d_z = np.zeros_like(z)
            for k in range(len(b)):
                a, others = unit(z[k]), [unit(zg[k]), *(unit(old[k]) for old in zp)]
                share = softmax(np.array([[a @ u for u in others]]) / temperature)[0]
                for j, u in enumerate(others):
                    slope = (share[j] - (j == 0)) / temperature
                    d_z[k] += mu * slope * (u - (a @ u) * a) / np.linalg.norm(z[k]) / len(b)
            return p.backward(x, p.X[b], p.d_loss(x, b), d_z)

        return v

    w, servers = p.w0, []
    for t, S in p.rounds():
        models = [p.sgd(w, p.batches(i, t, None), direction(w, h.get(i, []))) for i in S]
        for i, model in zip(S, models, strict=True):
            h[i] = [model, *h.get(i, [])][:history]
        w = mean(p, S, models)
        servers.append({"x": w})
    return servers, {i: {"h": np.array(v + [p.w0] * (history - len(v)))} for i, v in h.items()}


def fedntd(p: Problem, beta: float, temperature: float) -> Result:
    def direction(w: Array, i: int, t: int) -> Callable[[Array, Rows], Array]:
        def v(x: Array, b: Rows) -> Array:
            d_out, out, teacher = p.d_loss(x, b), p.forward(x, p.X[b])[1], p.forward(w, p.X[b])[1]
            for k, r in enumerate(b):
                others = [j for j in range(3) if j != p.y[r]]
                q_l, q_g = (softmax(o[k : k + 1, others] / temperature)[0] for o in (out, teacher))
                for j, a, g in zip(others, q_l, q_g, strict=True):
                    d_out[k, j] += beta / temperature * (a - g) / len(b)
            return p.backward(x, p.X[b], d_out)

        return v

    return averaged(p, direction)


def fedgkd(p: Problem, gamma: float, temperature: float, history: int, distance: str = "kl") -> Result:
    past = [p.w0]

    def direction(w: Array, i: int, t: int) -> Callable[[Array, Rows], Array]:
        if t > 1 and not np.array_equal(past[-1], w):
            past.append(w)
        teacher = sum(past[-history:], np.zeros_like(w)) / len(past[-history:])

        def v(x: Array, b: Rows) -> Array:
            d_out = p.d_loss(x, b)
            if t > 1:
                z, z_t, T = p.forward(x, p.X[b])[1], p.forward(teacher, p.X[b])[1], temperature
                if distance == "mse":
                    d_out += gamma * 2 * (z - z_t) / z.size
                else:
                    d_out += gamma * T * (softmax(z / T) - softmax(z_t / T)) / len(b)
            return p.backward(x, p.X[b], d_out)

        return v

    return averaged(p, direction)


def centroids(p: Problem, w: Array, rows: Rows) -> dict[int, tuple[Array, int]]:
    """The mean feature and the number of samples of each class that is there."""
    z, found = p.forward(w, p.X[rows])[0], {}
    for j in range(3):
        here = [z[k] for k, r in enumerate(rows) if p.y[r] == j]
        if here:
            found[j] = (np.mean(here, axis=0), len(here))
    return found


def fedtr(
    p: Problem, alpha: float, lam_r: float, eta_d: float = 0.0, drift: str = "descent", reduction: str = "mse",
    share: str = "all", order: str = "after",
) -> Result:  # fmt: skip
    at = p.head_at if share == "extractor" else len(p.w0)  # where the private part begins
    tied = np.arange(len(p.w0)) < at
    w, servers, cen = p.w0, [], {}
    d: dict[int, Array] = {}
    heads: dict[int, Array] = {}
    for t, S in p.rounds():
        sent, tables = [], []
        for i in S:
            start = np.where(tied, w, heads.get(i, p.w0))
            x, dd, buffer = start.copy(), d.get(i, np.zeros_like(w)), np.zeros_like(w)
            for b in p.batches(i, t, None):
                z = p.forward(x, p.X[b])[0]
                d_z = np.zeros_like(z)
                for k, r in enumerate(b):
                    if p.y[r] in cen:
                        scale = {"mse": 1 / (len(b) * z.shape[1]), "mean": 1 / len(b), "sum": 1.0}[reduction]
                        d_z[k] = lam_r * 2 * (z[k] - cen[p.y[r]]) * scale
                v = p.backward(x, p.X[b], p.d_loss(x, b), d_z) + alpha * tied * (dd + x - w) + p.decay * x
                buffer = p.rho * buffer + v
                before, x = x, x - p.lr * buffer
                if drift == "descent":
                    dd = dd - eta_d * alpha * tied * (dd + (x if order == "after" else before) - w)
            d[i] = dd if drift == "descent" else dd + tied * (x - w)
            heads[i] = x
            sent.append(x + d[i] if drift == "descent" else x)
            tables.append(centroids(p, x, p.rows[i]))
        w = np.where(tied, mean(p, S, sent), w)
        if drift == "dual":
            w = w + sum(p.n[i] / p.n.sum() * d[i] for i in d)
        for j in range(3):
            owners = [table[j] for table in tables if j in table]
            if owners:
                cen[j] = sum(c * n for c, n in owners) / sum(n for _, n in owners)
        servers.append({"x": w[:at], "cen": np.array([cen.get(j, np.full(z.shape[1], np.nan)) for j in range(3)])})
    return servers, {i: {"d": d[i][:at], "head": heads[i][at:]} for i in d}


def fedrep(p: Problem, head_epochs: int, body_epochs: int = 2) -> Result:
    w, servers, heads = p.w0, [], {}
    head = np.arange(len(w)) >= p.head_at
    for t, S in p.rounds():
        bodies = []
        for i in S:
            epoch = len(p.batches(i, t, None)) // 2  # the problem trains for two epochs, as the body does by default
            batches = p.batches(i, t, epoch * (head_epochs + body_epochs))
            x = np.where(head, heads.get(i, p.w0), w)
            x = p.sgd(x, batches[: epoch * head_epochs], p.grad, head)
            x = p.sgd(x, batches[epoch * head_epochs :], p.grad, ~head)
            heads[i] = x
            bodies.append(x)
        w = mean(p, S, bodies)
        servers.append({"body": w[: p.head_at]})
    return servers, {i: {"head": v[p.head_at :]} for i, v in heads.items()}


def fedproto(p: Problem, lam: float, average: str = "clients") -> Result:
    servers, proto, models = [], {}, {}
    for t, S in p.rounds():
        tables = []
        for i in S:

            def v(x: Array, b: Rows, proto: dict[int, Array] = dict(proto)) -> Array:  # noqa: B006
                z = p.forward(x, p.X[b])[0]
                d_z = np.zeros_like(z)
                for k, r in enumerate(b):
                    if p.y[r] in proto:
                        d_z[k] = lam * 2 * (z[k] - proto[p.y[r]]) / z.size
                return p.backward(x, p.X[b], p.d_loss(x, b), d_z)

            models[i] = p.sgd(models.get(i, p.w0), p.batches(i, t, None), v)
            tables.append(centroids(p, models[i], p.rows[i]))
        for j in range(3):
            owners = [table[j] if average == "samples" else (table[j][0], 1) for table in tables if j in table]
            if owners:
                proto[j] = sum(c * n for c, n in owners) / sum(n for _, n in owners)
        servers.append({"proto": np.array([proto.get(j, np.full(p.hidden, np.nan)) for j in range(3)])})
    return servers, {i: {"x": v} for i, v in models.items()}


def local(p: Problem) -> Result:
    models: dict[int, Array] = {}
    for t, S in p.rounds():
        for i in S:
            models[i] = p.sgd(models.get(i, p.w0), p.batches(i, t, None), p.grad)
    return [{} for _ in p.cohorts], {i: {"x": v} for i, v in models.items()}


def fedadm(
    p: Problem, alpha: float, xi: float, mu: float, phi: float, tau_max: int, budget: Any, c: Any, b: Any,
    anchor: str = "best", form: str = "corrected", tau: int | None = None, weights: str = "samples",
) -> Result:  # fmt: skip
    budget, c, b = (np.array(values) for values in (budget, c, b))  # one number for each resource
    w, best, steps, first, used, phase = p.w0, p.w0, tau or 1, None, 0.0 * budget, "train"
    servers: list[dict[str, Any]] = []
    keep: dict[int, dict[str, Any]] = {}
    for t, S in p.rounds():
        a, ups = (best if anchor == "best" else w), []
        for i in S:
            me, drawn = keep.get(i), p.batches(i, t, steps)
            mu_i = mu if me is None else max(0.0, me["mu"] + alpha * (np.linalg.norm(me["y"] - a) - xi))
            B = drawn[0] if me is None else me["B"]
            f, g = p.loss(w, B), p.grad(w, B)
            rho, beta, apart = 0.0, 1e-5, me is not None and np.linalg.norm(me["y"] - w) > 1e-10
            if apart:
                far = np.linalg.norm(me["y"] - w)
                rho, beta = abs(me["f"] - f) / far, max(1e-5, float(np.linalg.norm(me["g"] - g) / far))
            x, last = w, B
            for k in range(steps):
                last = B if k == 0 else drawn[k]
                x = x - p.lr * (p.grad(x, last) + mu_i * (x - a) + p.decay * x)
            keep[i] = {"mu": mu_i, "y": x, "f": p.loss(x, last), "g": p.grad(x, last), "B": last}
            ups.append((x, g, f, p.loss(best, B), mu_i, rho, beta, apart))
        q = p.n[S] / p.n[S].sum() if weights == "samples" else np.ones(len(S)) / len(S)
        g_hat = sum(qi * up[1] for qi, up in zip(q, ups, strict=True))
        delta = sum(qi * np.linalg.norm(up[1] - g_hat) for qi, up in zip(q, ups, strict=True))
        mus = [up[4] for up in ups]
        mu_bar = float(np.mean(mus))
        first = mu_bar if first is None else first
        if sum(qi * up[2] for qi, up in zip(q, ups, strict=True)) < sum(
            qi * up[3] for qi, up in zip(q, ups, strict=True)
        ):
            best = w
        used = used + c * steps + b
        if phase != "evaluate":
            w = mean(p, S, [up[0] for up in ups], weights)
        known = [(qi, up) for qi, up in zip(q, ups, strict=True) if up[7]]
        if known and tau is None:
            total = sum(qi for qi, _ in known)
            rho, beta = (sum(qi * up[k] for qi, up in known) / total for k in (5, 6))
            values = []
            for s in range(1, min(10 * steps, tau_max) + 1):
                h = 0.0
                for m in mus:
                    h += (beta + mu_bar) / (beta + m) * (((1 + p.lr * (beta + m)) ** s - 1) / (beta + m) - p.lr * s)
                h = max(0.0, delta * h / len(mus))
                T = min((budget - b - c) * s / (c * s + b))
                e, rise = p.lr * phi, max(0.0, mu_bar - first)
                if form == "printed":
                    root = np.sqrt((2 * T * rho * h + 2 * s * mu_bar * xi * h + s * rise) / (e * T**2))
                    values.append(1 / (4 * e * T) + root + (rho + mu_bar * xi) * rho * h)
                else:
                    A = T * rho * h / s + mu_bar * xi * h + xi**2 / 2 * rise
                    root = np.sqrt(1 / (4 * e**2 * T**2) + A / (e * T))
                    values.append(1 / (2 * e * T) + root + (rho + mu_bar * xi) * h)
            steps = 1 + int(np.argmin(values))
        phase = {"train": "train", "last": "evaluate"}.get(phase, "stop")
        if phase == "train" and any(used + c * (steps + 1) + 2 * b >= budget):
            steps, phase = max(1, min(steps, int(np.floor(min((budget - used - 2 * b - c) / c))))), "last"
        if phase == "evaluate":
            steps = 1
        servers.append({"x": w, "best": best, "tau": steps, "used": used})
    return servers, {i: {k: v for k, v in me.items() if k in ("mu", "y", "f", "g")} for i, me in keep.items()}
