"""Which method to take for these data and this budget: a short pilot with all of them, halved again and again.

All methods start on the same clients, models and seeds. In each rung everyone left is played up to the same share of
the budget (rounds, bytes, multiply-accumulates or seconds), and the better half goes on, with those of the rest that
are not clearly worse; FedAvg always does, as the control. The pilot compares methods at their default settings, and
early rounds are not the last ones: it says what it saw, and when it cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from undrift import algorithms
from undrift.analysis.intervals import Interval, Spread, paired_difference
from undrift.core.errors import InvalidInput
from undrift.core.figure import GLOBAL, HEADLINE, OWN_MEAN, PERSONAL
from undrift.core.figure import Figure as Label
from undrift.core.settings import at_least
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.report import words
from undrift.studies.jobs import Job, Tell, work_off

if TYPE_CHECKING:
    from rich.table import Table

BUDGETS = ("rounds", "bytes", "macs", "seconds")
Goal = Literal["global", "personal"]
CONTROL = "fedavg"
START = 0.1  # share of the budget before anyone is dropped
LEAST = 5  # and rounds
_RANGE = at_least(1)


@dataclass(frozen=True)
class Budget:
    """What the real training may cost."""

    kind: str
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """``rounds=200``, ``bytes=2e9``, ``macs=1e12`` or ``seconds=3600``."""
        kind, equals, number = text.partition("=")
        try:
            amount = float(number)
        except ValueError:
            amount = math.nan
        if kind not in BUDGETS or not equals or not _RANGE.holds(amount):
            raise InvalidInput(f"--budget {text}: write rounds=200, bytes=2e9, macs=1e12 or seconds=3600")
        return cls(kind, amount)

    def __str__(self) -> str:
        return f"{words.rounds(self.amount)} rounds" if self.kind == "rounds" else words.cost(self.kind, self.amount)

    def spent(self, history: History) -> float:
        if self.kind == "bytes":
            return history.total("bytes_up") + history.total("bytes_down")
        return history.total(self.kind)

    def rounds(self, share: float, per_round: float) -> int:
        """How many rounds a share of the budget pays for."""
        return max(LEAST, math.floor(share * self.amount / per_round + 1e-9))


@dataclass(frozen=True)
class Standing:
    """Where a method stood when it was last played."""

    method: str
    title: str
    rung: int
    rounds: int
    share: float  # of the budget
    score: Spread  # accuracy, one value per seed
    cost: dict[str, float]  # per round: bytes, macs, seconds
    error: str = ""


@dataclass(frozen=True)
class Advice:
    """The recommendation, the evidence, and everyone's standing, best first."""

    budget: Budget
    goal: Goal
    take: str  # the method's name; empty where the pilot cannot tell
    sentences: tuple[str, ...]
    standings: tuple[Standing, ...]
    seeds: tuple[int, ...]
    ledger: Path


@dataclass(frozen=True)
class Pilot:
    """What is tried, and how much of the budget the finalists get."""

    base: dict[str, Any]
    budget: Budget
    methods: tuple[str, ...] = ()  # empty: all that can be compared
    seeds: tuple[int, ...] = (1, 2, 3)
    share: float = 0.2  # of the budget, for the finalists
    goal: Goal = "global"
    name: str = "advise"
    finalists: int = 3

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InvalidInput(f"--pilot {self.share:g}: it must be a share of the budget in (0, 1]")
        if len(self.seeds) < 2:
            raise InvalidInput("a pilot needs at least two seeds: with one, chance cannot be told from a difference")

    def shares(self, rungs: int) -> list[float]:
        """The shares of the budget, rung by rung: growing evenly from a fair start, since slow starters may win."""
        first = min(self.share, max(self.share / 2 ** (rungs - 1), START))
        steps = max(1, rungs - 1)
        return [first * (self.share / first) ** (rung / steps) for rung in range(rungs)]

    def entrants(self) -> list[str]:
        known = algorithms.algorithms()
        if self.methods:
            return list(dict.fromkeys([CONTROL, *self.methods]))
        # Training on pooled data is no federated method, and training alone has no common model: both are yardsticks.
        return [CONTROL, *(n for n, c in known.items() if n not in (CONTROL, "local") and not c.pools_data)]


