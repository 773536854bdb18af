"""The evaluation protocol. Every number says which model was evaluated on which data.

* ``global`` on ``test``: the global model on the held-out test set;
* ``global`` on ``validation``: the same on what was set apart of the clients' training data, where that was asked for;
* ``global`` on ``own test``: the same model on each client's own test part: the mean over clients, and the mean of the
  worst tenth of them;
* ``personal`` on ``own test``: each client's personal model on its own test part, where the method has one;
* ``global`` on ``training``, where the plan asks for it: the objective itself, on all clients' training data.

The clients' test parts divide the test set: of each class a client gets the share that it holds in training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from undrift.core import eager, rng
from undrift.core.client import Candidate, Judged, one_thread
from undrift.core.eager import JUDGED, as_rows
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation, Registered, Rows
from undrift.core.figure import (
    CONFUSION,
    GLOBAL,
    HEADLINE,
    OWN_MEAN,
    OWN_WORST,
    PERSONAL,
    RELIABILITY,
    TEST,
    TRAINING,
    VALIDATION,
    Figure,
    kept_as,
    worst_tenth,
)
from undrift.core.loop import Loop, Snapshot
from undrift.core.runtime import Runtime
from undrift.core.spent import Spent
from undrift.core.vector import Buffers, Replica
from undrift.experiment import counts, metrics
from undrift.experiment.metrics import measured

GROUP = 16  # clients that are asked at the same time, where a round asks fewer
PERSONAL_LIMIT = 200  # personal models evaluated per round: a fixed, keyed sample of the clients where there are more


@dataclass(frozen=True)
class Evaluation:
    """The labelled numbers of one round."""

    metrics: list[tuple[Figure, float]] = field(default_factory=list)
    clients: dict[str, dict[int, float]] = field(default_factory=dict)  # by ``kept_as``: client -> figure
    counts: dict[str, dict[int, float]] = field(default_factory=dict)  # by ``kept_as``: see ``experiment.counts``
    spent: Spent = field(default_factory=Spent)  # what it cost the clients to say so: no part of training
    judged_by: str | None = None  # the metric that the experiment names, where it names one

    def value(self, figure: Figure) -> float | None:
        return next((value for found, value in self.metrics if found == figure), None)

    @property
    def headline(self) -> tuple[Figure, float] | None:
        """What the round is judged by: the global model on the test set, or personal ones; a loss where it is all."""
        named = [Figure(metric=self.judged_by)] if self.judged_by else []
        order = (*named, HEADLINE, Figure(PERSONAL, OWN_MEAN), Figure(metric="loss"))
        return next(((figure, value) for figure in order if (value := self.value(figure)) is not None), None)

    @property
    def chosen_by(self) -> tuple[Figure, float] | None:
        """The headline figure on the validation data, where there are any."""
        figure = None if self.headline is None else replace(self.headline[0], data=VALIDATION)
        value = None if figure is None else self.value(figure)
        return None if figure is None or value is None else (figure, value)


class Evaluator:
    """Evaluates the models of a run on the test set, where there is one here, and on the clients' own test data.

    A model on clients' data is judged where the clients are. Where their data are parts of the test set that is here,
    one pass over it says the same of a global model; what it would cost to ask them is counted all the same.
    ``validated``: so many rows at the end of the test data are not for testing but for choosing.
    """

    def __init__(
        self,
        federation: Federation | Registered,
        classes: int | None,
        *,
        training: bool = False,
        validated: int = 0,
        measures: Sequence[str] = (),
        headline: str | None = None,
    ) -> None:
        metrics.check(measures, classes)
        self.federation, self.classes, self.validated = federation, classes, validated
        self.measures, self.headline = measures, headline
        self.test = federation.test if isinstance(federation, Federation) else None
        self.trained = len(federation.indices) if training and isinstance(federation, Federation) else 0
        needed = 1 if classes == 2 else classes  # one output can tell two classes apart
        if needed is not None and federation.layout.classes < needed:
            raise InvalidInput(f"the model has {federation.layout.classes} outputs, and the data has {classes} classes")

    def __call__(self, loop: Loop, snapshot: Snapshot) -> Evaluation:
        method, found = loop.method, Evaluation(judged_by=self.headline)
        spent = found.spent
        with one_thread(), torch.no_grad():
            for name, w in method.models(snapshot.server).items():
                if self.test is None:
                    self._asked(found, name, loop, snapshot, range(self.federation.population.size), w)
                    continue
                told = self._whole(found, name, TEST, loop.runtime, w, snapshot.buffers)
                if self.validated:
                    self._whole(found, name, VALIDATION, loop.runtime, w, snapshot.buffers)
                if self.classes is not None and not method.pools_data:
                    scores = _by_client(self.test, told["right"])
                    self._per_client(found, name, scores)
                    spent += _price(w, snapshot.buffers, len(scores))
                if self.measures and not method.pools_data:
                    self._measured_per_client(found, name, told)
                if self.trained:
                    self._whole(found, name, TRAINING, loop.runtime, w, snapshot.buffers)
            if loop.personalises(snapshot):
                self._asked(found, PERSONAL, loop, snapshot, self._sampled())
        return found

    def _whole(
        self, found: Evaluation, name: str, data: str, runtime: Runtime, w: Tensor, buffers: Buffers
    ) -> dict[str, Tensor]:
        """A model on the whole test set, on what is for choosing, or on all training data; what it said of each."""
        assert self.test is not None
        tested = len(self.test.x) - self.validated
        spans = {TEST: (0, tested), VALIDATION: (tested, len(self.test.x)), TRAINING: (0, self.trained)}
        work = score_training if data == TRAINING else score
        asked: tuple[str, ...] = ("outputs",) if self.measures else ()
        asked += ("sure",) if data == TEST and name == GLOBAL and self.classes is not None else ()
        told = _score(partial(work, asked=asked), runtime, w, buffers, *spans[data])
        correct, losses = told["right"], told["losses"]
        found.metrics.append((Figure(name, data, "loss"), float(losses.mean())))
        if self.classes is not None:
            found.metrics.append((Figure(name, data, "accuracy"), float(correct.mean())))
        if self.measures:
            for metric, value in measured(self.measures, told["outputs"], told["targets"], self.classes).items():
                found.metrics.append((Figure(name, data, metric), value))
        if "sure" in asked and self.classes is not None:
            found.counts[kept_as(name, RELIABILITY)] = counts.reliability(told["sure"], correct)
            if self.classes <= counts.MOST_CLASSES:
                found.counts[kept_as(name, CONFUSION)] = counts.confusion(told["guess"], told["y"], self.classes)
        return told

    def _measured_per_client(self, found: Evaluation, name: str, told: Mapping[str, Tensor]) -> None:
        """Each metric on the clients' own test parts, of those whose personal models would be looked at."""
        assert self.test is not None
        for metric in self.measures:
            scores = {}
            for client in self._sampled():
                rows = as_rows(self.test.indices[self.test.offsets[client] : self.test.offsets[client + 1]])
                outputs, y = told["outputs"][rows], told["targets"][rows]
                if metrics.says_something(metric, y, self.classes):
                    scores[client] = measured([metric], outputs, y, self.classes)[metric]
            figure = Figure(name, OWN_MEAN, metric)
            if scores:
                values = np.array(list(scores.values()))
                found.metrics.append((figure, float(values.mean())))
                worst = figure.sign * worst_tenth(figure.sign * values)
                found.metrics.append((replace(figure, data=OWN_WORST), worst))
                found.clients[kept_as(name, metric)] = scores

    def _sampled(self) -> list[int]:
        """The clients whose personal models are looked at."""
        if self.test is None:
            candidates = np.arange(self.federation.population.size)
        else:
            candidates = np.flatnonzero(np.diff(self.test.offsets) > 0)
        if len(candidates) > PERSONAL_LIMIT:
            chosen = rng.sample(rng.key(self.federation.seed, "personal"), len(candidates), PERSONAL_LIMIT)
            candidates = candidates[chosen]
        return [int(client) for client in candidates]

    def _asked(
        self,
        found: Evaluation,
        name: str,
        loop: Loop,
        snapshot: Snapshot,
        clients: Sequence[int],
        model: Tensor | None = None,
    ) -> None:
        """What clients say of a model, or of their own, on their own data. They are asked some at a time: a message
        with a row for each would otherwise need the memory of as many models."""
        scores: dict[int, float] = {}
        spent = found.spent
        size = max(loop.participate, GROUP)
        for begin in range(0, len(clients), size):
            told = loop.judge(snapshot, clients[begin : begin + size], model)
            for part in told.cohort.cost:
                spent += part
            if told.up is None:
                continue
            for client, right, count in zip(told.cohort.ids.tolist(), told.up.right, told.up.count, strict=True):
                if count > 0:
                    scores[client] = float(right) / float(count)
        if self.classes is not None:
            self._per_client(found, name, scores)

    @staticmethod
    def _per_client(found: Evaluation, model: str, scores: dict[int, float]) -> None:
        if not scores:
            return
        values = np.sort(list(scores.values()))
        found.metrics.append((Figure(model, OWN_MEAN, "accuracy"), float(values.mean())))
        found.metrics.append((Figure(model, OWN_WORST, "accuracy"), worst_tenth(values)))
        found.clients[model] = scores


