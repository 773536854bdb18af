"""What a comparison says, in words: verdicts, headline, remarks. Takes values, works nothing out.

A sentence names a winner only where the interval leaves chance out; otherwise it says what happened to both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from undrift.analysis.comparison import Comparison, Row
from undrift.analysis.groups import Group, Remark
from undrift.analysis.intervals import Interval
from undrift.analysis.verdict import Verdict, headline, verdicts
from undrift.deploy.timing import Slowest
from undrift.ledger.history import History
from undrift.report import words


@dataclass(frozen=True)
class Sentence:
    """A conclusion: what happened, what may be made of it, and on which evidence."""

    lead: str
    finding: str = ""
    evidence: tuple[str, ...] = ()

    @property
    def claim(self) -> str:
        return self.lead + (f": {self.finding}" if self.finding else "") + "."

    @property
    def detail(self) -> str:
        return "; ".join(self.evidence)

    def __str__(self) -> str:
        return self.claim if not self.evidence else f"{self.claim[:-1]} ({self.detail})."


def concluded(found: Comparison) -> list[Sentence]:
    """What may be concluded, headline first, each sentence once."""
    first = headline_of(found)
    rest = [sentence for verdict in verdicts(found) if (sentence := said(verdict)) != first]
    return [first, *rest]


def headline_of(found: Comparison) -> Sentence:
    return said(headline(found))


def said(verdict: Verdict) -> Sentence:
    """A verdict as a sentence."""
    return _SAID[verdict.kind](verdict)


def _ended(row: Row) -> str:
    value = words.figure(row.group.figure, row.final.mean)
    return value if row.group.figure.share else f"a {row.group.figure.metric} of {value}"


def _stands(row: Row) -> str:
    """A run that has not finished has not ended anywhere."""
    return "ended at" if all(run.status == "finished" for run in row.group.runs) else "is at"


def _goal(verdict: Verdict) -> str:
    return words.target_words(verdict.target or 0, verdict.row.group.figure)


def _reached(verdict: Verdict) -> str:
    """That it reached the target, when, and what became of it."""
    return f"{verdict.row.label} reached {_goal(verdict)} in {words.count(verdict.row.rounds or 0, 'round')}"


def _closing(verdict: Verdict) -> str:
    """What happened after the target, where that is not the same story."""
    if verdict.fell:
        return f", then fell to {_ended(verdict.row)}"
    if verdict.ended_worse and verdict.row.gain is not None:
        return f", but ended at {_ended(verdict.row)}, {_difference(verdict.row, verdict.row.gain.value)}"
    return ""


def _alone(verdict: Verdict) -> Sentence:
    row, played = verdict.row, words.count(verdict.row.group.rounds, "round")
    ended = f"{_stands(row)} {_ended(row)} after {played}"
    if not row.costs or verdict.target is None:
        return Sentence(f"{row.label} {ended}")
    if row.rounds is None:
        return Sentence(f"{row.label} {ended}; it did not reach {_goal(verdict)}")
    if verdict.fell:
        return Sentence(f"{_reached(verdict)}, then fell: it {ended}")
    return Sentence(f"{_reached(verdict)} and {ended}")


def _diverged(verdict: Verdict) -> Sentence:
    row, base, ill = verdict.row, verdict.base, verdict.row.diverged
    seeds = len(row.group.runs)
    often = "" if seeds == 1 else f" in all {seeds} seeds" if len(ill) == seeds else f" in {len(ill)} of {seeds} seeds"
    first = min(ill, key=lambda h: h.since or 0)
    since = f"{first.reason} from round {first.since} on" if first.since else first.reason
    ended = f"it ended at {_ended(row)}"
    if row is not base and row.group.figure == base.group.figure:
        ended += f", {base.label} at {words.figure(base.group.figure, base.final.mean)}"
    return Sentence(f"{row.label} diverged{often}", "", (since, ended))


def _other_figure(verdict: Verdict) -> Sentence:
    row = verdict.row
    ended = f"{row.label} ended at {words.figure(row.group.figure, row.final.mean)} {row.group.figure.words}"
    return Sentence(ended, f"another figure than {verdict.base.label}'s, not compared")


def _missed(verdict: Verdict) -> Sentence:
    lead = f"{_did_not(verdict)}, {verdict.base.label} did in {words.rounds(verdict.base.rounds or 0)}"
    return Sentence(lead + _traffic(verdict), "", _compute(verdict))


def _ahead(verdict: Verdict) -> Sentence:
    lead = f"{_reached(verdict)}, {verdict.base.label} did not in {verdict.base.group.rounds}"
    lead += _closing(verdict) + _traffic(verdict)
    gain = verdict.row.gain
    if gain is None or math.isnan(gain.value):
        return Sentence(lead, "", _compute(verdict))
    return _judged(verdict, lead, gain, f"at the end {_gain_range(verdict.row, gain)}")


def _unpaired(verdict: Verdict) -> Sentence:
    lead = f"{_reached(verdict)}, {verdict.base.label} in {words.rounds(verdict.base.rounds or 0)}{_closing(verdict)}"
    return Sentence(lead, "on other seeds, so they are not compared", _compute(verdict))


def _ratio(verdict: Verdict) -> Sentence:
    found = verdict.interval
    assert found is not None
    speed = f"{verdict.base.label} in {words.rounds(verdict.base.rounds or 0)}"
    if found.clear(1):
        how = f"{found.value:.2f} times sooner" if found.value > 1 else f"{1 / found.value:.2f} times later"
        speed = f"{how} than {verdict.base.label}"
    lead = f"{_reached(verdict)}, {speed}{_closing(verdict)}{_traffic(verdict)}"
    return _judged(verdict, lead, found, f"95 % interval {_ratio_range(found)}", 1)


def _neither(verdict: Verdict) -> Sentence:
    return _by_end(verdict, f"{_did_not(verdict)}, nor did {verdict.base.label}; it ended at")


def _gain(verdict: Verdict) -> Sentence:
    return _by_end(verdict, f"{verdict.row.label} ended at")


def _by_end(verdict: Verdict, opening: str) -> Sentence:
    row, gain = verdict.row, verdict.row.gain
    if gain is None or math.isnan(gain.value):
        return Sentence(f"{opening} {_ended(row)}", f"not comparable with {verdict.base.label}", _compute(verdict))
    difference = f"{_difference(row, gain.value)} against {verdict.base.label}"
    if gain.measured and not gain.clear(0):
        difference = f"{verdict.base.label} at {words.figure(row.group.figure, verdict.base.final.mean)}"
    return _judged(verdict, f"{opening} {_ended(row)}, {difference}{_traffic(verdict)}", gain, _gain_range(row, gain))


def _none_sooner(verdict: Verdict) -> Sentence:
    reached = f"reached {_goal(verdict)} in {words.count(verdict.base.rounds or 0, 'round')}"
    return Sentence(f"None of the others was clearly sooner than {verdict.base.label}, which {reached}")


def _none_better(verdict: Verdict) -> Sentence:
    return Sentence(
        f"None of the others ended clearly better than {verdict.base.label}, which ended at {_ended(verdict.base)}"
    )


def _apart(verdict: Verdict) -> Sentence:
    groups = [part.row.group for part in verdict.parts]
    told = zip(scenes(groups), verdict.parts, strict=True)
    text = "; ".join(f"on {scene}, {said(part).claim[:-1]}" for scene, part in told)
    return Sentence(text[0].upper() + text[1:])


def scenes(groups: list[Group]) -> list[str]:
    """What the groups' data and partitions are called: the data, and the partition where it differs."""
    firsts = [group.runs[0] for group in groups]
    data = [str(run.facts.get("data", "other data")) for run in firsts]
    return (
        data if len(set(data)) == len(data) else [f"{d}, {partition(run)}" for d, run in zip(data, firsts, strict=True)]
    )


