"""Did a run learn? What its history says of the end: learnt, fell, stayed at chance, diverged; and since when.

Values only; how it is said is somebody else's. The settings that are likely to be the cause are named, not judged: what
a history does not show (would a smaller one have learnt?) is not known here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import fmean
from typing import Any, Literal, TypeVar

from undrift import algorithms
from undrift.ledger.history import History

State = Literal["learnt", "fell", "chance", "diverged", "unknown"]  # unknown: nothing was evaluated
Judgement = tuple[State, int | None, str]  # state, since, reason
Point = tuple[int, float]  # round and value
T = TypeVar("T")

LAST = 3  # evaluations (or rounds) that make the end of a run: one alone may be noise
KEPT = 2 / 3  # a run whose end keeps less of its best gain has fallen
EXPLODED = 10  # times the loss of a model that knows nothing
MANY = 0.1  # share of the uploads that, not finite, is no accident
EARLY = 10  # rounds: who is at chance after fewer has perhaps only begun


@dataclass(frozen=True)
class Suspect:
    """A setting that is a likely cause, under the name that the command line gives it."""

    setting: str
    value: Any


@dataclass(frozen=True)
class Health:
    """How a run ended. ``value`` and ``best`` are of its headline figure, accuracy or loss."""

    state: State
    since: int | None  # the first round of the stretch up to the end that was so; None where it learnt
    reason: str  # in a few words; empty where it learnt
    value: float
    best: float
    chance: float | None  # accuracy of always naming the most common class; None: not known, or no classes
    rejected: int  # uploads that did not count
    uploads: int  # all that came
    skipped: int  # rounds in which none counted
    suspects: tuple[Suspect, ...] = ()  # the likeliest first

    @property
    def sound(self) -> bool:
        return self.state in ("learnt", "unknown")


def health(history: History) -> Health:
    """What a run's history says of its end."""
    state, since, reason = _judged(history)
    return Health(
        state=state,
        since=since,
        reason=reason,
        value=history.final,
        best=history.best,
        chance=chance_of(history),
        rejected=history.rejected,
        uploads=_uploads(history),
        skipped=history.skipped,
        suspects=_suspects(history, state),
    )


def chance_of(history: History) -> float | None:
    """The share of the most common class: of the test set, or else of the training data, as far as it is recorded."""
    if history.main_curve.metric != "accuracy":
        return None
    if "chance" in history.facts:
        return float(history.facts["chance"])
    rows: Sequence[Sequence[int]] = history.facts.get("histogram") or ()
    held = [sum(column) for column in zip(*rows, strict=True)]
    return max(held) / sum(held) if sum(held) else None


def at_chance(accuracy: float, chance: float) -> bool:
    """Is an accuracy no better than naming one class, within what a test set can tell?"""
    return not accuracy > chance + min(0.02, chance / 2)


def _judged(history: History) -> Judgement:
    lost = _end(history.rounds, lambda row: bool(row.skipped) and row.rejected > 0)
    if lost and len(lost) >= min(LAST, len(history.rounds)):
        return "diverged", lost[0].round, "no upload was finite"
    points = list(zip(*history.curve(), strict=True))
    if not points:
        return "unknown", None, ""
    main = history.main_curve
    losses = list(zip(*history.curve(replace(main, metric="loss")), strict=True))
    if losses and not math.isfinite(losses[-1][1]):
        return "diverged", _since(losses, lambda loss: not math.isfinite(loss)), "the loss is not finite"
    return (
        _by_loss(points) if main.better == "lower" else _by_accuracy(history, points, losses[-1][1] if losses else 0.0)
    )


def _by_loss(points: Sequence[Point]) -> Judgement:
    """Of a regression, whose chance nobody knows: compared with its first evaluation."""
    values = [value for _, value in points]
    first, end = values[0], fmean(values[-LAST:])
    if values[-1] > EXPLODED * first:
        return "diverged", _since(points, lambda loss: loss > EXPLODED * first), "the loss grew"
    if min(values) < first / 2 and end > first:
        return "fell", _since(points, lambda loss: loss > first), "the loss rose again"
    return "learnt", None, ""


def _by_accuracy(history: History, points: Sequence[Point], loss: float) -> Judgement:
    chance = chance_of(history)
    values = [value for _, value in points]
    level = chance or 0.0
    lowest = level + KEPT * (history.best - level)
    stuck = chance is not None and at_chance(values[-1], chance)
    end = values[max(values.index(max(values)), len(values) - LAST) :]  # what came before the best was on the way up
    if not stuck and fmean(end) >= lowest:
        return "learnt", None, ""
    since = _since(points, lambda value: at_chance(value, level) if stuck else value < lowest)
    if chance and loss > EXPLODED * max(1.0, math.log(1 / chance)):
        return "diverged", since, "the loss grew"
    if history.rejected > MANY * _uploads(history):
        return "diverged", since, "uploads were not finite"
    if not stuck or history.best > 2 * level:
        return "fell", since, "it had been better"
    return "chance", since, "no better than naming one class"


def _suspects(history: History, state: State) -> tuple[Suspect, ...]:
    """What to look at first: the method's own step sizes, then the learning rate."""
    if state in ("learnt", "unknown"):
        return ()
    given = dict(history.experiment.get("algorithm", {}))
    method = algorithms.algorithms().get(str(given.get("name", "")))
    settings = {} if method is None else {s.name: given.get(s.name, s.default) for s in method.settings()}
    own = [Suspect(name, settings[name]) for name in (method.steep if method else ()) if settings[name]]
    rate = history.facts.get("training", {}).get("lr")
    lr = [] if rate is None else [Suspect("lr", rate)]
    if state == "chance" and len(history.rounds) < EARLY:
        return (Suspect("rounds", len(history.rounds)), *own, *lr)
    return (*own, *lr)


def _uploads(history: History) -> int:
    return sum(row.participants + row.rejected for row in history.rounds)


def _end(rows: Sequence[T], holds: Callable[[T], Any]) -> list[T]:
    """The last of the rows, as far back as something holds for all of them."""
    return list(takewhile(holds, reversed(rows)))[::-1]


def _since(points: Sequence[Point], holds: Callable[[float], bool]) -> int:
    found = _end(points, lambda point: holds(point[1]))
    return (found or points[-1:])[0][0]