Scoring = Callable[[Federation, Mapping[str, Tensor], tuple[int, int]], dict[str, Tensor]]


def _score(work: Scoring, runtime: Runtime, w: Tensor, buffers: Buffers, first: int, last: int) -> dict[str, Tensor]:
    """For each sample: was it right (classification only), the loss, and what more is asked for. Done where clients
    work."""
    tensors = {"w": w, "floats": buffers.floats, "counts": buffers.counts}
    spans = [(begin, min(begin + JUDGED, last)) for begin in range(first, last, JUDGED)]
    pieces = runtime.map(work, tensors, spans)
    return {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}


def _by_client(test: Rows, correct: Tensor) -> dict[int, float]:
    held = np.flatnonzero(np.diff(test.offsets) > 0)
    sums = np.add.reduceat(correct.cpu().numpy()[test.indices], test.offsets[:-1][held]) if len(held) else np.empty(0)
    return dict(zip(held.tolist(), (sums / np.diff(test.offsets)[held]).tolist(), strict=True))


def _price(w: Tensor, buffers: Buffers, clients: int) -> Spent:
    """The traffic of asking clients to judge a model."""
    down = Candidate(w).nbytes() + (buffers.nbytes() if buffers else 0)
    number = torch.zeros((), dtype=torch.float64)
    return Spent(bytes_up=clients * Judged(number, number, number).nbytes(), bytes_down=clients * down)


