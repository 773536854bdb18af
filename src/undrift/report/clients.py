"""The clients by name: who holds what, and how each of them fares. Values ready for JSON; draws nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from undrift.core.figure import GLOBAL, HEADLINE, Figure, worst_tenth
from undrift.data import Partition, heterogeneity
from undrift.ledger.history import History
from undrift.ledger.rows import Run
from undrift.report import sentences
from undrift.report.numbers import short

Scores = Mapping[str, tuple[int, Mapping[int, float]]]  # model -> (round, client -> accuracy)
SHOWN = 100  # columns of a partition picture, and half the points of a fairness strip
LOWEST = 5  # clients that are named as those that fare worst


def client_names(facts: dict[str, Any], clients: Sequence[int]) -> list[str]:
    """What the clients are called in the data; their numbers where the data do not say."""
    known = facts.get("client_names") or []
    return [known[i] if i < len(known) else str(i) for i in clients]


def class_names(facts: dict[str, Any], classes: int) -> list[str]:
    known = facts.get("class_names") or []
    return [known[k] if k < len(known) else str(k) for k in range(classes)]


def holdings(history: History) -> dict[str, Any]:
    """Who holds how many samples of which class, of at most ``SHOWN`` clients."""
    histogram = np.array(history.facts["histogram"], np.int64)
    clients, classes = histogram.shape
    shown = np.unique(np.linspace(0, clients - 1, min(clients, SHOWN)).round().astype(np.int64))
    return {
        "seed": history.seed,
        "title": f"{history.facts.get('data', '')}, {sentences.partition(history)}, seed {history.seed}",
        "clients": clients,
        "shown": client_names(history.facts, shown.tolist()),
        "classes": class_names(history.facts, classes),
        "counts": histogram[shown].tolist(),
        "figures": _heterogeneity(histogram),
    }


def _heterogeneity(histogram: np.ndarray[Any, Any]) -> list[list[str]]:
    """The figures of a partition, from its counts alone."""
    clients, classes = histogram.shape
    labels = np.tile(np.arange(classes), clients).repeat(histogram.reshape(-1))
    offsets = np.concatenate([[0], np.cumsum(histogram.sum(axis=1))])
    found = heterogeneity(Partition(np.arange(len(labels)), offsets), labels, classes)
    return [
        ["samples per client", f"{found.smallest} to {found.largest}, median {found.median:g}"],
        ["class entropy of a client", f"{found.entropy:.2f} of {found.entropy_global:.2f} bits"],
        ["divergence between two clients", f"{found.divergence:.2f} (0 same, 1 disjoint)"],
        ["distance to the whole", f"{found.distance:.2f} (share of samples to move)"],
    ]


@dataclass(frozen=True)
class Fared:
    """How the clients fared on their own test parts under one model, at the latest evaluation."""

    model: str
    metric: str
    round: int
    scores: dict[str, list[float]]  # by the client's name; several where several seeds know it by that name

    @property
    def values(self) -> np.ndarray[Any, Any]:
        found = np.sort(np.array([v for values in self.scores.values() for v in values], np.float64))
        return found[np.isfinite(found)]

    def lowest(self, count: int = LOWEST) -> list[tuple[str, float]]:
        """The clients that fare worst, worst first."""
        means = [(name, float(np.mean(values))) for name, values in self.scores.items() if np.isfinite(values).all()]
        return sorted(means, key=lambda pair: (pair[1], pair[0]))[:count]


def fared(runs: Sequence[tuple[Run, Scores]]) -> list[Fared]:
    """The runs of one method put together, the global model first: by every share of which more is better."""
    found: dict[str, Fared] = {}
    for run, scores in runs:
        for name, (at, values) in sorted(scores.items(), key=_global_first):
            model, _, metric = name.partition(": ")
            if not Figure(metric=metric or HEADLINE.metric).rises:
                continue
            one = found.setdefault(name, Fared(model, metric or HEADLINE.metric, at, {}))
            for client, value in values.items():
                one.scores.setdefault(_called(run, client, len(runs) > 1), []).append(value)
    return [one for one in found.values() if len(one.values)]


def _called(run: Run, client: int, several: bool) -> str:
    """A name of the data means the same client under every seed; a mere number does not."""
    known = run.facts.get("client_names") or []
    if client < len(known):
        return str(known[client])
    return f"client {client}" + (f" of seed {run.experiment.get('seed', 0)}" if several else "")


def fairness(groups: Sequence[tuple[str, Sequence[tuple[Run, Scores]]]]) -> list[dict[str, Any]]:
    """How the clients fare, all seeds of a group together."""
    found = []
    for place, (label, runs) in enumerate(groups):
        for one in fared(runs):
            values = one.values
            shown = values[np.unique(np.linspace(0, len(values) - 1, min(len(values), 2 * SHOWN)).astype(int))]
            found.append(
                {
                    "group": place,
                    "label": _titled(label, one),
                    "metric": one.metric.replace("_", " "),
                    "round": one.round,
                    "clients": len(values),
                    "mean": short(float(values.mean())),
                    "sd": short(float(values.std())),
                    "worst": short(worst_tenth(values)),
                    "quantiles": [short(float(q)) for q in np.quantile(values, [0, 0.25, 0.5, 0.75, 1])],
                    "values": [round(float(v), 4) for v in shown],
                    "lowest": [[name, short(value)] for name, value in one.lowest()],
                }
            )
    return found


def _titled(label: str, one: Fared) -> str:
    whose = "" if one.model == GLOBAL else f", {one.model} models"
    return label + whose + ("" if one.metric == HEADLINE.metric else f", {one.metric.replace('_', ' ')}")


def _global_first(item: tuple[str, Any]) -> tuple[bool, str]:
    return item[0] != GLOBAL, item[0]
