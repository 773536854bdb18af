"""Runs that differ only in their seed, put together: mean curves over seeds and the cumulative costs beside them.

Runs on other data, another partition or other training settings never fall into one group, whatever their labels say.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from undrift import algorithms
from undrift.analysis.intervals import Floats
from undrift.core.figure import Figure
from undrift.ledger.history import COSTS, History

Kind = Literal[
    "repeated",  # the runs repeat a seed of another run of the group
    "not begun",  # no evaluated round yet
    "left out",  # unfinished, where finished ones are there
    "unfinished",  # the figures are of the rounds so far
    "scenes",  # on different data or partitions
    "lengths",  # different numbers of rounds
    "gaps",  # evaluations that gave no number
    "other figure",  # judged by another figure than the baseline
    "no classes",  # a loss, no accuracy
]


@dataclass(frozen=True)
class Remark:
    """What a reader must know about some runs; put into words by whoever shows it."""

    kind: Kind
    label: str = ""
    runs: tuple[History, ...] = ()
    numbers: tuple[int, ...] = ()


# What may differ between the runs of one group: it changes how a run is made or watched, not what it computes.
_IGNORED = {
    "seed",
    "name",
    "runtime",
    "workers",
    "target",
    "eval_every",
    "eval_training",
    "limit",
    "rounds",
    "own",
    "public",
    "scoring",
}


@dataclass(frozen=True)
class Group:
    """The runs of one method in one setting, one per seed, in the order of the seeds."""

    label: str
    scene: str  # the data and their partition: only groups of one scene are compared by ratios
    runs: tuple[History, ...]
    unfinished: tuple[History, ...] = ()  # left out of the figures because finished runs are there

    @property
    def name(self) -> str:
        """The method's name on the command line."""
        return str(self.runs[0].experiment.get("algorithm", {}).get("name", ""))

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.seed for run in self.runs)

    @cached_property
    def figure(self) -> Figure:
        """Which figure the group is judged by."""
        return self.runs[0].main_curve

    @cached_property
    def pools_data(self) -> bool:
        """Is this training on everybody's data in one place, whose costs are of another kind?"""
        method = algorithms.algorithms().get(self.name)
        return method is not None and method.pools_data

    @cached_property
    def at(self) -> NDArray[np.int64]:
        """The rounds at which every run of the group was evaluated."""
        first, *rest = self._curves
        return np.array(sorted(set(first).intersection(*rest)), np.int64)

    @cached_property
    def _curves(self) -> list[dict[int, float]]:
        return [dict(zip(*run.curve(), strict=True)) for run in self.runs]

    @cached_property
    def values(self) -> Floats:
        """The headline figure, one row per run, at the rounds ``at``."""
        at = self.at.tolist()
        return np.array([[curve[r] for r in at] for curve in self._curves], np.float64).reshape(len(self.runs), len(at))

    def costs(self, column: str) -> Floats:
        """The cumulative cost of each run at the rounds ``at``."""
        if column not in self._costs:
            self._costs[column] = self._added_up(column)
        return self._costs[column]

    @cached_property
    def _costs(self) -> dict[str, Floats]:
        return {}

    def _added_up(self, column: str) -> Floats:
        if column == "rounds":
            return np.tile(self.at.astype(np.float64), (len(self.runs), 1))
        rows = []
        for run in self.runs:
            totals = dict(zip((row.round for row in run.rounds), run.cumulative(column).tolist(), strict=True))
            rows.append([totals[r] for r in self.at.tolist()])
        return np.array(rows, np.float64).reshape(len(self.runs), len(self.at))

    @cached_property
    def per_round(self) -> dict[str, float]:
        """The mean cost of a round."""
        played = sum(len(run.rounds) for run in self.runs)
        return {c: sum(run.total(c) for run in self.runs) / played if played else math.nan for c in COSTS}

    @cached_property
    def rounds(self) -> int:
        """How many rounds all runs of the group have behind them."""
        return min((len(run.rounds) and run.rounds[-1].round for run in self.runs), default=0)


def grouped(histories: Sequence[History]) -> tuple[list[Group], list[Remark]]:
    """The groups in the order of first appearance, and what was left out or told apart."""
    sorts: dict[str, list[History]] = {}
    for history in histories:
        sorts.setdefault(json.dumps(_sort(history), sort_keys=True), []).append(history)
    labels = _labels([replace(runs[0], label=_common([run.label for run in runs])) for runs in sorts.values()])
    groups: list[Group] = []
    remarks: list[Remark] = []
    for label, runs in zip(labels, sorts.values(), strict=True):
        group, said = _group(label, runs)
        groups += [group] if group else []
        remarks += said
    if len({group.scene for group in groups}) > 1:
        remarks.append(Remark("scenes"))
    lengths = sorted({group.rounds for group in groups if not any(r.status != "finished" for r in group.runs)})
    if len(lengths) > 1:
        remarks.append(Remark("lengths", numbers=tuple(lengths)))
    for group in groups:
        for run in group.runs:
            values = run.curve()[1]
            bad = sum(math.isnan(v) for v in values)
            if bad:
                remarks.append(Remark("gaps", group.label, (run,), (bad, len(values))))
    return groups, remarks


