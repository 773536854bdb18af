"""Which method to take for these data and this budget: a short pilot with all of them, halved again and again.

All methods start on the same clients, models and seeds. In each rung everyone left is played up to the same share of
the budget (rounds, bytes, multiply-accumulates or seconds), and the better half goes on, with those of the rest that
are not clearly worse; FedAvg always does, as the control. The pilot compares methods at their default settings, and
early rounds are not the last ones: it says what it saw, and when it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from undrift import algorithms
from undrift.analysis.health import health
from undrift.analysis.intervals import Spread
from undrift.core.figure import GLOBAL, HEADLINE, OWN_MEAN, PERSONAL, Figure
from undrift.core.training import Training
from undrift.data import Dataset, Partitioner
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.studies.compare import kept
from undrift.studies.conclusion import conclusion
from undrift.studies.jobs import Done, Observer, Own, Place, Queued, work_off
from undrift.studies.lineup import line_up, on_common_ground, run_name
from undrift.studies.pilot import CONTROL, Budget, Goal, Pilot, Standing, plain_names
from undrift.studies.scene import scene, seeds_of, to_choose_by
from undrift.studies.shown import Shown


@dataclass(frozen=True, repr=False)
class Advice(Shown):
    """The recommendation, the evidence, and everyone's standing, best first."""

    budget: Budget
    goal: Goal
    take: str  # the method's name; empty where the pilot cannot tell
    sentences: tuple[str, ...]
    standings: tuple[Standing, ...]
    seeds: tuple[int, ...]
    failed: tuple[Done, ...] = ()  # runs that could not be made though they were asked for

    def records(self) -> list[dict[str, Any]]:
        """One record per method, numbers only."""
        return [
            {
                "method": s.method,
                "rung": s.rung,
                "rounds": s.rounds,
                "share": s.share,
                "mean": s.score.mean,
                "sd": s.score.sd,
                **({} if s.tested is None else {"test_mean": s.tested.mean, "test_sd": s.tested.sd}),
                **{f"{kind}_per_round": value for kind, value in s.cost.items()},
                "error": s.error,
            }
            for s in self.standings
        ]

    def lines(self) -> tuple[list[list[str]], list[str]]:
        from undrift.report import words

        chosen = any(s.tested for s in self.standings)
        metric = next((s.what.metric for s in self.standings if not s.error), HEADLINE.metric).replace("_", " ")
        heads = ["on validation data", "on the test set"] if chosen else [metric]
        table = [["method", "rounds", "of budget", *heads, "traffic/round", "compute/round", ""]]
        last = max((s.rung for s in self.standings if not s.error), default=0)
        for s in self.standings:
            if s.error:
                table.append([s.title, *["–"] * (len(heads) + 4), s.error])
                continue
            share = words.target_words(round(s.share, 3))
            reached = [words.spread(s.what, found.mean, found.sd) for found in (s.score, s.tested) if found]
            costs = [words.data_size(s.cost["bytes"]), words.operations(s.cost["macs"])]
            note = "finalist" if s.rung == last else f"out in rung {s.rung + 1}"
            table.append([s.title, str(s.rounds), share, *reached, *costs, note])
        return table, list(self.sentences)


