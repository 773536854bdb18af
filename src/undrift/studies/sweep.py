"""A search over hyper-parameters: which values for which method, from a grid or at random, over several seeds.

Every method is given the same number of trials. Where a grid does not allow that, the table says what each method would
have reached with as many trials as the one with the fewest. Settings are chosen by validation data, a tenth of every
client's where nothing else is said, and what the chosen ones reach on the test set is reported; with ``validation = 0``
they are chosen by the test set, so that a winner's figure flatters it a little; a fresh seed tells.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift import algorithms as registry
from undrift.core import rng
from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput, unknown
from undrift.core.named import short
from undrift.core.training import Training
from undrift.data import Dataset, Partitioner
from undrift.experiment.description import merge, tag
from undrift.studies.compare import kept
from undrift.studies.jobs import Done, Observer, Own, Place, Queued, work_off
from undrift.studies.lineup import (
    Section,
    asked,
    filled,
    line_up,
    on_common_ground,
    own_training,
    run_name,
    with_controls,
)
from undrift.studies.outcome import Measure, Outcome, Point, Trial, outcome
from undrift.studies.over import Over, overs
from undrift.studies.scene import DEFAULT_ROUNDS, assumes_validation, scene, seeds_of, to_choose_by

SEARCHES = ("grid", "random", "optuna")
MEASURES: tuple[Measure, ...] = ("final", "best", "rounds")
AT_ONCE = 4  # trials that Optuna is asked for at once; fixed, so that a sweep that goes on asks the same again


@dataclass(frozen=True)
class Sweep:
    """What is searched: methods, their varied settings, seeds and budget."""

    base: dict[str, Any]
    methods: tuple[Section, ...]
    over: tuple[Over, ...]
    seeds: tuple[int, ...] = (1, 2, 3)
    search: str = "grid"
    trials: int | None = None  # per method
    name: str = "sweep"
    measure: Measure = "final"
    target: float | None = None
    seed: int = 0  # of the search itself
    assumed: bool = False  # is it our choice that there are validation data?

    def __post_init__(self) -> None:
        for kind, given, known in (("search", self.search, SEARCHES), ("measure", self.measure, MEASURES)):
            if given not in known:
                raise unknown(kind, given, known)
        if not self.over:
            raise InvalidInput("a sweep needs at least one setting to vary, such as lr=0.01,0.1")
        ranges = [o.key for o in self.over if o.is_range]
        if self.search == "grid" and ranges:
            raise InvalidInput(
                f"a grid needs listed values, and {ranges[0]} has a range: list them, or search at random"
            )
        if self.search != "grid" and self.trials is None:
            raise InvalidInput(f"a search by {self.search} needs the number of trials per method")
        for section in self.methods:
            fixed = {*section, *(f"train.{key}" for key in section.get("train", {}))}
            for over in self.varied(tag(section)):
                if (over.name if over.section == "algorithm" else f"{over.section}.{over.name}") in fixed:
                    raise InvalidInput(f"{tag(section)} gives {over.name}, which is varied: leave one of them out")
        if self.measure == "rounds" and self.target is None:
            raise InvalidInput("a ranking by rounds needs a target accuracy")

    @property
    def tags(self) -> list[str]:
        """The methods as they were written, which tells two settings of one method apart."""
        return [tag(section) for section in self.methods]

    def varied(self, method: str) -> list[Over]:
        return [o for o in self.over if o.applies(method.split(":")[0])]

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

    @property
    def count(self) -> int:
        """How many runs there will be, at most."""
        trials = [self.trials or 0 if self.search == "optuna" else len(self.points(method)) for method in self.tags]
        return sum(trials) * len(self.seeds)

    def trial(self, section: Mapping[str, Any], point: Point) -> Trial:
        kind = registry.algorithms().get(section["name"])
        given = self.base.get("algorithm")
        changes: dict[str, Any] = {"algorithm": dict(section) if kind is None else filled(dict(section), given, kind)}
        for over in self.over:
            if over.key in point and over.section == "plan":
                changes[over.name] = point[over.key]
            elif over.key in point:
                changes.setdefault(over.section, {})[over.name] = point[over.key]
        base = on_common_ground({k: v for k, v in self.base.items() if k != "algorithm"}, self.methods)
        values = {k: v for k, v in merge(base, changes).items() if k not in ("seed", "name")}
        return Trial(tag(section), point, values | {"runtime": "serial"})

    def runs(self, trial: Trial) -> list[Queued]:
        values, told = {"rounds": DEFAULT_ROUNDS, **trial.values}, {"comparison": self.name}
        told |= own_training(trial.values["algorithm"])
        return [Queued(run_name(self.name, trial.tag, seed), {**values, "seed": seed}, told) for seed in self.seeds]


def sweep(
    algorithms: str | Iterable[str | Mapping[str, Any] | Method] = "fedavg",
    over: Mapping[str, Any] | Sequence[str] = (),
    *,
    seeds: int | str | Iterable[int] = (1, 2, 3),
    search: str = "grid",
    trials: int | None = None,
    by: Measure = "final",
    data: Dataset | str | Mapping[str, Any] = "digits",
    partition: Partitioner | str | Mapping[str, Any] = "dirichlet",
    model: Any = None,
    loss: Any = None,
    training: Training | None = None,
    ledger: str | Path | None = None,
    name: str = "sweep",
    side_by_side: int | None = None,
    root: str | Path | None = None,
    **plan: Any,
) -> Outcome:
    """Search hyper-parameters: ``over={"lr": [0.01, 0.1], "fedprox.mu": (0.01, 1.0)}`` lists values or gives a range.

    Settings are chosen by validation data, a tenth of every client's training data unless ``validation`` says another
    share; ``validation=0`` chooses by the test set. Everything else is as in ``undrift.compare``. The same ``name`` and
    ``ledger`` go on with a sweep that was stopped.
    """
    methods = asked(algorithms)
    where = scene(data, partition, model, loss, training, plan, methods)
    planned = planned_sweep(
        where.values, methods, over, seeds=seeds_of(seeds), search=search, trials=trials, name=name, measure=by
    )
    with kept(ledger) as path:
        return run_sweep(planned, path, workers=side_by_side, root=root, own=where.own)


def planned_sweep(values: Mapping[str, Any], algorithms: Any, over: Any, **settings: Any) -> Sweep:
    """A sweep of methods, with their controls, on common ground."""
    methods = with_controls(line_up(algorithms))
    names = list(dict.fromkeys(str(section["name"]) for section in methods))
    return Sweep(
        to_choose_by(values),
        tuple(methods),
        overs(over, names, values),
        target=values.get("target"),
        assumed=assumes_validation(values),
        **settings,
    )


def run_sweep(
    sweep: Sweep,
    ledger: Path,
    *,
    workers: int | None = None,
    root: str | Path | None = None,
    observer: Observer | None = None,
    own: Own | None = None,
) -> Outcome:
    """Run what is not done yet, and rank the trials."""
    failed: list[Done] = []
    trials: list[Trial] = []
    place = Place(ledger, root, own=own or Own())
    for batch in _batches(sweep, ledger):
        trials += batch
        queue = [run for trial in batch for run in sweep.runs(trial)]
        failed += work_off(queue, place, workers=workers, observer=observer)
    return outcome(sweep, trials, ledger, failed)


def _batches(sweep: Sweep, ledger: Path) -> Iterator[list[Trial]]:
    if sweep.search != "optuna":
        yield [sweep.trial(section, p) for section in sweep.methods for p in sweep.points(tag(section))]
        return
    studies = [_study(sweep, section) for section in sweep.methods]
    assert sweep.trials is not None
    for begin in range(0, sweep.trials, AT_ONCE):
        asked = [
            (section, study, study.ask())
            for section, study in zip(sweep.methods, studies, strict=True)
            for _ in range(min(AT_ONCE, sweep.trials - begin))
        ]
        points = [_suggested(sweep, tag(section), trial) for section, _, trial in asked]
        batch = [sweep.trial(section, p) for (section, _, _), p in zip(asked, points, strict=True)]
        yield list({trial.tag: trial for trial in batch}.values())
        scores = outcome(sweep, batch, ledger).scores
        for (section, study, trial), point in zip(asked, points, strict=True):
            value = next(s.value for s in scores[tag(section)] if s.trial.point == point)
            study.tell(trial, value if math.isfinite(value) else -1e9)


def _study(sweep: Sweep, section: Mapping[str, Any]) -> Any:
    """A study of Optuna. The same search asks the same questions again, so a sweep that was stopped can go on."""
    try:
        import optuna
    except ImportError:
        raise InvalidInput("a search by optuna needs Optuna: pip install 'undrift[optuna]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = rng.key(sweep.seed, "optuna", tag(section)) % 2**32
    return optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))


def _suggested(sweep: Sweep, method: str, trial: Any) -> Point:
    point: Point = {}
    for over in sweep.varied(method):
        if not over.is_range:
            listed = {short(value): value for value in over.values}  # Optuna knows no lists
            point[over.key] = listed[trial.suggest_categorical(over.key, list(listed))]
        elif over.setting.type is int:
            point[over.key] = trial.suggest_int(over.key, round(over.low), round(over.high), log=over.is_log)
        else:
            value = trial.suggest_float(over.key, over.low, over.high, log=over.is_log)
            point[over.key] = float(f"{value:.4g}")
    return point
