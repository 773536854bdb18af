"""``Figure``: what a number of an evaluation is a number of. Which model, on which data, by which metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

GLOBAL, PERSONAL = "global", "personal"
TEST, OWN_MEAN, OWN_WORST = "test", "own test (mean)", "own test (worst decile)"
TRAINING, VALIDATION = "training", "validation"


@dataclass(frozen=True, order=True)
class Figure:
    """The label of a number: a value, so that nobody has to make a text of it and parse it again."""

    model: str = GLOBAL  # global, personal, or a name that the method gives
    data: str = TEST  # the common test set, the clients' own parts of it (mean, worst tenth), all their training data
    metric: str = "accuracy"

    @property
    def better(self) -> Literal["higher", "lower"]:
        return "lower" if self.metric in _LOWER else "higher"

    @property
    def share(self) -> bool:
        """Is it a part of 1, to be shown in percent?"""
        return self.metric in _SHARES

    @property
    def rises(self) -> bool:
        """Is it a share of which more is better, so that a target can be chosen for whoever names none?"""
        return self.share and self.better == "higher"

    @property
    def sign(self) -> int:
        """1 where more is better, -1 where less is."""
        return -1 if self.better == "lower" else 1

    @property
    def range(self) -> str:
        """What a target of it may be, in words."""
        return "a share in (0, 1], for example 0.9 for 90 %" if self.share else "a number that is finite"

    def allows(self, target: float) -> bool:
        """May a target be that?"""
        return 0 < target <= 1 if self.share else math.isfinite(target)

    @property
    def place(self) -> str:
        """The data as people say it."""
        return _PLACES.get(self.data, self.data)

    @property
    def words(self) -> str:
        """As people say it."""
        return f"{self.metric.replace('_', ' ')} of the {self.model} model on {self.place}"

    def meets(self, value: float, target: float) -> bool:
        """Is it as good as the target?"""
        return value <= target if self.better == "lower" else value >= target

    def improves(self, value: float, on: float) -> bool:
        return value > on if self.better == "higher" else value < on


_PLACES = {
    TEST: "the test set",
    OWN_MEAN: "clients' own test data",
    OWN_WORST: "the worst tenth of the clients",
    VALIDATION: "the validation data",
    TRAINING: "all clients' training data",
}
OF_CLASSES = ("balanced_accuracy", "f1", "auroc", "average_precision", "calibration_error", "perplexity")
OF_NUMBERS = ("rmse", "mae", "r2")
METRICS = ("accuracy", "loss", *OF_CLASSES, *OF_NUMBERS)  # the first two are always there
_SHARES = {"accuracy", "balanced_accuracy", "f1", "auroc", "average_precision", "calibration_error"}
_LOWER = {"loss", "calibration_error", "perplexity", "rmse", "mae"}

HEADLINE = Figure()


def worst_tenth(values: NDArray[np.float64]) -> float:
    """The mean of the lowest tenth of some clients' shares, at least one of them."""
    ordered = np.sort(values)
    return float(ordered[: max(1, len(ordered) // 10)].mean())
