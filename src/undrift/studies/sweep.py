"""A search over hyper-parameters: which values for which method, from a grid or at random, over several seeds.

Every method is given the same number of trials. Where a grid does not allow that, the table says what each method would
have reached with as many trials as the one with the fewest. Settings are chosen by the figures on the test set, so a
winner's figure flatters it a little; a fresh seed tells.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from undrift.analysis.comparison import Comparer
from undrift.analysis.groups import grouped
from undrift.analysis.intervals import Spread
from undrift.core import rng
from undrift.core.errors import InvalidInput, unknown
from undrift.core.settings import Setting
from undrift.experiment.description import SECTIONS, components, merge
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.report import words
from undrift.studies.jobs import Job, Tell, work_off

if TYPE_CHECKING:
    from rich.table import Table

Search = Literal["grid", "random", "optuna"]
Measure = Literal["final", "best", "rounds"]
AT_ONCE = 4  # trials that Optuna is asked for at once; fixed, so that a sweep that goes on asks the same again
Point = dict[str, Any]  # key -> value, in the order of the keys


@dataclass(frozen=True)
class Over:
    """One setting that is varied: listed values, or a range to draw from."""

    key: str  # as the user wrote it
    section: str
    name: str
    setting: Setting
    method: str = ""  # only for this method
    values: tuple[Any, ...] = ()
    low: float = math.nan
    high: float = math.nan

    @property
    def is_range(self) -> bool:
        return not self.values

    @property
    def is_log(self) -> bool:
        """Is a range drawn evenly on a logarithmic scale? From a factor of ten on."""
        return self.low > 0 and self.high / self.low >= 10

    def draw(self, share: float) -> Any:
        """The value at a share of the way, 0 to 1."""
        if not self.is_range:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        if self.is_log:
            value = self.low * (self.high / self.low) ** share
        else:
            value = self.low + share * (self.high - self.low)
        found: float = round(value) if self.setting.type is int else float(f"{value:.4g}")
        return found

    def applies(self, method: str) -> bool:
        if self.section != "algorithm":
            return True
        return self.method in ("", method) and any(s.name == self.name for s in components()["algorithm"][method])


def parse_over(text: str, methods: Sequence[str], base: Mapping[str, Any]) -> Over:
    """``lr=0.01,0.1``, ``algorithm.mu=0.01..1`` or ``fedprox.mu=0.1,1``."""
    key, equals, listed = text.partition("=")
    if not equals or not listed:
        raise InvalidInput(f"--over {text}: write KEY=1,2,3 or KEY=0.01..1")
    section, method, name = _place(key.strip(), methods, base)
    setting = _setting(section, name, method, methods, base)
    where = f"--over {text}"
    if ".." in listed:
        if setting.type not in (int, float):
            raise InvalidInput(f"{where}: {name} is not a number, so it has no range: list its values")
        low, high = (_value(setting, part, where) for part in listed.split("..", 1))
        if not low < high:
            raise InvalidInput(f"{where}: the range must go from a smaller to a larger number")
        return Over(key, section, name, setting, method, (), float(low), float(high))
    if setting.type is tuple:
        raise InvalidInput(f"{where}: {name} is itself a list, which cannot be varied here")
    values = tuple(dict.fromkeys(_value(setting, part, where) for part in listed.split(",")))
    return Over(key, section, name, setting, method, values)


def _place(key: str, methods: Sequence[str], base: Mapping[str, Any]) -> tuple[str, str, str]:
    """Section, method and name that a key means."""
    known = components()
    head, dot, name = key.rpartition(".")
    name = name.replace("-", "_")
    if dot:
        if head in methods:
            return "algorithm", head, name
        if head in (*SECTIONS, "plan"):
            return head, "", name
        raise unknown("section or method", head, [*SECTIONS, "plan", *methods])
    holders = [s for s in known if any(_has(known[s].get(k, ()), name) for k in _kinds(s, methods, base))]
    if not holders:
        every = {s.name for kinds in known.values() for settings in kinds.values() for s in settings}
        raise unknown("setting to vary", name, every)
    if len(holders) > 1:
        raise InvalidInput(f"{name} could mean several things: write {' or '.join(f'{h}.{name}' for h in holders)}")
    return holders[0], "", name


def _kinds(section: str, methods: Sequence[str], base: Mapping[str, Any]) -> list[str]:
    if "" in components()[section]:
        return [""]
    if section == "algorithm":
        return list(methods)
    chosen = base.get(section, {"data": "digits", "partition": "dirichlet"}.get(section, ""))
    return [chosen if isinstance(chosen, str) else str(chosen.get("name", ""))]


def _has(settings: Sequence[Setting], name: str) -> bool:
    return any(s.name == name for s in settings)


def _setting(section: str, name: str, method: str, methods: Sequence[str], base: Mapping[str, Any]) -> Setting:
    kinds = [method] if method else _kinds(section, methods, base)
    settings = [s for kind in kinds for s in components()[section].get(kind, ())]
    found = next((s for s in settings if s.name == name), None)
    if found is None or name in ("seed", "rounds"):
        raise unknown(f"setting of {section} to vary", name, {s.name for s in settings} - {"seed", "rounds"})
    return found


def _value(setting: Setting, text: str, where: str) -> Any:
    try:
        return setting.check(setting.parse(text.strip()), setting.name)
    except InvalidInput:
        raise InvalidInput(f"{where}: {setting.name} must be {setting.allowed}") from None


# --- trials -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A method with one choice of the varied settings."""

    method: str
    point: Point
    values: dict[str, Any]  # the experiment, without seed and name

    @property
    def tag(self) -> str:
        return ":".join([self.method, *(f"{k}={_short(v)}" for k, v in self.point.items())])


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Sweep:
    """What is searched: methods, their varied settings, seeds and budget."""

    base: dict[str, Any]
    methods: tuple[dict[str, Any], ...]  # algorithm sections
    over: tuple[Over, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    search: Search = "grid"
    trials: int | None = None  # per method
    name: str = "sweep"
    measure: Measure = "final"
    target: float | None = None
    seed: int = 0  # of the search itself

    def __post_init__(self) -> None:
        if not self.over:
            raise InvalidInput("a sweep needs at least one --over KEY=VALUES")
        ranges = [o.key for o in self.over if o.is_range]
        if self.search == "grid" and ranges:
            raise InvalidInput(f"a grid needs listed values, and {ranges[0]} has a range: list them or --search random")
        if self.search != "grid" and self.trials is None:
            raise InvalidInput(f"--search {self.search} needs --trials: how many per method")
        if self.measure == "rounds" and self.target is None:
            raise InvalidInput("--by rounds needs a --target accuracy")

    def varied(self, method: str) -> list[Over]:
        return [o for o in self.over if o.applies(method)]

    def points(self, method: str) -> list[Point]:
        """The trials of a method that are known beforehand."""
        over = self.varied(method)
        if self.search == "random":
            assert self.trials is not None
            found = []
            for trial in range(self.trials):
                shares = rng.bits(rng.key(self.seed, "sweep", method, trial), len(over)) / 2.0**64
                found.append({o.key: o.draw(float(share)) for o, share in zip(over, shares, strict=True)})
            return [dict(p) for p in dict.fromkeys(tuple(p.items()) for p in found)]  # a draw twice is one trial
        every = [dict(zip([o.key for o in over], v, strict=True)) for v in itertools.product(*(o.values for o in over))]
        if self.trials is None or self.trials >= len(every):
            return every
        return [every[i] for i in rng.sample(rng.key(self.seed, "sweep", method), len(every), self.trials)]

    def trial(self, section: Mapping[str, Any], point: Point) -> Trial:
        changes: dict[str, Any] = {"algorithm": dict(section)}
        for over in self.over:
            if over.key in point and over.section == "plan":
                changes[over.name] = point[over.key]
            elif over.key in point:
                changes.setdefault(over.section, {})[over.name] = point[over.key]
        values = {k: v for k, v in merge(self.base, changes).items() if k not in ("seed", "name")}
        return Trial(str(section["name"]), point, values | {"runtime": "serial"})

    def jobs(self, trial: Trial) -> list[Job]:
        values = {"rounds": 50, **trial.values}
        return [Job(f"{self.name}/{trial.tag}/seed{seed}", {**values, "seed": seed}) for seed in self.seeds]


@dataclass(frozen=True)
class Score:
    """How a trial did."""

    trial: Trial
    figure: Spread  # accuracy, or rounds to the target
    value: float  # what trials are ranked by: larger is better; -inf where it failed
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """All trials, best first in each method, and what each method reaches with an equal number of trials."""

    sweep: Sweep
    scores: dict[str, list[Score]]
    histories: list[History] = field(default_factory=list)

    @property
    def budget(self) -> int:
        """The number of trials that every method had."""
        return min(len(scores) for scores in self.scores.values())

    def expected(self, method: str) -> float:
        """The best of as many trials as the method with the fewest had, expected over which of them those are."""
        known = [score.value for score in self.scores[method] if math.isfinite(score.value)]
        if not known:
            return -math.inf
        worst = 0.0 if max(known) > 0 else min(known)  # what failed counts as nothing, or as the worst that did not
        values = sorted(max(score.value, worst) for score in self.scores[method])
        k, m = len(values), self.budget
        return sum(v * math.comb(i, m - 1) for i, v in enumerate(values)) / math.comb(k, m)


def run_sweep(
    sweep: Sweep,
    ledger: Path,
    *,
    workers: int | None = None,
    root: str | Path | None = None,
    tell: Tell = lambda d: None,
) -> Outcome:
    """Run what is not done yet, and rank the trials."""
    errors: dict[str, str] = {}
    trials: list[Trial] = []
    for batch in _batches(sweep, ledger):
        trials += batch
        jobs = [job for trial in batch for job in sweep.jobs(trial)]
        for done in work_off(jobs, ledger, workers=workers, root=root, tell=tell):
            errors[done.name] = done.error
    return outcome(sweep, trials, ledger, errors)


def _batches(sweep: Sweep, ledger: Path) -> Iterator[list[Trial]]:
    if sweep.search != "optuna":
        yield [sweep.trial(section, p) for section in sweep.methods for p in sweep.points(str(section["name"]))]
        return
    studies = [_study(sweep, section) for section in sweep.methods]
    assert sweep.trials is not None
    for begin in range(0, sweep.trials, AT_ONCE):
        asked = [
            (section, study, study.ask())
            for section, study in zip(sweep.methods, studies, strict=True)
            for _ in range(min(AT_ONCE, sweep.trials - begin))
        ]
        points = [_suggested(sweep, str(section["name"]), trial) for section, _, trial in asked]
        batch = [sweep.trial(section, p) for (section, _, _), p in zip(asked, points, strict=True)]
        yield list({trial.tag: trial for trial in batch}.values())
        scores = outcome(sweep, batch, ledger, {}).scores
        for (section, study, trial), point in zip(asked, points, strict=True):
            value = next(s.value for s in scores[str(section["name"])] if s.trial.point == point)
            study.tell(trial, value if math.isfinite(value) else -1e9)


def _study(sweep: Sweep, section: Mapping[str, Any]) -> Any:
    """A study of Optuna. The same search asks the same questions again, so a sweep that was stopped can go on."""
    try:
        import optuna
    except ImportError:
        raise InvalidInput("--search optuna needs Optuna: pip install 'undrift[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = rng.key(sweep.seed, "optuna", str(section["name"])) % 2**32
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))