_SAID = {
    "alone": _alone,
    "diverged": _diverged,
    "other figure": _other_figure,
    "gain": _gain,
    "neither": _neither,
    "missed": _missed,
    "ahead": _ahead,
    "unpaired": _unpaired,
    "ratio": _ratio,
    "none sooner": _none_sooner,
    "none better": _none_better,
    "apart": _apart,
}


# --- their parts ------------------------------------------------------------------------------------------------------


def _did_not(verdict: Verdict) -> str:
    played = words.count(verdict.row.group.rounds, "round")
    return f"{verdict.row.label} did not reach {_goal(verdict)} in {played}"


def _traffic(verdict: Verdict) -> str:
    share = verdict.per_round("bytes_up", "bytes_down")
    return "" if share is None else f", at {_share(share, 'traffic')}"


def _compute(verdict: Verdict) -> tuple[str, ...]:
    share = verdict.per_round("macs")
    return () if share is None else (_share(share, "client compute"),)


def _share(share: float, what: str) -> str:
    return f"equal {what} per round" if abs(share - 1) < 0.02 else f"{share:.1f} times the {what} per round"


def _ratio_range(ratio: Interval) -> str:
    """From where to where a ratio goes; without end where one of the two does not always reach the target."""
    if ratio.low == 0 and math.isinf(ratio.high):
        return "without bounds"
    if ratio.low == 0:
        return f"up to {words.times(ratio.high)}"
    if math.isinf(ratio.high):
        return f"from {words.times(ratio.low)} up"
    return f"{words.times(ratio.low)} to {words.times(ratio.high)}"


