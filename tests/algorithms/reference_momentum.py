"""A second implementation of the momentum family, in plain NumPy and as naive as possible.

It shares nothing with undrift but the data, the cohorts and the order of the minibatches; gradients are by hand.
Every method is a function from a ``Problem`` and its hyper-parameters to the global model after every round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(logits: Array) -> Array:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def parts(w: Array, hidden: int) -> tuple[Array, Array, Array, Array]:
    """W1, b1, W2, b2 of a net with 4 inputs and 3 outputs."""
    a, b, c = 4 * hidden, 5 * hidden, 8 * hidden
    return w[:a].reshape(hidden, 4), w[a:b], w[b:c].reshape(3, hidden), w[c:]


def features(w: Array, X: Array, hidden: int) -> Array:
    W1, b1, _, _ = parts(w, hidden)
    return np.tanh(X @ W1.T + b1)


def outputs(w: Array, X: Array, hidden: int) -> Array:
    if not hidden:
        return X @ w[:12].reshape(3, 4).T + w[12:]
    _, _, W2, b2 = parts(w, hidden)
    return features(w, X, hidden) @ W2.T + b2


def gradient(w: Array, X: Array, y: Any, hidden: int, on_features: Array | None = None) -> Array:
    """Of the mean cross-entropy, plus a given gradient of something else with respect to the features."""
    p = softmax(outputs(w, X, hidden))
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    if not hidden:
        return np.concatenate([(p.T @ X).ravel(), p.sum(axis=0)])
    _, _, W2, _ = parts(w, hidden)
    z = features(w, X, hidden)
    dz = p @ W2
    if on_features is not None:
        dz = dz + on_features
    da = dz * (1 - z**2)
    return np.concatenate([(da.T @ X).ravel(), da.sum(axis=0), (p.T @ z).ravel(), p.sum(axis=0)])


@dataclass
class Problem:
    X: Array
    y: Any
    start: Array
    sizes: list[int]  # samples of every client
    cohorts: list[list[int]]  # who takes part in every round
    rates: list[float]  # learning rate of every round
    batches: Callable[[int, int], list[Any]]  # rows of every minibatch of (round from 0, client)
    public: Callable[[int, int], list[Any]]  # the server's minibatches of (round, steps)
    scoring: Any  # rows of the scoring inputs
    hidden: int = 0
    decay: float = 0.0
    inner: bool = False
    momentum: float = 0.0
    nesterov: bool = False
    clip: float = np.inf

    def raw(self, w: Array, rows: Any) -> Array:
        return gradient(w, self.X[rows], self.y[rows], self.hidden)

    def g(self, w: Array, rows: Any) -> Array:
        g = self.raw(w, rows)
        return g + self.decay * w if self.inner else g

    def outer(self, v: Array, w: Array) -> Array:
        """The direction of a step: clipped, and then decayed."""
        length = float(np.linalg.norm(v))
        if length > self.clip:
            v = v * self.clip / length
        return v if self.inner else v + self.decay * w

    def shares(self, t: int, uniform: bool) -> list[float]:
        S = self.cohorts[t]
        total = sum(self.sizes[i] for i in S)
        return [1 / len(S) if uniform else self.sizes[i] / total for i in S]


def train(problem: Problem, t: int, i: int, start: Array, direction: Any) -> tuple[Array, int]:
    """The local optimiser: the model after K steps, and K."""
    x, buffer, K = start.copy(), np.zeros_like(start), 0
    for rows in problem.batches(t, i):
        v = problem.outer(direction(x, rows), x)
        buffer = problem.momentum * buffer + v
        x = x - problem.rates[t] * (v + problem.momentum * buffer if problem.nesterov else buffer)
        K += 1
    return x, K


def displacements(problem: Problem, t: int, w: Array, uniform: bool = False) -> Array:
    """dbar of plain clients."""
    total = np.zeros_like(w)
    for p, i in zip(problem.shares(t, uniform), problem.cohorts[t], strict=True):
        total = total + p * (w - train(problem, t, i, w, problem.g)[0])
    return total


def fedavgm(problem: Problem, beta: float, server_lr: float) -> list[Array]:
    w, v, path = problem.start, 0 * problem.start, []
    for t in range(len(problem.cohorts)):
        v = beta * v + displacements(problem, t, w)
        w = w - server_lr * v
        path.append(w)
    return path


def slowmo(problem: Problem, beta: float, alpha: float) -> list[Array]:
    w, u, path = problem.start, 0 * problem.start, []
    for t in range(len(problem.cohorts)):
        u = beta * u + displacements(problem, t, w) / problem.rates[t]
        w = w - alpha * problem.rates[t] * u
        path.append(w)
    return path


def fedmom(problem: Problem, beta: float, server_lr: float) -> list[Array]:
    w, b, path = problem.start, 0 * problem.start, []
    for t in range(len(problem.cohorts)):
        d = displacements(problem, t, w)
        b = beta * b + d
        w = w - server_lr * (d + beta * b)  # Nesterov as PyTorch writes it
        path.append(w)
    return path


def adaptive(
    problem: Problem, kind: str, server_lr: float, beta1: float, beta2: float, tau: float, v0: float | None = None
) -> list[Array]:
    w, path = problem.start, []
    m, v = 0 * w, 0 * w + (tau**2 if v0 is None else v0)
    for t in range(len(problem.cohorts)):
        D = -displacements(problem, t, w)
        m = beta1 * m + (1 - beta1) * D
        for j in range(len(w)):
            square = D[j] * D[j]
            if kind == "adagrad":
                v[j] = v[j] + square
            elif kind == "adam":
                v[j] = beta2 * v[j] + (1 - beta2) * square
            elif v[j] > square:
                v[j] = v[j] - (1 - beta2) * square
            elif v[j] < square:
                v[j] = v[j] + (1 - beta2) * square
        w = w + server_lr * m / (np.sqrt(v) + tau)
        path.append(w)
    return path


def fedexp(problem: Problem, eps: float, printed: bool = False) -> list[Array]:
    w, path = problem.start, []
    for t, S in enumerate(problem.cohorts):
        d, square = 0 * w, 0.0
        for p, i in zip(problem.shares(t, False), S, strict=True):
            d_i = w - train(problem, t, i, w, problem.g)[0]
            d, square = d + p * d_i, square + p * float(d_i @ d_i)
        eps_t = eps * (1 if printed else len(S)) * (problem.rates[t] / problem.rates[0]) ** 2
        new = w - max(1.0, square / (2 * (float(d @ d) + eps_t))) * d
        path.append((w + new) / 2)
        w = new
    return path


def fednova(problem: Problem, mu: float, gmf: float = 0.0) -> list[Array]:
    w, slow, path = problem.start, 0 * problem.start, []
    for t, S in enumerate(problem.cohorts):
        tau_eff, step, lr = 0.0, 0 * w, problem.rates[t]
        for p, i in zip(problem.shares(t, False), S, strict=True):
            x, K = train(problem, t, i, w, lambda x, rows, w=w: problem.g(x, rows) + mu * (x - w))
            a = carried = 0.0  # how far K steps along a constant direction of length 1 carry, simulated
            for _ in range(K):
                carried = problem.momentum * carried + 1
                a = a * (1 - lr * mu) + (1 + problem.momentum * carried if problem.nesterov else carried)
            tau_eff, step = tau_eff + p * a, step + p * (w - x) / a
        slow = gmf * slow + tau_eff * step / lr
        w = w - lr * slow
        path.append(w)
    return path


def rescaled(x: Array, y: Array, old: float, new: float) -> Array:
    """The point y of a Nesterov state (x, y) after the rate changed, with the velocity in gradient units kept."""
    return x + (y - x) * new / old


def nesterov(problem: Problem, batches: list[Any], x: Array, y: Array, gamma: float, lr: float) -> tuple[Array, Array]:
    for rows in batches:
        new = x - lr * problem.outer(problem.g(x, rows), x)
        x, y = new + gamma * (new - y), new
    return x, y


def fastslowmo(problem: Problem, gamma: float, gamma_a: float, velocity: bool) -> list[Array]:
    """With gamma_a = 0 it is FedNAG."""
    x = y = X = problem.start
    path = []
    for t, S in enumerate(problem.cohorts):
        lr = problem.rates[t]
        y = rescaled(x, y, problem.rates[max(t - 1, 0)], lr)
        xbar, ybar = 0 * x, 0 * x
        for p, i in zip(problem.shares(t, False), S, strict=True):
            xi, yi = nesterov(problem, problem.batches(t, i), x, y, gamma, lr)
            xbar, ybar = xbar + p * xi, ybar + p * yi
        x = xbar + gamma_a * (xbar - X)
        y = ybar + (x - xbar) if velocity else ybar
        X = xbar
        path.append(x)
    return path


def domo(
    problem: Problem,
    mu_s: float,
    mu_l: float,
    beta: float,
    during: bool,
    alpha: float = 1.0,
    uniform: bool = True,
) -> list[Array]:
    w, m, path = problem.start, 0 * problem.start, []
    for t, S in enumerate(problem.cohorts):
        lr, D, steps = problem.rates[t], 0 * w, []
        for p, i in zip(problem.shares(t, uniform), S, strict=True):
            batches = problem.batches(t, i)
            K = len(batches)
            x, h, total = (w if during else w - lr * K * beta * m), 0 * w, 0 * w
            for rows in batches:
                h = mu_l * h + problem.outer(problem.g(x, rows), x)
                x = x - lr * h
                if during:
                    x = x - lr * beta * m
                total = total + h
            D = D + p * total / K
            steps.append(K)
        m = mu_s * m + D
        w = w - alpha * lr * sum(steps) / len(steps) * m
        path.append(w)
    return path


def fedadc(
    problem: Problem, beta_g: float, beta_l: float, ahead: bool, alpha: float = 1.0, uniform: bool = True
) -> list[Array]:
    w, m, path = problem.start, 0 * problem.start, []
    for t, S in enumerate(problem.cohorts):
        lr, d = problem.rates[t], 0 * w
        for p, i in zip(problem.shares(t, uniform), S, strict=True):
            batches, x = problem.batches(t, i), w
            mbar = m / len(batches)
            for rows in batches:
                at = x - lr * beta_l * mbar if ahead else x
                x = x - lr * problem.outer(problem.g(at, rows) + beta_l * mbar, x)
            d = d + p * (w - x)
        m = d / lr + (beta_g - beta_l) * m
        w = w - alpha * lr * m
        path.append(w)
    return path


def mime(
    problem: Problem, beta: float, lite: bool, server_lr: float = 1.0, uniform: bool = False
) -> list[tuple[Array, Array]]:
    """The model and the momentum. An inner decay belongs to f_i: it is in all three gradients."""
    w, m, path = problem.start, 0 * problem.start, []
    first = np.concatenate([[0], np.cumsum(problem.sizes)])
    for t, S in enumerate(problem.cohorts):
        p = problem.shares(t, uniform)
        c = sum(q * problem.g(w, np.arange(first[i], first[i + 1])) for q, i in zip(p, S, strict=True))

        def direction(x: Array, rows: Any, w: Array = w, m: Array = m, c: Any = c) -> Array:
            g = problem.g(x, rows) if lite else problem.g(x, rows) - problem.g(w, rows) + c
            return (1 - beta) * g + beta * m

        d = sum(q * (w - train(problem, t, i, w, direction)[0]) for q, i in zip(p, S, strict=True))
        w, m = w - server_lr * d, (1 - beta) * c + beta * m
        path.append((w, m))
    return path


def lorentz(z: Array, z_g: Array, gamma: float, sigma: float, beta: float, mean: bool) -> Array:
    """The gradient of γR with respect to the features, sample by sample."""
    out = np.zeros_like(z)
    for j in range(len(z)):
        h, h_g = np.sqrt(beta + z[j] @ z[j]), np.sqrt(beta + z_g[j] @ z_g[j])
        distance = 2 * (h * h_g - z[j] @ z_g[j]) - 2 * beta
        out[j] = gamma / sigma * np.exp(distance / sigma) * 2 * (h_g / h * z[j] - z_g[j])
        if mean:
            out[j] /= len(z)
    return out


def fedmrur(
    problem: Problem,
    alpha: float,
    rho: float = 0.0,
    normalise: bool = False,
    gamma: float = 0.0,
    sigma: float = 1.0,
    beta: float = 1.0,
    mean: bool = True,
    server_lr: float = 1.0,
    uniform: bool = True,
) -> list[Array]:
    """Without γ and normalisation it is MoFedSAM, and with ρ = 0 as well FedCM."""
    w, delta, path = problem.start, 0 * problem.start, []
    for t, S in enumerate(problem.cohorts):
        lr, ds, steps = problem.rates[t], [], []
        for i in S:
            x = w
            for rows in problem.batches(t, i):
                X, y = problem.X[rows], problem.y[rows]

                def grad(x: Array, X: Array = X, y: Any = y, w: Array = w) -> Array:
                    if not gamma:
                        return gradient(x, X, y, problem.hidden)
                    z, z_g = features(x, X, problem.hidden), features(w, X, problem.hidden)
                    return gradient(x, X, y, problem.hidden, lorentz(z, z_g, gamma, sigma, beta, mean))

                a = grad(x)
                g = grad(x + rho * a / (np.linalg.norm(a) + 1e-12))
                if problem.inner:
                    g = g + problem.decay * x
                x = x - lr * problem.outer(alpha * g + (1 - alpha) * delta, x)
            ds.append(w - x)
            steps.append(len(problem.batches(t, i)))
        p = problem.shares(t, uniform)
        D = sum(q * d for q, d in zip(p, ds, strict=True))
        if normalise:
            D = D / np.linalg.norm(D) * sum(q * np.linalg.norm(d) for q, d in zip(p, ds, strict=True))
        w = w - server_lr * D
        delta = D / (lr * sum(steps) / len(steps))
        path.append(w)
    return path


def fedsam(problem: Problem, rho: float) -> list[Array]:
    w, path = problem.start, []

    def uphill(x: Array, rows: Any) -> Array:
        a = problem.raw(x, rows)
        g = problem.raw(x + rho * a / (np.linalg.norm(a) + 1e-12), rows)
        return g + problem.decay * x if problem.inner else g

    for t, S in enumerate(problem.cohorts):
        new = 0 * w
        for p, i in zip(problem.shares(t, False), S, strict=True):
            new = new + p * train(problem, t, i, w, uphill)[0]
        w = new
        path.append(w)
    return path


def fedsmoo(problem: Problem, rho: float, lambda_p: float, smoo: bool, uniform: bool = True) -> list[Array]:
    """Without ``smoo`` it is FedSpeed."""
    w, s, path = problem.start, 0 * problem.start, []
    N = len(problem.sizes)
    h, mu = [0 * w for _ in range(N)], [0 * w for _ in range(N)]
    for t, S in enumerate(problem.cohorts):
        models = []
        for i in S:

            def direction(x: Array, rows: Any, i: int = i, w: Array = w, s: Array = s) -> Array:
                a = problem.raw(x, rows)
                if smoo:
                    a = a - mu[i] - s
                e = rho * a / (np.linalg.norm(a) + 1e-12)
                if smoo:
                    mu[i] = mu[i] + e - s
                g = problem.raw(x + e, rows)
                if problem.inner:
                    g = g + problem.decay * x
                return g + lambda_p * (x - w + h[i])

            models.append(train(problem, t, i, w, direction)[0])
        for i, x in zip(S, models, strict=True):
            h[i] = h[i] + (x - w)
        p = problem.shares(t, uniform)
        all_shares = [1 / N if uniform else n / sum(problem.sizes) for n in problem.sizes]
        w = sum(q * x for q, x in zip(p, models, strict=True)) + sum(
            q * dual for q, dual in zip(all_shares, h, strict=True)
        )
        if smoo:
            mean = sum(q * mu[i] for q, i in zip(p, S, strict=True))
            s = rho * mean / (np.linalg.norm(mean) + 1e-12)
        path.append(w)
    return path


def pfedmo(
    problem: Problem, gamma: float, pi: float, variant: str, repr_reset: bool = False, uniform: bool = False
) -> tuple[list[Array], list[Array], list[Array]]:
    """The global model, the representation model and the scores after every round: positions y, as printed."""
    N, start = len(problem.sizes), problem.start
    sent = [(start, start) for _ in range(N)]  # what each worker would be sent
    x_r = y_r = start
    worst: dict[int, float] = {}
    s = [0.0] * N
    path, representation, scores = [], [], []
    for t, S in enumerate(problem.cohorts):
        lr, old = problem.rates[t], problem.rates[max(t - 1, 0)]
        ends = {}
        for i in S:
            x, y = sent[i]
            ends[i] = nesterov(problem, problem.batches(t, i), x, rescaled(x, y, old, lr), gamma, lr)
        steps = max(len(problem.batches(t, i)) for i in S)
        x_r, y_r = nesterov(problem, problem.public(t, steps), x_r, rescaled(x_r, y_r, old, lr), gamma, lr)
        X = problem.X[problem.scoring]
        for i in S:
            teacher, worker = softmax(outputs(x_r, X, problem.hidden)), softmax(outputs(ends[i][0], X, problem.hidden))
            loss = -float((teacher * np.log(worker)).sum() / len(X))
            worst[i] = max(worst.get(i, loss), loss)
            s[i] = 1 - loss / worst[i]
        q = problem.shares(t, uniform)
        xbar = sum(p * ends[i][0] for p, i in zip(q, S, strict=True))
        ybar = sum(p * ends[i][1] for p, i in zip(q, S, strict=True))
        for i in range(N):
            share = pi * s[i]
            x_plus = (1 - share) * xbar + share * x_r
            y_plus = (1 - share) * ybar + share * y_r
            if variant == "literal":
                x_plus = x_plus + (ybar - y_plus)
            elif variant == "velocity":  # m = -ηu, u = (y - x)/(ηγ)
                mbar, m_r = -(ybar - xbar) / gamma, -(y_r - x_r) / gamma
                m_plus = (1 - share) * mbar + share * m_r
                x_plus = x_plus + (mbar - m_plus)
                y_plus = x_plus - gamma * m_plus
            sent[i] = (x_plus, y_plus)
        path.append(sum(p * sent[i][0] for p, i in zip(q, S, strict=True)))
        representation.append(x_r)
        if repr_reset:
            x_r, y_r = path[-1], sum(p * sent[i][1] for p, i in zip(q, S, strict=True))
        scores.append(np.array(s))
    return path, representation, scores
