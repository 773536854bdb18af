"""The evaluation protocol. Every number says which model was evaluated on which data.

* ``global`` on ``test``: the global model on the held-out test set;
* ``global`` on ``own test``: the same model on each client's own test part: the mean over clients, and the mean of the
  worst tenth of them;
* ``personal`` on ``own test``: each client's personal model on its own test part, where the method has one.

The clients' test parts divide the test set: of each class a client gets the share that it holds in training.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core import rng
from undrift.core.algorithm import Algorithm, Method
from undrift.core.client import one_thread
from undrift.core.eager import as_rows
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.figure import HEADLINE, OWN_MEAN, OWN_WORST, PERSONAL, TEST, Figure
from undrift.core.loop import Loop, Snapshot
from undrift.core.runtime import Runtime
from undrift.core.vector import Buffers, Replica, double
from undrift.runtimes.serial import Serial

CHUNK = 1024
PERSONAL_LIMIT = 200  # personal models evaluated per round: a fixed, keyed sample of the clients where there are more


@dataclass(frozen=True)
class Evaluation:
    """The labelled numbers of one round."""

    metrics: list[tuple[Figure, float]] = field(default_factory=list)
    clients: dict[str, dict[int, float]] = field(default_factory=dict)  # model -> client -> accuracy

    def value(self, figure: Figure) -> float | None:
        return next((value for found, value in self.metrics if found == figure), None)

    @property
    def headline(self) -> tuple[Figure, float] | None:
        """What the round is judged by: the global model on the test set, or personal ones; a loss where it is all."""
        order = (HEADLINE, Figure(PERSONAL, OWN_MEAN), Figure(metric="loss"))
        return next(((figure, value) for figure in order if (value := self.value(figure)) is not None), None)


class Evaluator:
    """Evaluates the models of a run on the test set and on the clients' parts of it."""

    def __init__(
        self,
        federation: Federation,
        x: Tensor,
        y: Tensor,
        classes: int | None,
        parts: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None,
    ) -> None:
        self.federation, self.x, self.y, self.classes = federation, x, y, classes
        self.parts = parts
        self._here = Serial(federation)
        needed = 1 if classes == 2 else classes  # one output can tell two classes apart
        if needed is not None and federation.layout.classes < needed:
            raise InvalidInput(f"the model has {federation.layout.classes} outputs, and the data has {classes} classes")

    def __call__(self, loop: Loop, snapshot: Snapshot) -> Evaluation:
        method, found = loop.method, Evaluation()
        with one_thread(), torch.no_grad():
            for name, w in method.models(snapshot.server).items():
                correct, losses = self._score(loop.runtime, w, snapshot.buffers, self.x, self.y)
                found.metrics.append((Figure(name, TEST, "loss"), float(losses.mean())))
                if self.classes is not None:
                    found.metrics.append((Figure(name, TEST, "accuracy"), float(correct.mean())))
                    if self.parts is not None and not method.pools_data:
                        self._per_client(found, name, self._by_client(correct))
            self._personal(found, loop, snapshot)
        return found

    def _personal(self, found: Evaluation, loop: Loop, snapshot: Snapshot) -> None:
        method = loop.method
        if self.parts is None or not personal_models(method):
            return
        indices, offsets = self.parts
        candidates = np.flatnonzero(np.diff(offsets) > 0)
        if len(candidates) > PERSONAL_LIMIT:
            chosen = rng.sample(rng.key(self.federation.seed, "personal"), len(candidates), PERSONAL_LIMIT)
            candidates = candidates[chosen]
        scores: dict[int, float] = {}
        for client in candidates.tolist():
            kept = loop.runtime.kept(method, client)
            w = method.personal(snapshot.server, kept.state, client, self.federation.layout)
            if w is None:
                return
            rows = as_rows(indices[offsets[client] : offsets[client + 1]])
            buffers = kept.buffers if kept.buffers is not None else snapshot.buffers
            correct, _ = self._score(self._here, w, buffers, self.x[rows], self.y[rows])
            if self.classes is not None:
                scores[client] = float(correct.mean())
        self._per_client(found, PERSONAL, scores)

    def _score(self, runtime: Runtime, w: Tensor, buffers: Buffers, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """For each sample: was it right (classification only), and the loss. Done where the clients work."""
        tensors = {"w": w, "floats": buffers.floats, "counts": buffers.counts, "x": x, "y": y}
        spans = [(begin, min(begin + CHUNK, len(x))) for begin in range(0, len(x), CHUNK)]
        pieces = runtime.map(score, tensors, spans)
        right, losses = (torch.cat([piece[name] for piece in pieces]) for name in ("right", "losses"))
        return right, losses

    def _by_client(self, correct: Tensor) -> dict[int, float]:
        assert self.parts is not None
        indices, offsets = self.parts
        held = np.flatnonzero(np.diff(offsets) > 0)
        sums = np.add.reduceat(correct.cpu().numpy()[indices], offsets[:-1][held]) if len(held) else np.empty(0)
        return dict(zip(held.tolist(), (sums / np.diff(offsets)[held]).tolist(), strict=True))

    @staticmethod
    def _per_client(found: Evaluation, model: str, scores: dict[int, float]) -> None:
        if not scores:
            return
        values = np.sort(list(scores.values()))
        worst = values[: max(1, len(values) // 10)]
        found.metrics.append((Figure(model, OWN_MEAN, "accuracy"), float(values.mean())))
        found.metrics.append((Figure(model, OWN_WORST, "accuracy"), float(worst.mean())))
        found.clients[model] = scores


def score(federation: Federation, tensors: Mapping[str, Tensor], span: tuple[int, int]) -> dict[str, Tensor]:
    """The model ``w`` on some of the samples; runs wherever the runtime says."""
    replica = _mine.replicas.get(federation)
    if replica is None:
        replica = _mine.replicas[federation] = Replica(federation.module, federation.layout)
        replica.module.eval()
    replica.flat.copy_(tensors["w"])
    if replica.has_buffers:
        replica.set_buffers(Buffers(tensors["floats"], tensors["counts"]))
    x, y = tensors["x"][slice(*span)], tensors["y"][slice(*span)]
    outputs = replica.module(x)
    loss = federation.loss(outputs, y)
    losses = double(loss).expand(len(y)).contiguous() if loss.ndim == 0 else double(loss)
    return {"right": double(_guess(outputs) == y), "losses": losses}


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.replicas: WeakKeyDictionary[Federation, Replica] = WeakKeyDictionary()


_mine = _OfThread()


def _guess(outputs: Tensor) -> Tensor:
    """The class a model decides for; with a single output, its sign."""
    single = outputs.ndim == 1 or outputs.shape[1] == 1
    return (outputs.reshape(-1) > 0).long() if single else outputs.argmax(1)


def personal_models(method: Method) -> bool:
    """Does the method have personal models at all?"""
    return type(method).personal is not Algorithm.personal