def _difference(row: Row, value: float) -> str:
    return f"{100 * value:+.3g} points" if row.group.figure.share else f"{value:+.3g}"


def _gain_range(row: Row, gain: Interval) -> str:
    scale, unit = (100, " points") if row.group.figure.share else (1, "")
    return f"95 % interval {scale * gain.low:+.3g} to {scale * gain.high:+.3g}{unit}"


def _judged(verdict: Verdict, lead: str, found: Interval, interval: str, neutral: float = 0) -> Sentence:
    """The lead with what the interval allows to be said about it."""
    aside = _compute(verdict)
    if found.pairs == 1:
        return Sentence(lead, "", ("one seed: chance is not measured", *aside))
    if not found.measured:
        return Sentence(lead, "", (f"{found.pairs} seeds: too few to tell it from chance", *aside))
    evidence = (f"{interval}, {found.pairs} paired seeds", *aside)
    return Sentence(lead, "" if found.clear(neutral) else "no clear difference", evidence)


# --- remarks ----------------------------------------------------------------------------------------------------------


def remark(found: Remark) -> str:
    """What a reader must know about some runs."""
    names = [run.name or found.label for run in found.runs]
    first = found.runs[0] if found.runs else None
    match found.kind:
        case "repeated":
            return f"{names[0]} is left out: it repeats seed {first.seed if first else ''} of {found.label}"
        case "not begun":
            return f"{names[0]} is left out: it has no evaluated round yet ({first.status if first else ''})"
        case "left out":
            listed = ", ".join(
                f"{n} ({r.status}, round {len(r.rounds)})" for n, r in zip(names, found.runs, strict=True)
            )
            return f"{found.label}: the figures are of the finished runs, without {listed}"
        case "unfinished":
            return f"{found.label}: no run is finished ({progress(found.runs)}); the figures are of the rounds so far"
        case "scenes":
            return "these runs are on different data or partitions: they stand side by side and are not compared"
        case "lengths":
            counts = ", ".join(map(str, found.numbers))
            return f"the runs have different numbers of rounds ({counts}): final accuracies are not at equal cost"
        case "gaps":
            return f"{names[0]}: {found.numbers[0]} of {found.numbers[1]} evaluations gave no number"
        case "other figure":
            return (
                f"{found.label} is judged by the {Group(found.label, '', found.runs).figure.words}: it is not compared"
            )
        case "no classes":
            return "these data have no classes: there is a loss, no accuracy, and so no target to reach"


def progress(runs: Sequence[History]) -> str:
    """How far runs are that have not finished; nothing where all have."""
    open_ = [run for run in runs if run.status != "finished"]
    said = dict.fromkeys(f"{run.status} at round {len(run.rounds)} of {run.planned}" for run in open_)
    return ", ".join(said)


def partition(history: History) -> str:
    """Who holds what, in a few words: ``dirichlet (alpha 0.1)``."""
    section = dict(history.experiment.get("partition", {}))
    name = str(section.pop("name", ""))
    inner = ", ".join(f"{words.key(k)} {v}" for k, v in section.items() if v is not None and v is not False)
    return f"{name} ({inner})" if inner else name


def target_source(found: Comparison) -> str:
    """Who chose the target; nothing where the reader did."""
    if found.source == "runs":
        return "the target of the runs"
    if found.source == "baseline":
        return f"what {next(iter(found.baselines.values()))} reached, rounded down"
    return ""


def slowest(found: Slowest) -> str:
    """Which site the others waited for, and what it was busy with."""
    spans = (("training", found.median.worked), ("network", found.median.network), ("waiting", found.median.waited))
    spent = ", ".join(f"{what} {words.duration(seconds)}" for what, seconds in spans)
    return f"{found.site} was the last in {found.times} of {found.rounds} rounds (median: {spent})"