def _group(label: str, runs: Sequence[History]) -> tuple[Group | None, list[Remark]]:
    """The runs of one sort: one per seed, the finished ones where there are any."""
    remarks: list[Remark] = []
    chosen: dict[int, History] = {}
    for run in runs:
        old = chosen.get(run.seed)
        if old is None or len(run.rounds) >= len(old.rounds):
            chosen[run.seed] = run
        if old is not None:
            remarks.append(Remark("repeated", label, (old if chosen[run.seed] is run else run,)))
    members = [chosen[seed] for seed in sorted(chosen)]
    remarks += [Remark("not begun", label, (run,)) for run in members if not run.curve()[0]]
    begun = [run for run in members if run.curve()[0]]
    done = tuple(run for run in begun if run.status == "finished")
    rest = tuple(run for run in begun if run.status != "finished")
    if rest:
        remarks.append(Remark("left out" if done else "unfinished", label, rest))
    return (Group(label, _scene(runs[0]), done or rest, rest if done else ()) if begun else None), remarks


def _flat(experiment: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in experiment.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        elif key not in _IGNORED:
            flat[key] = value
    return flat


def _sort(history: History) -> dict[str, Any]:
    """All that must be equal for two runs to be repetitions of one another."""
    return {
        **_flat(history.experiment),
        "label": None if "algorithm" in history.experiment else history.label,  # which has what a seed derived
        "data fingerprint": history.facts.get("data_fingerprint"),
        "parameters": history.facts.get("parameters"),
        "curve": vars(history.main_curve) if history.metrics else None,
    }


def _common(labels: Sequence[str]) -> str:
    """The label of repetitions: a number that each seed derived for itself becomes a range."""
    pieces = [re.split(r"(\d[\w.+-]*)", label) for label in dict.fromkeys(labels)]
    if len(pieces) == 1 or len({len(parts) for parts in pieces}) > 1:
        return labels[0]
    columns = (list(dict.fromkeys(column)) for column in zip(*pieces, strict=True))
    return "".join(c[0] if len(c) == 1 else f"{min(c, key=float)}..{max(c, key=float)}" for c in columns)


def _scene(history: History) -> str:
    experiment, facts = history.experiment, history.facts
    known = (facts.get("data_fingerprint"), experiment.get("partition"), facts.get("clients"))
    return json.dumps(known, sort_keys=True)


def _labels(firsts: Sequence[History]) -> list[str]:
    """The labels, with what tells them apart added where two groups have the same one."""
    labels = [history.label for history in firsts]
    for label in {x for x in labels if labels.count(x) > 1}:
        places = [i for i, x in enumerate(labels) if x == label]
        sorts = [_sort(firsts[i]) for i in places]
        keys = _telling(sorts)
        for i, sort in zip(places, sorts, strict=True):
            inner = [_told(k.removeprefix("train.").removesuffix(".name"), sort.get(k)) for k in keys]
            labels[i] = f"{label} [{', '.join(inner)}]" if inner else label
    seen: dict[str, int] = {}
    for i, label in enumerate(labels):  # still alike, for example where only the curve differs
        seen[label] = seen.get(label, 0) + 1
        labels[i] = label if seen[label] == 1 else f"{label} #{seen[label]}"
    return labels


def _told(key: str, value: Any) -> str:
    """A setting in a label: ``lr=0.1``, ``nesterov``, ``no nesterov``, ``clients by default``."""
    if value is None:
        return f"{key} by default"
    return f"{'' if value else 'no '}{key}" if isinstance(value, bool) else f"{key}={value}"


def _telling(sorts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Few settings that tell the sorts apart: again and again the one that tells most, named ones before hashes."""
    keys = sorted({k for s in sorts for k in s if k not in ("label", "curve")})
    hashes = ("data fingerprint", "parameters")

    def apart(chosen: Sequence[str]) -> int:
        return len({json.dumps([s.get(k) for k in chosen], sort_keys=True) for s in sorts})

    chosen: list[str] = []
    while keys:
        best = max(keys, key=lambda k: (apart([*chosen, k]), k not in hashes, -len(k)))
        if apart([*chosen, best]) == apart(chosen):
            break
        chosen.append(best)
    return chosen


def restricted(group: Group, seeds: Sequence[int]) -> Group:
    """The same group with some of its seeds, in that order."""
    by_seed = {run.seed: run for run in group.runs}
    return replace(group, runs=tuple(by_seed[seed] for seed in seeds))