def advise(
    budget: str | Budget = "rounds=100",
    *,
    algorithms: str | Iterable[str] = "all",
    seeds: int | str | Iterable[int] = (1, 2, 3),
    pilot: float = 0.2,
    goal: Goal = "global",
    data: Dataset | str | Mapping[str, Any] = "digits",
    partition: Partitioner | str | Mapping[str, Any] = "dirichlet",
    model: Any = None,
    loss: Any = None,
    training: Training | None = None,
    ledger: str | Path | None = None,
    name: str = "advise",
    side_by_side: int | None = None,
    root: str | Path | None = None,
    **plan: Any,
) -> Advice:
    """Say which method to take for these data and a budget: ``"rounds=200"``, ``"bytes=2e9"`` or ``"macs=1e12"``.

    ``pilot`` is the share of the budget that the finalists are given, ``goal`` one model for all (``"global"``) or the
    accuracy on the clients' own data (``"personal"``). A global model is chosen by validation data, a tenth of every
    client's training data unless ``validation`` says another share (0: by the test set). Everything else is as in
    ``undrift.compare``.
    """
    where = scene(data, partition, model, loss, training, plan)
    methods = () if algorithms == "all" else plain_names(line_up(algorithms))
    cost = Budget.parse(budget) if isinstance(budget, str) else budget
    planned = Pilot(where.values, cost, methods, seeds_of(seeds), pilot, goal, name)
    with kept(ledger) as path:
        return run_pilot(planned, path, workers=side_by_side, root=root, own=where.own)


def run_pilot(
    pilot: Pilot,
    ledger: Path,
    *,
    workers: int | None = None,
    root: str | Path | None = None,
    observer: Observer | None = None,
    own: Own | None = None,
) -> Advice:
    """Run the pilot, rung by rung, and say which method to take."""
    left, place = pilot.entrants(), Place(ledger, root, own=own or Own())

    failed: list[Done] = []

    def work(queue: Sequence[Queued]) -> dict[str, str]:
        gone = work_off(queue, place, workers=workers, observer=observer)
        # Where all methods are tried, one that does not allow these settings is left out, and that is all.
        failed.extend(done for done in gone if pilot.methods or not done.refused)
        return {done.name: done.error for done in gone}

    rungs = max(1, math.ceil(math.log2(max(1, len(left) / pilot.finalists)))) + 1
    shares = pilot.shares(rungs)
    standings: dict[str, Standing] = {}
    prices = _probe(pilot, left, ledger, work)
    for rung, share in enumerate(shares):
        rounds = {m: pilot.budget.rounds(share, prices[m]) for m in left if not isinstance(prices[m], str)}
        errors = work([_queued(pilot, m, seed, r) for m, r in rounds.items() for seed in pilot.seeds])
        with Ledger(ledger) as book:
            for method in left:
                problem = prices[method] if isinstance(prices[method], str) else ""
                standings[method] = _standing(pilot, method, book, rung, share, rounds.get(method, 0), errors, problem)
        alive = sorted((m for m in left if not standings[m].error), key=lambda m: -standings[m].merit)
        left = alive if rung == rungs - 1 else _survivors(pilot, [standings[m] for m in alive])
        if not left:
            break
    ranked = sorted(standings.values(), key=lambda s: (bool(s.error), -s.rung, -_number(s.merit)))
    take, sentences = conclusion(pilot, [standings[m] for m in left])
    return Advice(pilot.budget, pilot.goal, take, tuple(sentences), tuple(ranked), pilot.seeds, tuple(failed))


def _survivors(pilot: Pilot, ranked: Sequence[Standing]) -> list[str]:
    """The better half, and of the rest those not clearly worse, so that chance drops no one early.

    Never more than three quarters of them, and always the control.
    """
    half = max(pilot.finalists, math.ceil(len(ranked) / 2))
    most = max(half, math.ceil(0.75 * len(ranked)))
    last = ranked[min(half, len(ranked)) - 1]
    doubtful = [s for s in ranked[half:most] if not last.over(s).clear(0)]
    kept = [s.method for s in (*ranked[:half], *doubtful)]
    return [*kept, *(s.method for s in ranked if s.method == CONTROL and CONTROL not in kept)]