def advise(
    pilot: Pilot,
    ledger: Path,
    *,
    workers: int | None = None,
    root: str | Path | None = None,
    tell: Tell = lambda done: None,
) -> Advice:
    """Run the pilot, rung by rung, and say which method to take."""
    left = pilot.entrants()
    rungs = max(1, math.ceil(math.log2(max(1, len(left) / pilot.finalists)))) + 1
    shares = pilot.shares(rungs)
    standings: dict[str, Standing] = {}
    prices = _probe(pilot, left, ledger, workers, root, tell)
    for rung, share in enumerate(shares):
        rounds = {m: pilot.budget.rounds(share, prices[m]) for m in left if not isinstance(prices[m], str)}
        jobs = [_job(pilot, m, seed, r) for m, r in rounds.items() for seed in pilot.seeds]
        errors = {d.name: d.error for d in work_off(jobs, ledger, workers=workers, root=root, tell=tell)}
        with Ledger(ledger) as book:
            for method in left:
                problem = prices[method] if isinstance(prices[method], str) else ""
                standings[method] = _standing(pilot, method, book, rung, share, rounds.get(method, 0), errors, problem)
        alive = sorted((m for m in left if not standings[m].error), key=lambda m: -standings[m].score.mean)
        left = alive if rung == rungs - 1 else _survivors(pilot, [standings[m] for m in alive])
        if not left:
            break
    ranked = sorted(standings.values(), key=lambda s: (bool(s.error), -s.rung, -_number(s.score.mean)))
    take, sentences = conclusion(pilot, [standings[m] for m in left])
    return Advice(pilot.budget, pilot.goal, take, tuple(sentences), tuple(ranked), pilot.seeds, ledger)


def _survivors(pilot: Pilot, ranked: Sequence[Standing]) -> list[str]:
    """The better half, and of the rest those not clearly worse, so that chance drops no one early.

    Never more than three quarters of them, and always the control.
    """
    half = max(pilot.finalists, math.ceil(len(ranked) / 2))
    most = max(half, math.ceil(0.75 * len(ranked)))
    last = ranked[min(half, len(ranked)) - 1]
    doubtful = [s for s in ranked[half:most] if not _difference(last, s).clear(0)]
    kept = [s.method for s in (*ranked[:half], *doubtful)]
    return [*kept, *(s.method for s in ranked if s.method == CONTROL and CONTROL not in kept)]


def _number(value: float) -> float:
    return -math.inf if math.isnan(value) else value


def _job(pilot: Pilot, method: str, seed: int, rounds: int) -> Job:
    values = {k: v for k, v in pilot.base.items() if k not in ("name", "target", "algorithm")}
    public = any(algorithms.algorithms()[m].needs_public for m in pilot.entrants())
    if public:
        values.setdefault("others_public", "held-out")  # so that all methods see the same partition
    plan = {"algorithm": {"name": method}, "seed": seed, "rounds": rounds, "runtime": "serial", "eval_every": 1}
    return Job(f"{pilot.name}/{method}/seed{seed}", {**values, **plan})


def _probe(
    pilot: Pilot, methods: Sequence[str], ledger: Path, workers: int | None, root: str | Path | None, tell: Tell
) -> dict[str, Any]:
    """What a round of each method costs in the budget's kind: measured on one round; a sentence where it cannot run."""
    if pilot.budget.kind == "rounds":
        return dict.fromkeys(methods, 1.0)
    jobs = {m: _job(pilot, m, pilot.seeds[0], 1) for m in methods}
    errors = {d.name: d.error for d in work_off(list(jobs.values()), ledger, workers=workers, root=root, tell=tell)}
    with Ledger(ledger) as book:
        found: dict[str, Any] = {}
        for method, job in jobs.items():
            if errors.get(job.name):
                found[method] = errors[job.name]
                continue
            history = History.of(book, book.run(job.name))
            found[method] = pilot.budget.spent(history) / max(1, len(history.rounds))
    return found


