"""What a pilot allows to be said: the method to take, or that it cannot tell, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from undrift.analysis.intervals import Spread
from undrift.report import words
from undrift.studies.pilot import CONTROL, Pilot, Standing
from undrift.studies.scene import ASSUMED, assumes_validation


def conclusion(pilot: Pilot, left: Sequence[Standing]) -> tuple[str, list[str]]:
    """The method to take, or none, and the sentences that say why."""
    alive = sorted(left, key=lambda s: -s.merit)
    if not alive:
        return "", ["No method could be run on these data: see the reasons in the table."]
    best = alive[0]
    control = next((s for s in alive if s.method == CONTROL), None)
    unlike = [s for s in alive[1:] if not best.over(s).clear(0)]  # those that cannot be told from the best
    data = " on the validation data" if best.tested else ""
    seen = f"After {words.target_words(best.share)} of the budget of {pilot.budget} ({_rounds(alive)})"
    ahead = f"{seen}, {best.title} stands at {_value(best, best.score)}{data}"
    caution = ["Early rounds at default settings are not the whole story: check the choice on a longer run."]
    if best.tested:
        reached = _value(best, best.tested)
        tested = [f"On the test set, which had no say in it, {best.title} reaches {reached}."]
        caution = [*tested, *([ASSUMED] if assumes_validation(pilot.base) else []), *caution]
    if len(alive) == 1:
        return best.method, [f"Take {best.title}: it is the only one left.", f"{ahead}.", *caution]
    if not unlike:
        other = alive[1]
        gap = f"{ahead}, {_points(best, other)} over {other.title}, the next"
        sentences = [f"Take {best.title}.", f"{gap}.", *_costs(best, control)]
        if control is not None and control not in (best, other):
            sentences.insert(2, f"Against FedAvg it gains {_points(best, control)}.")
        return best.method, [*sentences, *caution]
    rivals = [best, *unlike]
    names = words.series([s.title for s in rivals])
    told = f"The pilot cannot tell {names} apart: {ahead[0].lower()}{ahead[1:]}, " + words.series(
        [f"{_points(best, s)} over {s.title}" for s in unlike]
    )
    if control in rivals and control is not None:
        advice = "Take FedAvg: nothing was clearly better, and it is the simplest."
        return CONTROL, [
            advice,
            f"{told}.",
            "More seeds, or a larger share of the budget for the pilot, may tell.",
            *caution,
        ]
    cheapest = min(rivals, key=lambda s: (s.cost["bytes"], s.cost["macs"]))
    return "", [
        f"{told}.",
        f"Of these, {cheapest.title} has the cheapest rounds ({_price(cheapest)}).",
        *([f"All of them beat FedAvg, which is at {_value(control, control.score)}."] if control is not None else []),
        "More seeds, or a larger share of the budget for the pilot, may tell.",
        *caution,
    ]


def _rounds(alive: Sequence[Standing]) -> str:
    counts = sorted({s.rounds for s in alive})
    return words.count(counts[0], "round") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} rounds"


def _value(standing: Standing, found: Spread) -> str:
    named = "" if standing.what.share else f"a {standing.what.metric.replace('_', ' ')} of "
    return named + words.figure(standing.what, found.mean)


def _points(best: Standing, other: Standing) -> str:
    """How far it is ahead; of what is no share in its own unit, and of what should be small what it is smaller by."""
    found, what = best.over(other), best.what
    ends = f"{found.pairs} paired seeds"
    if what.share:
        gap = f"{100 * found.value:+.1f} points"
        return f"{gap} (95 % interval {100 * found.low:+.1f} to {100 * found.high:+.1f}, {ends})"
    low, high = sorted((what.sign * found.low, what.sign * found.high))
    return f"{what.sign * found.value:+.3g} (95 % interval {low:+.3g} to {high:+.3g}, {ends})"


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
