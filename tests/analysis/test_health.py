"""What a run's history says of its end: learnt, fell, at chance, diverged."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

import undrift
from undrift.algorithms import algorithms
from undrift.analysis.health import Suspect, at_chance, health
from undrift.core.figure import Figure
from undrift.core.training import Training
from undrift.ledger.history import History
from undrift.ledger.rows import RoundRow


def history(
    accuracies: Sequence[float],
    losses: Sequence[float | None] | None = None,
    *,
    rejected: Sequence[int] | None = None,
    facts: dict[str, Any] | None = None,
    method: dict[str, Any] | None = None,
    metric: str = "accuracy",
) -> History:
    """One evaluated round per accuracy; four uploads a round, of which so many were rejected."""
    n = len(accuracies)
    lost = rejected or [0] * n
    rows = [RoundRow(t, participants=4 - bad, rejected=bad, skipped=int(bad == 4)) for t, bad in enumerate(lost, 1)]
    metrics: list[tuple[int, Figure, float | None]] = []
    for t, (accuracy, loss) in enumerate(zip(accuracies, losses or [1.0] * n, strict=True), 1):
        metrics.append((t, Figure(metric="loss"), accuracy if metric == "loss" else loss))
        if metric == "accuracy":
            metrics.append((t, Figure(), accuracy))
    known = {"chance": 0.1, "training": {"lr": 0.1}} if facts is None else facts
    return History("x", 1, rows, metrics, n, facts=known, experiment={"algorithm": method or {"name": "fedavg"}})


def test_a_run_that_ends_near_its_best_has_learnt() -> None:
    found = health(history([0.2, 0.5, 0.8, 0.75, 0.82]))
    assert (found.state, found.since, found.reason, found.suspects) == ("learnt", None, "", ())
    assert found.sound
    assert (found.value, found.best, found.chance) == (0.82, 0.82, 0.1)


def test_one_bad_evaluation_at_the_end_is_noise() -> None:
    assert health(history([0.2, 0.5, 0.8, 0.8, 0.8, 0.4])).state == "learnt"


def test_a_run_that_is_still_rising_has_not_fallen() -> None:
    assert health(history([0.15, 0.43, 0.69])).state == "learnt"


def test_a_run_that_loses_its_gain_fell() -> None:
    found = health(history([0.2, 0.5, 0.9, 0.9, 0.6, 0.5, 0.55]))
    assert (found.state, found.since) == ("fell", 5)
    assert found.suspects == (Suspect("lr", 0.1),)


def test_back_to_chance_is_a_fall_too() -> None:
    found = health(history([0.5, 0.9, 0.1, 0.1]))
    assert (found.state, found.since) == ("fell", 3)


def test_a_run_that_never_left_chance_says_since_when() -> None:
    found = health(history([0.1, 0.11, 0.1135, 0.1] * 3))
    assert (found.state, found.since, found.sound) == ("chance", 1, False)
    assert found.suspects == (Suspect("lr", 0.1),)


def test_after_a_few_rounds_it_has_perhaps_only_begun() -> None:
    assert health(history([0.1, 0.1])).suspects == (Suspect("rounds", 2), Suspect("lr", 0.1))


def test_a_loss_that_explodes_at_chance_is_divergence() -> None:
    found = health(history([0.3, 0.1, 0.1], [2.0, 1e5, 1e11]))
    assert (found.state, found.since, found.reason) == ("diverged", 2, "the loss grew")


def test_a_large_loss_with_a_good_accuracy_is_none() -> None:
    assert health(history([0.8, 0.9, 0.9], [2.0, 30.0, 40.0])).state == "learnt"


def test_a_loss_that_is_not_a_number_is_divergence() -> None:
    found = health(history([0.3, 0.1, 0.1], [2.0, None, None]))
    assert (found.state, found.since) == ("diverged", 2)


def test_rounds_in_which_no_upload_counts_are_divergence_however_good_the_model_was() -> None:
    found = health(history([0.8, 0.9, 0.9, 0.9, 0.9], rejected=[0, 0, 4, 4, 4]))
    assert (found.state, found.since, found.reason) == ("diverged", 3, "no upload was finite")
    assert (found.rejected, found.uploads, found.skipped) == (12, 20, 3)


def test_one_lost_round_is_an_accident() -> None:
    assert health(history([0.8, 0.9, 0.9, 0.9, 0.9], rejected=[0, 0, 0, 0, 4])).state == "learnt"


def test_many_rejected_uploads_at_chance_are_divergence() -> None:
    assert health(history([0.1] * 5, rejected=[2] * 5)).state == "diverged"


@pytest.mark.parametrize(
    ("losses", "state", "since"),
    [
        ([4.0, 2.0, 1.0, 1.5], "learnt", None),
        ([4.0, 50.0, 60.0], "diverged", 2),
        ([4.0, 1.0, 1.0, 6.0, 7.0, 8.0], "fell", 4),
        ([4.0, 3.9, 4.1], "learnt", None),  # what chance is nobody knows without classes
    ],
)
def test_a_regression_is_judged_by_its_loss(losses: list[float], state: str, since: int | None) -> None:
    found = health(history(losses, metric="loss"))
    assert (found.state, found.since, found.chance) == (state, since, None)


def test_without_an_evaluation_nothing_is_known() -> None:
    found = health(History("x", 1, [], [], 5))
    assert found.state == "unknown"
    assert math.isnan(found.value)


def test_chance_falls_back_on_the_training_data() -> None:
    facts = {"histogram": [[30, 10], [30, 30]]}
    assert health(history([0.6], facts=facts)).chance == 0.6
    assert health(history([0.6], facts={})).chance is None
    assert health(history([0.05] * 3, facts={})).state == "learnt"  # chance is not known: no claim


@pytest.mark.parametrize(
    ("accuracy", "chance", "expected"),
    [(0.13, 0.1135, True), (0.14, 0.1135, False), (0.014, 0.01, True), (0.05, 0.01, False), (0.9, 0.9, True),
     (0.03, 0.1, True), (math.nan, 0.1, True)],
)  # fmt: skip
def test_the_margin_of_chance_shrinks_with_it(accuracy: float, chance: float, expected: bool) -> None:
    assert at_chance(accuracy, chance) is expected


def test_the_methods_own_step_sizes_are_suspected_first() -> None:
    found = health(history([0.1] * 20, method={"name": "fedprox", "mu": 3.0}))
    assert found.suspects == (Suspect("mu", 3.0), Suspect("lr", 0.1))


def test_methods_name_settings_of_their_own() -> None:
    for cls in algorithms().values():
        assert set(cls.steep) <= {s.name for s in cls.settings()}, cls


@pytest.mark.parametrize(("lr", "state"), [(1e6, "diverged"), (1e-9, "chance"), (0.1, "learnt")])
def test_real_runs(lr: float, state: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = undrift.run("fedavg", data="digits", clients=5, rounds=4, seed=2, training=Training(lr=lr))
    found = health(result.history)
    assert found.state == state
    assert found.chance == pytest.approx(0.1, abs=0.02)