def _number(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _queued(pilot: Pilot, method: str, seed: int, rounds: int) -> Queued:
    base = {k: v for k, v in pilot.base.items() if k not in ("name", "target", "algorithm")}
    base = to_choose_by(base) if pilot.goal == "global" else base  # personal models have no part in validation data
    values = on_common_ground(base, [{"name": entrant} for entrant in pilot.entrants()])
    plan = {"algorithm": {"name": method}, "seed": seed, "rounds": rounds, "runtime": "serial", "eval_every": 1}
    return Queued(run_name(pilot.name, method, seed), {**values, **plan}, {"comparison": pilot.name})


def _probe(
    pilot: Pilot, methods: Sequence[str], ledger: Path, work: Callable[[Sequence[Queued]], dict[str, str]]
) -> dict[str, Any]:
    """What a round of each method costs in the budget's kind: measured on one round; a sentence where it cannot run."""
    if pilot.budget.kind == "rounds":
        return dict.fromkeys(methods, 1.0)
    queue = {m: _queued(pilot, m, pilot.seeds[0], 1) for m in methods}
    errors = work(list(queue.values()))
    with Ledger(ledger) as book:
        found: dict[str, Any] = {}
        for method, item in queue.items():
            if errors.get(item.name):
                found[method] = errors[item.name]
                continue
            history = History.of(book, book.run(item.name))
            found[method] = pilot.budget.spent(history) / max(1, len(history.rounds))
    return found


def _headline(history: History) -> Figure:
    """What the global model is judged by."""
    return history.main_curve if history.main_curve.model == GLOBAL else HEADLINE


def _figures(history: History, goal: Goal) -> list[float]:
    """The values a method is judged by; empty where it has none of that kind."""
    if goal == "global":
        return history.curve(history.chosen_by or _headline(history))[1]
    return history.curve(Figure(PERSONAL, OWN_MEAN))[1] or history.curve(Figure(GLOBAL, OWN_MEAN))[1]


def _standing(
    pilot: Pilot,
    method: str,
    book: Ledger,
    rung: int,
    share: float,
    rounds: int,
    errors: Mapping[str, str],
    problem: str,
) -> Standing:
    title = algorithms.algorithms()[method].title
    names = [run_name(pilot.name, method, seed) for seed in pilot.seeds]
    problem = problem or next((errors[n] for n in names if errors.get(n)), "")
    nothing = Standing(method, title, rung, rounds, share, Spread.of([]), {}, problem)
    if problem:
        return nothing
    histories = [History.of(book, book.run(name)) for name in names]
    ends = [health(history) for history in histories]
    diverged = [end for end in ends if end.state == "diverged"]
    if diverged:
        often = f"diverged in {len(diverged)} of {len(ends)} seeds: {diverged[0].reason}"
        return Standing(method, title, rung, rounds, share, Spread.of([]), {}, often)
    curves = [_figures(history, pilot.goal) for history in histories]
    if not all(curves):
        why = (
            "it has no global model" if pilot.goal == "global" else "it has no accuracy on the clients' own test parts"
        )
        return Standing(method, title, rung, rounds, share, Spread.of([]), {}, why)
    tail = max(1, rounds // 5)  # the last fifth, since single rounds jump up and down
    score = _ends(curves, rounds, tail)
    what = _headline(histories[0]) if pilot.goal == "global" else HEADLINE
    validated = pilot.goal == "global" and all(history.chosen_by for history in histories)
    tested = _ends([h.curve(_headline(h))[1] for h in histories], rounds, tail) if validated else None
    if math.isnan(score.mean):
        return Standing(method, title, rung, rounds, share, score, {}, f"its {what.metric} was not a number")
    played = sum(len(h.rounds) for h in histories)
    cost = {
        "bytes": sum(h.total("bytes_up") + h.total("bytes_down") for h in histories) / played,
        "macs": sum(h.total("macs") for h in histories) / played,
        "seconds": sum(h.total("seconds") for h in histories) / played,
    }
    return Standing(method, title, rung, rounds, share, score, cost, tested=tested, what=what)


def _ends(curves: Sequence[Sequence[float]], rounds: int, tail: int) -> Spread:
    """The mean of the last rounds, by seed."""
    return Spread.of([float(np.mean(curve[:rounds][-tail:])) for curve in curves])