def _figures(history: History, goal: Goal) -> list[float]:
    """The accuracies a method is judged by; empty where it has none of that kind."""
    if goal == "global":
        return history.curve(HEADLINE)[1]
    return history.curve(Label(PERSONAL, OWN_MEAN))[1] or history.curve(Label(GLOBAL, OWN_MEAN))[1]


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
    names = [f"{pilot.name}/{method}/seed{seed}" for seed in pilot.seeds]
    problem = problem or next((errors[n] for n in names if errors.get(n)), "")
    nothing = Standing(method, title, rung, rounds, share, Spread.of([]), {}, problem)
    if problem:
        return nothing
    histories = [History.of(book, book.run(name)) for name in names]
    curves = [_figures(history, pilot.goal) for history in histories]
    if not all(curves):
        why = (
            "it has no global model" if pilot.goal == "global" else "it has no accuracy on the clients' own test parts"
        )
        return Standing(method, title, rung, rounds, share, Spread.of([]), {}, why)
    tail = max(1, rounds // 5)  # the last fifth, since single rounds jump up and down
    score = Spread.of([float(np.mean(curve[:rounds][-tail:])) for curve in curves])
    if math.isnan(score.mean):
        return Standing(method, title, rung, rounds, share, score, {}, "its accuracy was not a number")
    played = sum(len(h.rounds) for h in histories)
    cost = {
        "bytes": sum(h.total("bytes_up") + h.total("bytes_down") for h in histories) / played,
        "macs": sum(h.total("macs") for h in histories) / played,
        "seconds": sum(h.total("seconds") for h in histories) / played,
    }
    return Standing(method, title, rung, rounds, share, score, cost)


# --- the conclusion ---------------------------------------------------------------------------------------------------


def conclusion(pilot: Pilot, left: Sequence[Standing]) -> tuple[str, list[str]]:
    """The method to take, or none, and the sentences that say why."""
    alive = sorted(left, key=lambda s: -s.score.mean)
    if not alive:
        return "", ["No method could be run on these data: see the reasons in the table."]
    best = alive[0]
    control = next((s for s in alive if s.method == CONTROL), None)
    unlike = [s for s in alive[1:] if not _difference(best, s).clear(0)]  # those that cannot be told from the best
    seen = f"After {words.target_words(best.share)} of the budget of {pilot.budget} ({_rounds(alive)})"
    ahead = f"{seen}, {best.title} stands at {words.percent(best.score.mean)}"
    caution = "Early rounds at default settings are not the whole story: check the choice on a longer run."
    if len(alive) == 1:
        return best.method, [f"Take {best.title}: it is the only one left.", f"{ahead}.", caution]
    if not unlike:
        other = alive[1]
        gap = f"{ahead}, {_points(_difference(best, other))} over {other.title}, the next"
        sentences = [f"Take {best.title}.", f"{gap}.", *_costs(best, control)]
        if control is not None and control not in (best, other):
            sentences.insert(2, f"Against FedAvg it gains {_points(_difference(best, control))}.")
        return best.method, [*sentences, caution]
    rivals = [best, *unlike]
    names = words.series([s.title for s in rivals])
    told = f"The pilot cannot tell {names} apart: {ahead[0].lower()}{ahead[1:]}, " + words.series(
        [f"{_points(_difference(best, s))} over {s.title}" for s in unlike]
    )
    if control in rivals and control is not None:
        advice = "Take FedAvg: nothing was clearly better, and it is the simplest."
        return CONTROL, [advice, f"{told}.", "More seeds, or a larger share with --pilot, may tell.", caution]
    cheapest = min(rivals, key=lambda s: (s.cost["bytes"], s.cost["macs"]))
    return "", [
        f"{told}.",
        f"Of these, {cheapest.title} has the cheapest rounds ({_price(cheapest)}).",
        *(
            [f"All of them beat FedAvg, which is at {words.percent(control.score.mean)}."]
            if control is not None
            else []
        ),
        "More seeds, or a larger share with --pilot, may tell.",
        caution,
    ]


def _rounds(alive: Sequence[Standing]) -> str:
    counts = sorted({s.rounds for s in alive})
    return f"{counts[0]} rounds" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} rounds"


def _difference(one: Standing, other: Standing) -> Interval:
    return paired_difference(one.score.values, other.score.values)


def _points(found: Interval) -> str:
    gap = f"{100 * found.value:+.1f} points"
    return f"{gap} (95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f}, {found.pairs} paired seeds)"


def _price(standing: Standing) -> str:
    cost = standing.cost
    return f"{words.data_size(cost['bytes'])} and {words.operations(cost['macs'])} a round"


def _costs(best: Standing, control: Standing | None) -> list[str]:
    if control is None or control is best:
        return []
    said = []
    for kind, what in (("bytes", "traffic"), ("macs", "client compute")):
        share = best.cost[kind] / control.cost[kind] if control.cost[kind] else math.nan
        said.append(f"equal {what}" if abs(share - 1) < 0.02 else f"{share:.1f} times the {what}")
    return [f"Compared with FedAvg, a round takes {words.series(said)}."]


def table(advice: Advice) -> Table:
    """Everyone's standing, best first."""
    from rich.table import Table
    from rich.text import Text

    what = "accuracy on the test set" if advice.goal == "global" else "accuracy on the clients' own test parts"
    shown = Table(title=f"pilot for {advice.budget}: {what}, {len(advice.seeds)} seeds", title_justify="left")
    for title in ("method", "rounds", "of budget", "accuracy", "traffic/round", "compute/round", ""):
        left = title in ("method", "")
        shown.add_column(title, justify="left" if left else "right", no_wrap=title != "", overflow="fold")
    last = max((s.rung for s in advice.standings if not s.error), default=0)
    for s in advice.standings:
        if s.error:
            cells = [s.title, "–", "–", "–", "–", "–", s.error]
        else:
            spread = "" if math.isnan(s.score.sd) else f" ± {100 * s.score.sd:.1f}"
            note = "finalist" if s.rung == last else f"out in rung {s.rung + 1}"
            cells = [
                s.title, str(s.rounds), words.target_words(round(s.share, 3)), f"{100 * s.score.mean:.1f}{spread} %",
                words.data_size(s.cost["bytes"]), words.operations(s.cost["macs"]), note,
            ]  # fmt: skip
        shown.add_row(*(Text(cell) for cell in cells), style="bold" if s.method == advice.take else "")
    return shown