def score(
    federation: Federation, tensors: Mapping[str, Tensor], span: tuple[int, int], asked: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The model ``w`` on some of the test samples; runs wherever the runtime says."""
    assert federation.test is not None
    some = slice(*span)
    return _scored(federation, tensors, federation.test.x[some], federation.test.y[some], asked)


def score_training(
    federation: Federation, tensors: Mapping[str, Tensor], span: tuple[int, int], asked: Sequence[str] = ()
) -> dict[str, Tensor]:
    """The model ``w`` on some of the clients' training samples, as they are: without augmentation."""
    rows = as_rows(federation.indices[slice(*span)])
    return _scored(federation, tensors, federation.x[rows], federation.y[rows], asked)


def _scored(
    federation: Federation, tensors: Mapping[str, Tensor], x: Tensor, y: Tensor, asked: Sequence[str]
) -> dict[str, Tensor]:
    replica = _mine.replicas.get(federation)
    if replica is None:
        replica = _mine.replicas[federation] = Replica(federation.module, federation.layout)
        replica.module.eval()
    replica.flat.copy_(tensors["w"])
    if replica.has_buffers:
        replica.set_buffers(Buffers(tensors["floats"], tensors["counts"]))
    outputs = replica.module(x)
    right, losses = eager.told(outputs, federation.loss, y)
    found = {"right": right, "losses": losses}
    if "outputs" in asked:
        found |= {"outputs": outputs, "targets": y}
    if "sure" in asked:
        found |= {"sure": counts.sureness(outputs), "guess": eager.guessed(outputs), "y": y}
    return found


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.replicas: WeakKeyDictionary[Federation, Replica] = WeakKeyDictionary()


_mine = _OfThread()
