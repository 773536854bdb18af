"""What a global model takes for what, and how sure it is against how often it is right: the counts of a page.

The seeds of a method are added up. Values ready for JSON; draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from undrift.core.figure import CONFUSION, GLOBAL, RELIABILITY, kept_as
from undrift.ledger.rows import Run
from undrift.report.clients import Scores, class_names

Groups = Sequence[tuple[str, Sequence[tuple[Run, Scores]]]]


def _added(runs: Sequence[tuple[Run, Scores]], kind: str) -> tuple[int, dict[int, float]]:
    """The counts of some runs together, and the latest round that they are of."""
    parts = [scores[kept_as(GLOBAL, kind)] for _, scores in runs if kept_as(GLOBAL, kind) in scores]
    total: dict[int, float] = {}
    for _, counts in parts:
        for place, count in counts.items():
            total[place] = total.get(place, 0.0) + count
    return max((at for at, _ in parts), default=0), total


def confusions(groups: Groups) -> list[dict[str, Any]]:
    """Per method: how many samples of each class are taken for each class."""
    found = []
    for place, (label, runs) in enumerate(groups):
        at, total = _added(runs, CONFUSION)
        classes = _classes(runs)
        if not total or not classes or max(total) >= classes**2:
            continue
        counts = np.zeros(classes**2, np.int64)
        counts[list(total)] = list(total.values())
        rows = counts.reshape(classes, classes).tolist()
        names = class_names(runs[0][0].facts, classes)
        found.append({"group": place, "label": label, "round": at, "classes": names, "counts": rows})
    return found


def _classes(runs: Sequence[tuple[Run, Scores]]) -> int:
    """How many classes the data of some runs have, if they agree."""
    known = {int(run.facts["classes"]) for run, _ in runs if run.facts.get("classes")}
    return known.pop() if len(known) == 1 else 0


def reliabilities(groups: Groups) -> list[dict[str, Any]]:
    """Per method: for each bin of confidence the samples, their mean confidence and the share that is right."""
    found = []
    for place, (label, runs) in enumerate(groups):
        at, total = _added(runs, RELIABILITY)
        bins = []
        for bin in sorted({place // 3 for place in total}):
            count, sure, right = (total.get(3 * bin + i, 0.0) for i in range(3))
            if count:
                bins.append([int(count), round(sure / count, 4), round(right / count, 4)])
        if bins:
            samples = sum(count for count, _, _ in bins)
            error = sum(count * abs(sure - right) for count, sure, right in bins) / samples
            found.append({"group": place, "label": label, "round": at, "bins": bins, "error": round(error, 4)})
    return found
