"""Worked problems of the specification as ordinary federations: a two-line module whose loss is the quadratic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from undrift.algorithms import create
from undrift.core.federation import Federation
from undrift.core.loop import Loop, Round, Snapshot
from undrift.core.runtime import Runtime
from undrift.core.stages import Uploads
from undrift.core.states import Kept, Memory
from undrift.core.training import Training
from undrift.runtimes.serial import Serial


class Quadratic(nn.Module):
    """F(w) = 1/2 sum_j a_j (w_j - c_j)^2, with (a, c) as the sample."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, sample: Tensor) -> Tensor:
        return 0.5 * (sample[:, 0] * (self.w - sample[:, 1]) ** 2).sum(1, keepdim=True)


class Slope(nn.Module):
    """F(w) = <b, w>, with b as the sample: the gradient is b everywhere."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, sample: Tensor) -> Tensor:
        return (sample * self.w).sum(1, keepdim=True)


def _federation(
    module: nn.Module, samples: Sequence[Any], n: Sequence[int], training: Training, public: Any = None, seed: int = 0
) -> Federation:
    """Client i holds n_i copies of its sample, and the server may hold one of its own."""
    rows = [np.repeat([sample], count, axis=0) for sample, count in zip(samples, n, strict=True)]
    if public is not None:
        rows.append(np.array([public]))
    x = torch.tensor(np.concatenate(rows), dtype=torch.float64)
    offsets = np.concatenate([[0], np.cumsum(n)]).astype(np.int64)
    total = int(offsets[-1])
    server_rows = np.array([total]) if public is not None else None
    return Federation(
        module=module,
        loss=lambda outputs, y: outputs.mean(),
        x=x,
        y=torch.zeros(len(x)),
        indices=np.arange(total),
        offsets=offsets,
        training=training,
        seed=seed,
        public=server_rows,
        scoring=server_rows,
    )


def quadratics(
    a: Sequence[Sequence[float]],
    c: Sequence[Sequence[float]],
    n: Sequence[int],
    start: Sequence[float],
    training: Training,
    public: tuple[Sequence[float], Sequence[float]] | None = None,
    seed: int = 0,
) -> Federation:
    """Clients with quadratic losses; client i holds n_i copies of its sample."""
    return _federation(Quadratic(start), list(zip(a, c, strict=True)), n, training, public, seed)


def crowd(far: float, clients: int = 7) -> Federation:
    """Clients that pull towards points near 1 from a start at 1, but for the fourth, which is pulled far away."""
    c = [[1.0 + 0.1 * i, 2.0 - 0.1 * i] for i in range(clients)]
    c[3] = [far, far]
    return quadratics(
        [[1.0, 1.0]] * clients, c, [2 + i for i in range(clients)], [1.0, 1.0], Training(lr=0.5, batch_size=0, steps=1)
    )


def slopes(b: Sequence[Sequence[float]], n: Sequence[int] | None = None, **training: Any) -> Federation:
    """Clients with linear losses <b_i, w>, from w = 0; by default one step of length 1, so that d_i = b_i."""
    settings = Training(**{"lr": 1.0, "batch_size": 0, "steps": 1} | training)
    return _federation(Slope([0.0] * len(b[0])), b, n or [1] * len(b), settings, public=[0.0] * len(b[0]))


def toy(**training: Any) -> Federation:
    """TOY (0.7 of the first specification): two scalar clients, uniform weights."""
    settings = Training(**{"lr": 0.1, "batch_size": 0, "steps": 2} | training)
    return quadratics([[1], [3]], [[0], [1]], [1, 1], [0.0], settings)


def quad1(n: Sequence[int] = (1, 3), **training: Any) -> Federation:
    """QUAD-1 (16 of the second specification)."""
    settings = Training(**{"lr": 0.1, "batch_size": 0, "steps": 2} | training)
    return quadratics([[1, 2], [2, 1]], [[1, 0], [0, -1]], n, [2.0, 1.0], settings, public=([1.5, 1.5], [0.5, -0.5]))


SMALL = (7, 12, 5, 20, 9)  # samples of the clients of ``small``


def small(hidden: int = 0, sizes: Sequence[int] = SMALL, **training: Any) -> Federation:
    """Uneven clients with 4 features and 3 classes: softmax regression, or a net with one hidden layer of tanh."""
    made = np.random.default_rng(7)
    n = sum(sizes) + 10 + 6  # and the server's rows: 10 to train on, 6 to score with
    x, y = made.normal(size=(n, 4)), made.integers(0, 3, n)
    x[: sum(sizes)] += np.repeat(made.normal(size=(len(sizes), 4)), sizes, axis=0)  # every client's data lie elsewhere
    layers = [nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3)] if hidden else [nn.Linear(4, 3)]
    module = nn.Sequential(*layers).double()
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.from_numpy(made.normal(size=tuple(p.shape)) / 2))
    return Federation(
        module=module,
        loss=nn.functional.cross_entropy,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y),
        indices=np.arange(sum(sizes)),
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        training=Training(**{"lr": 0.2, "batch_size": 4, "epochs": 2} | training),
        public=np.arange(n - 16, n - 6),
        scoring=np.arange(n - 6, n),
    )


def batches(federation: Federation, client: int, round: int, steps: int | None = None) -> list[NDArray[np.int64]]:
    """The rows of the data in every minibatch of a client's round."""
    rows = federation.rows(client)
    local = federation.trainer().local(client, round, rows)
    drawn = local.fold(lambda seen, b: [*seen, b.index[b.index >= 0]], [], steps)
    return [rows[index].numpy() for index in drawn]


@dataclass(frozen=True)
class Played(Round):
    """A round, and what the clients keep since."""

    kept: dict[int, Kept] = field(default_factory=dict)


class Diary(Memory):
    """Also knows what the last round brought."""

    last: Mapping[int, Kept] = MappingProxyType({})

    def keep(self, kept: Mapping[int, Kept]) -> None:
        super().keep(kept)
        self.last = kept


def next_round(loop: Loop, snapshot: Snapshot) -> Played:
    """The next round of a loop, and what it made clients keep."""
    diary = Diary({} if not isinstance(loop.runtime.states, Memory) else loop.runtime.states.kept)
    loop.runtime.states = diary
    return Played(**vars(loop.play(snapshot)), kept=dict(diary.last))


def play(
    federation: Federation,
    name: str,
    rounds: int,
    participate: int | None = None,
    runtime: Callable[[Federation], Runtime] = Serial,
    keep: Mapping[int, Kept] | None = None,
    uploads: Uploads | None = None,
    **settings: Any,
) -> list[Played]:
    """The rounds of a run, with what clients keep in memory: from the start, or as given."""
    method = create(name, **settings)
    federation = federation.pooled() if method.pools_data else federation
    loop = Loop(federation, method, runtime(federation), participate or federation.population.size, uploads)
    loop.runtime.states = Memory(keep)
    snapshot, played = loop.start(), []
    for _ in range(rounds):
        result = next_round(loop, snapshot)
        snapshot = result.snapshot
        played.append(result)
    return played


def trajectory(federation: Federation, name: str, rounds: int, **settings: Any) -> list[list[float]]:
    """The global model after every round."""
    method = create(name, **{k: v for k, v in settings.items() if k not in ("participate", "runtime")})
    return [method.models(r.snapshot.server)["global"].tolist() for r in play(federation, name, rounds, **settings)]