def _suggested(sweep: Sweep, method: str, trial: Any) -> Point:
    point: Point = {}
    for over in sweep.varied(method):
        if not over.is_range:
            point[over.key] = trial.suggest_categorical(over.key, over.values)
        elif over.setting.type is int:
            point[over.key] = trial.suggest_int(over.key, round(over.low), round(over.high), log=over.is_log)
        else:
            value = trial.suggest_float(over.key, over.low, over.high, log=over.is_log)
            point[over.key] = float(f"{value:.4g}")
    return point


def outcome(sweep: Sweep, trials: Sequence[Trial], ledger: Path, errors: Mapping[str, str]) -> Outcome:
    """Rank trials by what the ledger holds of them."""
    scores: dict[str, list[Score]] = {str(section["name"]): [] for section in sweep.methods}
    every = []
    with Ledger(ledger) as book:
        runs = {run.name: run for run in book.runs()}
        for trial in {t.tag: t for t in trials}.values():
            names = [job.name for job in sweep.jobs(trial)]
            failed = tuple(f"{n}: {errors[n]}" for n in names if errors.get(n))
            histories = [History.of(book, runs[n]) for n in names if n in runs and n not in errors]
            every += histories
            scores[trial.method].append(_score(sweep, trial, histories, failed))
    for ranked in scores.values():
        ranked.sort(key=lambda score: -score.value)
    return Outcome(sweep, scores, every)


