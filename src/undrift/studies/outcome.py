"""What a sweep found: how each trial did, the best setting of each method, and what is fair to compare."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from undrift.analysis.groups import grouped
from undrift.analysis.health import health
from undrift.analysis.intervals import Spread
from undrift.core.figure import HEADLINE, Figure
from undrift.core.named import short
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.studies.jobs import Done
from undrift.studies.scene import ASSUMED
from undrift.studies.shown import Shown

if TYPE_CHECKING:
    from undrift.studies.sweep import Sweep

Measure = Literal["final", "best", "rounds"]
Point = dict[str, Any]  # key -> value, in the order of the keys


@dataclass(frozen=True)
class Trial:
    """A method with one choice of the varied settings."""

    method: str  # as it was written, with the settings that are fixed
    point: Point
    values: dict[str, Any]  # the experiment, without seed and name

    @property
    def tag(self) -> str:
        return ":".join([self.method, *(f"{k}={short(v)}" for k, v in self.point.items())])


@dataclass(frozen=True)
class Score:
    """How a trial did."""

    trial: Trial
    figure: Spread  # accuracy, or rounds to the target
    value: float  # what trials are ranked by: larger is better; -inf where it failed
    failed: tuple[str, ...] = ()
    diverged: bool = False
    tested: Spread | None = None  # the same on the test set, where the validation data chose
    what: Figure = HEADLINE  # on the test set

    @property
    def setting(self) -> str:
        return ", ".join(f"{k}={short(v)}" for k, v in self.trial.point.items()) or "(nothing varied)"


@dataclass(frozen=True, repr=False)
class Outcome(Shown):
    """All trials, best first in each method, and what each method reaches with an equal number of trials."""

    sweep: Sweep
    scores: dict[str, list[Score]]  # by method, as it was written
    histories: list[History] = field(default_factory=list)
    failed: tuple[Done, ...] = ()  # the runs that could not be made, and why

    @property
    def budget(self) -> int:
        """The number of trials that every method had."""
        return min(len(scores) for scores in self.scores.values())

    @property
    def best(self) -> dict[str, Score]:
        """The best trial of each method."""
        return {method: scores[0] for method, scores in self.scores.items()}

    @property
    def unwell(self) -> list[str]:
        """The methods of which no trial learnt."""
        return [method for method, scores in self.scores.items() if all(s.failed or s.diverged for s in scores)]

    def expected(self, method: str) -> float:
        """The best of as many trials as the method with the fewest had, expected over which of them those are."""
        known = [score.value for score in self.scores[method] if math.isfinite(score.value)]
        if not known:
            return -math.inf
        worst = 0.0 if max(known) > 0 else min(known)  # what failed counts as nothing, or as the worst that did not
        values = sorted(max(score.value, worst) for score in self.scores[method])
        k, m = len(values), self.budget
        return sum(v * math.comb(i, m - 1) for i, v in enumerate(values)) / math.comb(k, m)

    def records(self) -> list[dict[str, Any]]:
        """One record per trial, numbers only."""
        return [
            {
                "method": method,
                **score.trial.point,
                "mean": score.figure.mean,
                "sd": score.figure.sd,
                "seeds": len(score.figure.values),
                **({} if score.tested is None else {"test_mean": score.tested.mean, "test_sd": score.tested.sd}),
                "rank": rank,
                "failed": "; ".join(score.failed),
                "diverged": score.diverged,
            }
            for method, scores in self.scores.items()
            for rank, score in enumerate(scores, 1)
        ]

    def lines(self) -> tuple[list[list[str]], list[str]]:
        by = self._title
        chosen = any(score.tested for scores in self.scores.values() for score in scores)
        by = f"{by} on the validation data" if chosen else by
        more = ["on the test set"] if chosen else []
        table = [["method", "trials", "failed", "best setting", by, *more, f"expected best of {self.budget}"]]
        for method, scores in sorted(self.scores.items(), key=lambda item: -item[1][0].value):
            failed = sum(bool(score.failed) for score in scores)
            cells = [str(len(scores)), str(failed), scores[0].setting, self.words(scores[0])]
            tested = [self._tested(scores[0])] if chosen else []
            table.append([method, *cells, *tested, self._expected(method)])
        sentences = ["Settings are chosen by the test set here; the winner's figure flatters it a little."]
        if chosen:
            by_test = [method for method, scores in self.scores.items() if not any(score.tested for score in scores)]
            other = f", but for {', '.join(by_test)}: by the test figures" if by_test else ""
            sentences = [f"Settings are chosen by the validation data; the test set had no say in it{other}."]
            sentences += [ASSUMED] if self.sweep.assumed else []
        if len({len(scores) for scores in self.scores.values()}) > 1:
            sentences.insert(
                0,
                f"The methods had different numbers of trials: the last column compares them at {self.budget} each.",
            )
        return table, sentences

    @property
    def _title(self) -> str:
        """What trials are ranked by."""
        named = [score.what.metric for scores in self.scores.values() for score in scores if not score.failed]
        metric = (named or [HEADLINE.metric])[0].replace("_", " ")
        return "rounds to target" if self.sweep.measure == "rounds" else f"{self.sweep.measure} {metric}"

    def words(self, score: Score) -> str:
        """A score as text."""
        from undrift.report import words

        if score.failed:
            return "failed"
        if score.diverged:
            return "diverged"
        if not math.isfinite(score.value):
            return "not reached" if self.sweep.measure == "rounds" else "not a number"
        if self.sweep.measure == "rounds":
            return words.rounds(score.figure.mean)
        return words.spread(score.what, score.figure.mean, score.figure.sd)

    def _tested(self, score: Score) -> str:
        from undrift.report import words

        spread = score.tested
        if spread is None:
            return "–"
        return words.spread(score.what, spread.mean, spread.sd)

    def _expected(self, method: str) -> str:
        from undrift.report import words

        expected = self.expected(method)
        if not math.isfinite(expected):
            return "–"
        if self.sweep.measure == "rounds":
            return words.rounds(-expected)
        what = self.scores[method][0].what
        return words.figure(what, -expected if what.better == "lower" else expected)


def outcome(sweep: Sweep, trials: Sequence[Trial], ledger: Path, failed: Sequence[Done] = ()) -> Outcome:
    """Rank trials by what the ledger holds of them."""
    errors = {done.name: done.error for done in failed}
    scores: dict[str, list[Score]] = {method: [] for method in sweep.tags}
    every = []
    with Ledger(ledger) as book:
        runs = {run.name: run for run in book.runs()}
        for trial in {t.tag: t for t in trials}.values():
            names = [item.name for item in sweep.runs(trial)]
            why = tuple(f"{n}: {errors[n]}" for n in names if n in errors)
            histories = [History.of(book, runs[n]) for n in names if n in runs and n not in errors]
            every += histories
            scores[trial.method].append(_score(sweep, trial, histories, why))
    for ranked in scores.values():
        ranked.sort(key=lambda score: -score.value)
    return Outcome(sweep, scores, every, tuple(failed))


def _score(sweep: Sweep, trial: Trial, histories: Sequence[History], failed: tuple[str, ...]) -> Score:
    groups, _ = grouped(histories)
    if failed or not groups:
        return Score(trial, Spread.of([]), -math.inf, failed or ("no round was evaluated",))
    if any(health(run).state == "diverged" for run in groups[0].runs):
        return Score(trial, Spread.of([run.final for run in groups[0].runs]), -math.inf, diverged=True)
    what = groups[0].figure
    if sweep.measure == "rounds":
        assert sweep.target is not None
        hit, tested = _rounds_to(sweep.target, groups[0].runs)
        return Score(trial, hit, -hit.mean if hit.values else -math.inf, tested=tested, what=what)
    figure, tested = _figures(sweep.measure, groups[0].runs)
    sign = -1 if what.better == "lower" else 1
    value = sign * figure.mean if math.isfinite(figure.mean) else -math.inf
    return Score(trial, figure, value, tested=tested, what=what)


def _rounds_to(target: float, runs: Sequence[History]) -> tuple[Spread, Spread | None]:
    """The first round at which the mean over seeds is as good as the target, by the validation data where there are
    some; and what the same models reach on the test set."""
    chosen = None if any(run.chosen_by is None for run in runs) else runs[0].chosen_by
    seen = _mean_curve(runs, chosen or runs[0].main_curve)
    at = next((r for r in sorted(seen) if runs[0].main_curve.meets(seen[r], target)), None)
    if at is None:
        return Spread.of([]), None if chosen is None else Spread.of([])
    test = [dict(zip(*run.curve(), strict=True)).get(at, math.nan) for run in runs]
    return Spread(at, math.nan, (at,)), None if chosen is None else Spread.of(test)


def _mean_curve(runs: Sequence[History], figure: Figure) -> dict[int, float]:
    curves = [dict(zip(*run.curve(figure), strict=True)) for run in runs]
    return {r: float(np.mean([curve[r] for curve in curves])) for r in set.intersection(*map(set, curves))}


def _figures(measure: Measure, runs: Sequence[History]) -> tuple[Spread, Spread | None]:
    """What trials are ranked by; where validation data choose, also what the same models reach on the test set."""
    if any(run.chosen_by is None for run in runs):
        return Spread.of([getattr(run, measure) for run in runs]), None
    chosen, tested = [], []
    for run in runs:
        seen, test = (dict(zip(*run.curve(figure), strict=True)) for figure in (run.chosen_by, run.main_curve))
        last = max(seen) if measure == "final" else run.best_round or max(seen)
        chosen.append(seen[last])
        tested.append(test.get(last, math.nan))
    return Spread.of(chosen), Spread.of(tested)


def heat(outcome: Outcome, method: str) -> tuple[str, str, list[Any], list[Any], np.ndarray[Any, Any]] | None:
    """The best value for each pair of the two most varied settings: names, ticks and a matrix (NaN: not tried)."""
    scores = outcome.scores[method]
    keys = list(scores[0].trial.point) if scores else []
    ticks = {k: sorted({s.trial.point[k] for s in scores}, key=lambda v: (isinstance(v, str), v)) for k in keys}
    keys = sorted((k for k in keys if len(ticks[k]) > 1), key=lambda k: -len(ticks[k]))
    if not keys:
        return None
    x, y = keys[0], keys[1] if len(keys) > 1 else ""
    rows = ticks[y] if y else [""]
    found = np.full((len(rows), len(ticks[x])), np.nan)
    for score in scores:
        i = rows.index(score.trial.point[y]) if y else 0
        j = ticks[x].index(score.trial.point[x])
        value = score.value if math.isfinite(score.value) else np.nan
        found[i, j] = np.nanmax([found[i, j], value]) if not np.isnan([found[i, j], value]).all() else np.nan
    return x, y, ticks[x], rows, found