def _score(sweep: Sweep, trial: Trial, histories: Sequence[History], failed: tuple[str, ...]) -> Score:
    groups, _ = grouped(histories)
    if failed or not groups:
        return Score(trial, Spread.of([]), -math.inf, failed or ("no round was evaluated",))
    if sweep.measure == "rounds":
        cost = Comparer(histories).at(sweep.target).rows[0].costs.get("rounds")
        if cost is None or cost.value is None:
            return Score(trial, Spread.of([]), -math.inf)
        return Score(trial, Spread(cost.value, math.nan, (cost.value,)), -cost.value)
    figure = Spread.of([getattr(run, sweep.measure) for run in groups[0].runs])
    sign = -1 if groups[0].figure.better == "lower" else 1
    return Score(trial, figure, sign * figure.mean if math.isfinite(figure.mean) else -math.inf)


# --- showing ----------------------------------------------------------------------------------------------------------


def words_of(outcome: Outcome, score: Score) -> str:
    """A score as text."""
    if score.failed:
        return "failed"
    if not math.isfinite(score.value):
        return "not reached" if outcome.sweep.measure == "rounds" else "not a number"
    if outcome.sweep.measure == "rounds":
        return words.rounds(score.figure.mean)
    if score.value < 0:
        return words.amount(score.figure.mean)
    spread = "" if math.isnan(score.figure.sd) else f" ± {100 * score.figure.sd:.1f}"
    return f"{100 * score.figure.mean:.1f}{spread} %"


def table(outcome: Outcome) -> Table:
    """Each method with its best setting, and what it reaches with an equal number of trials."""
    from rich.table import Table
    from rich.text import Text

    by = {"final": "final accuracy", "best": "best accuracy", "rounds": "rounds to target"}[outcome.sweep.measure]
    shown = Table(title=f"{outcome.sweep.name}: {by}, over {len(outcome.sweep.seeds)} seeds", title_justify="left")
    for title in ("method", "trials", "failed", "best setting", by, f"expected best of {outcome.budget}"):
        left = title in ("method", "best setting")
        shown.add_column(title, justify="left" if left else "right", overflow="fold")
    for method, scores in sorted(outcome.scores.items(), key=lambda item: -item[1][0].value):
        first = scores[0]
        setting = ", ".join(f"{k}={_short(v)}" for k, v in first.trial.point.items()) or "(nothing varied)"
        failed = sum(bool(score.failed) for score in scores)
        expected = outcome.expected(method)
        if not math.isfinite(expected):
            words_expected = "–"
        elif outcome.sweep.measure == "rounds" or expected < 0:
            words_expected = words.amount(abs(expected))
        else:
            words_expected = words.percent(expected)
        cells = (method, str(len(scores)), str(failed), setting, words_of(outcome, first), words_expected)
        shown.add_row(*(Text(cell) for cell in cells))
    return shown


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


def heat_map(outcome: Outcome, path: str | Path, *, force: bool = False) -> None:
    """A heat map per method: the best value for each pair of the two most varied settings."""
    from undrift.report.plots import drawing

    maps = {m: found for m in outcome.scores if (found := heat(outcome, m)) is not None}
    if not maps:
        raise InvalidInput("there is nothing to draw a heat map of: no setting has two values")
    share = outcome.sweep.measure != "rounds" and all(np.nanmax(m[4], initial=0) > 0 for m in maps.values())
    scale, unit = (100, "accuracy (%)") if share else (-1, "rounds" if outcome.sweep.measure == "rounds" else "loss")
    every = np.concatenate([scale * found[4].reshape(-1) for found in maps.values()])
    low, high = np.nanmin(every), np.nanmax(every)
    rows = max(len(found[3]) for found in maps.values())
    width = sum(1.0 + 0.55 * len(found[2]) for found in maps.values()) + 1.2
    with drawing(path, max(3.4, width), 1.3 + 0.4 * rows, force) as (figure, _):
        ratios = [1 + len(found[2]) for found in maps.values()]
        panels = figure.subplots(1, len(maps), squeeze=False, width_ratios=ratios)[0]
        for axes, (method, (x, y, columns, lines, values)) in zip(panels, maps.items(), strict=True):
            image = axes.imshow(scale * values, vmin=low, vmax=high, cmap="viridis" if share else "viridis_r")
            axes.set(title=method, xlabel=x, ylabel=y, xticks=range(len(columns)), yticks=range(len(lines)))
            axes.set_xticklabels([_short(v) for v in columns], rotation=45, ha="right", rotation_mode="anchor")
            axes.set_yticklabels([_short(v) for v in lines])
            axes.grid(visible=False)
            for (i, j), value in np.ndenumerate(scale * values):
                if np.isnan(value):
                    axes.text(j, i, "–", ha="center", va="center")
                    continue
                light = sum(image.cmap(image.norm(value))[:3]) > 1.5
                text = f"{value:.1f}" if share else f"{value:.3g}"
                axes.text(j, i, text, ha="center", va="center", fontsize=7, color="black" if light else "white")
        figure.colorbar(image, ax=list(panels), label=unit, shrink=0.8)
