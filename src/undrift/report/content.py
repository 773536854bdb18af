"""What the page shows, as plain values ready for JSON: curves, costs, tables, partitions, settings. Draws nothing.

All statistics are worked out by the same code as ``undrift compare``; the page gets numbers and makes their texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from undrift.analysis.comparison import Comparer, Comparison, CostToTarget, Row
from undrift.analysis.groups import grouped
from undrift.analysis.intervals import Spread
from undrift.analysis.verdict import verdict
from undrift.core.errors import InvalidInput
from undrift.core.figure import Figure
from undrift.deploy import timing
from undrift.ledger.history import COSTS, History
from undrift.ledger.rows import RoundRow, Run
from undrift.ledger.store import Ledger
from undrift.report import sentences, words
from undrift.report.clients import Scores, fairness, holdings
from undrift.report.command import command
from undrift.report.export import column
from undrift.report.numbers import short

COLUMNS = tuple(name for name in RoundRow.COLUMNS if name not in ("round", "drift", "notes"))
REJECTIONS = 20  # that are listed of each run


def content(ledger: Ledger, runs: Sequence[Run], *, target: float | None = None, title: str = "") -> dict[str, Any]:
    """Everything on the page about some runs of a ledger."""
    return Reader(ledger).content(runs, target=target, title=title)


def nothing(path: Path) -> dict[str, Any]:
    """The content of a page about no runs."""
    return {
        "title": "no runs yet",
        "made": _now(),
        "ledger": str(path),
        "trouble": "",
        "warnings": [],
        "groups": [],
        "runs": [],
        "figures": [],
        "partitions": {},
        "fairness": [],
        "settings": {"shared": [], "names": [], "rows": []},
        "notes": {},
        "verdict": None,
    }


def explained(error: Exception) -> str:
    return str(error) if isinstance(error, InvalidInput) else f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Read:
    """All that the page shows of one run, as it was at one moment."""

    run: Run
    history: History
    rejections: Sequence[tuple[int, str, str]]
    scores: Scores

    @classmethod
    def of(cls, ledger: Ledger, run: Run) -> Read:
        with ledger.reading():
            return cls(run, History.of(ledger, run), ledger.rejections(run)[:REJECTIONS], ledger.client_metrics(run))


class Reader:
    """Reads runs of a ledger again and again; those that have not changed since are not read twice.

    A ``forgiving`` reader leaves out a run that cannot be read, says so, and tries it again the next time.
    """

    def __init__(self, ledger: Ledger, *, forgiving: bool = False) -> None:
        self.ledger, self.forgiving = ledger, forgiving
        self._known: dict[int, Read] = {}
        self._shown: dict[int, tuple[Read, list[Figure], dict[str, Any]]] = {}
        self._parts: dict[str, Any] = {}

    def _read(self, runs: Sequence[Run]) -> tuple[list[Read], list[str]]:
        """The runs with all that belongs to them, and what could not be read."""
        found, troubles = [], []
        for run in runs:
            known = self._known.get(run.id)
            try:
                if known is None or known.run != run or run.status == "running":
                    self._known[run.id] = Read.of(self.ledger, run)
                found.append(self._known[run.id])
            except Exception as error:
                if not self.forgiving:
                    raise
                self._known.pop(run.id, None)
                troubles.append(f"{run.name} could not be read ({explained(error)}); it is tried again")
        return found, troubles

    def _run(self, read: Read, figures: list[Figure]) -> dict[str, Any]:
        known = self._shown.get(read.run.id)
        if known is None or known[0] is not read or known[1] != figures:
            known = self._shown[read.run.id] = read, figures, _run(read, figures)
        return known[2]

    def _partitions(self, histories: Sequence[History]) -> dict[str, Any]:
        """Who holds what, by the partition's fingerprint."""
        found: dict[str, Any] = {}
        for history in histories:
            mark = history.facts.get("partition_fingerprint", "")
            if history.facts.get("histogram") is not None and mark not in found:
                found[mark] = self._parts[mark] = self._parts.get(mark) or holdings(history)
        return found

    def content(
        self, runs: Sequence[Run], *, target: float | None = None, title: str = "", coarse: bool = False
    ) -> dict[str, Any]:
        """The content; with ``coarse`` the target moves in steps of 5 %, which is worked out sooner."""
        with self.ledger.reading():
            read, troubles = self._read(runs)
        histories = [one.history for one in read]
        groups, remarks = grouped(histories)
        place = {id(history): i for i, history in enumerate(histories)}
        figures = _figures(histories)
        comparer = Comparer(histories) if groups else None
        members = [(g.label, [read[place[id(h)]] for h in g.runs]) for g in groups]
        return nothing(self.ledger.path) | {
            "title": title or _title(histories, [group.label for group in groups]),
            "trouble": "; ".join(troubles),
            "warnings": [sentences.remark(r) for r in (comparer.remarks if comparer else remarks)],
            "groups": [
                {
                    "label": g.label,
                    "state": sentences.progress(g.runs),
                    "runs": [place[id(h)] for h in g.runs],
                    "partial": [place[id(h)] for h in g.unfinished],
                }
                for g in groups
            ],
            "runs": [self._run(one, figures) for one in read],
            "figures": [_figure(figure, histories) for figure in figures],
            "partitions": self._partitions(histories),
            "fairness": fairness([(label, [(one.run, one.scores) for one in some]) for label, some in members]),
            "settings": _settings(histories),
            "notes": _own_notes(histories),
            "verdict": _verdict(comparer, figures, target, coarse) if comparer else None,
        }


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _title(histories: Sequence[History], labels: Sequence[str]) -> str:
    data = list(dict.fromkeys(str(h.facts.get("data", "?")) for h in histories))
    methods = list(labels or dict.fromkeys(h.label for h in histories))
    what = words.series(methods) if 0 < len(methods) <= 4 else f"{len(methods)} methods"
    return f"{what} on {words.series(data)}" if histories else "no runs yet"


def _figures(histories: Sequence[History]) -> list[Figure]:
    """All that was evaluated, the headline figures first."""
    mains = [h.main_curve for h in histories if h.metrics]
    return list(dict.fromkeys([*mains, *sorted(figure for h in histories for figure in h.figures)]))


def _figure(figure: Figure, histories: Sequence[History]) -> dict[str, Any]:
    named = {words.metric(figure, h.facts) for h in histories if figure in h.figures}
    metric = named.pop() if len(named) == 1 else figure.metric
    return {
        "words": f"{metric} of the {figure.model} model on {figure.place}",
        "column": column(figure),
        "metric": figure.metric,
        "share": figure.share,
        "better": figure.better,
    }


# --- the verdict at every target --------------------------------------------------------------------------------------


def _verdict(comparer: Comparer, figures: Sequence[Figure], target: float | None, coarse: bool) -> dict[str, Any]:
    chosen = comparer.at(target)
    best = max(comparer.best(group) for group in comparer.groups)
    targets = {chosen.target} if chosen.target is not None else set()
    if chosen.target is not None and chosen.figure.share:
        fine = [*range(10, 900, 10), *range(900, 1001, 5)]  # per mille: whole per cents, finer near the top
        steps = range(50, 1001, 50) if coarse else fine
        targets |= {step / 1000 for step in steps if step / 1000 <= best + 0.02}
    every = [chosen if t == chosen.target else comparer.at(t) for t in sorted(targets)] or [chosen]
    return {
        "figure": figures.index(chosen.figure),
        "chosen": every.index(chosen),
        "from": sentences.target_source(chosen),
        "columns": list(COSTS),
        "rows": [_row(chosen, row, figures) for row in chosen.rows],
        "targets": [_at(found) for found in every],
    }


def _row(found: Comparison, row: Row, figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "baseline": found.is_baseline(row) and len(found.rows) > 1,
        "figure": figures.index(row.group.figure),
        "other": row.group.figure != found.figure,
        "seeds": len(row.group.runs),
        "rounds": row.group.rounds,
        "final": _spread(row.final),
        "best": _spread(row.best),
        "rejected": row.rejected,
        "skipped": row.skipped,
        "diverged": len(row.diverged),
    }


def _spread(found: Spread) -> dict[str, Any]:
    gaps = sum(short(value) is None for value in found.values)
    return {"mean": short(found.mean), "sd": short(found.sd), "gaps": gaps}


def _at(found: Comparison) -> dict[str, Any]:
    first, *rest = sentences.concluded(found)
    ranked = found.ranked
    return {
        "target": found.target,
        "headline": first.claim,
        "evidence": first.detail,
        "verdicts": [str(sentence) for sentence in rest],
        "costs": [_costs(found, row) for row in found.rows],
        "ranks": [ranked.index(row) for row in found.rows],
    }


def _costs(found: Comparison, row: Row) -> dict[str, Any]:
    judged = verdict(found, row)
    praised = not (judged.fell or judged.ended_worse or row.diverged)
    return {name: _cost(cost, praised) for name, cost in row.costs.items()}


def _cost(found: CostToTarget, praised: bool) -> dict[str, Any]:
    """``standing`` colours the ratio: only what is more than chance, and never what did not last."""
    ratio = found.ratio
    standing = "" if ratio is None or not ratio.clear(1) else "better" if ratio.low > 1 else "worse"
    return {
        "value": short(found.value),
        "own": short(found.per_seed_mean),
        "reached": found.reached,
        "compared": ratio is not None,
        "ratio": None if ratio is None else short(ratio.value),  # None too where it has no bound
        "standing": standing if praised or standing == "worse" else "",
    }


# --- runs -------------------------------------------------------------------------------------------------------------


def _run(read: Read, figures: Sequence[Figure]) -> dict[str, Any]:
    run, history, rounds = read.run, read.history, read.history.rounds
    at = sorted({r for r, *_ in history.metrics})
    where = {r: i for i, r in enumerate(at)}
    number = {figure: i for i, figure in enumerate(figures)}
    values: dict[int, list[float | None]] = {}
    for r, figure, value in history.metrics:
        values.setdefault(number[figure], [None] * len(at))[where[r]] = short(value)
    return {
        "name": run.name,
        "label": history.label,
        "seed": history.seed,
        "status": history.status,
        "message": run.message,
        "planned": history.planned,
        "created": datetime.fromtimestamp(run.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "rounds": [row.round for row in rounds],
        "costs": {name: [_number(getattr(row, name)) for row in rounds] for name in COLUMNS},
        "rejected": history.rejected,
        "skipped": history.skipped,
        "rejections": [list(one) for one in read.rejections],
        "at": at,
        "values": values,
        "main": number.get(history.main_curve),
        "drift": _series([row.drift for row in rounds]),
        "notes": _series([row.notes for row in rounds]),
        "timeline": _timeline(rounds),
        "slowest": sentences.slowest(late) if (late := timing.slowest([row.notes for row in rounds])) else "",
        "partition": history.facts.get("partition_fingerprint", ""),
        "command": command(history.experiment),
        "typed": str(history.facts.get("command", "")),
    }


def _timeline(rounds: Sequence[RoundRow]) -> list[dict[str, str]]:
    """The sites of a federation, and which notes have their seconds; nothing for a simulation."""
    sites = sorted({line.site for row in rounds for line in timing.lines(row.notes)})
    return [{"site": site, **{part: timing.name(part, site) for part in timing.PARTS}} for site in sites]


def _own_notes(histories: Sequence[History]) -> dict[str, str]:
    """What the methods' own series are called; seconds of single sites belong to the time line."""
    names = dict.fromkeys(name for h in histories for row in h.rounds for name in row.notes)
    timed = {name for h in histories for line in _timeline(h.rounds) for name in line.values()}
    return {name: words.note(name) for name in names if name not in timed}


def _number(value: float) -> float | int | None:
    return value if isinstance(value, int) else short(value)


def _series(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [short(row.get(name)) for row in rows] for name in names}


# --- settings ---------------------------------------------------------------------------------------------------------


def _facts(history: History) -> dict[str, str]:
    facts, versions = history.facts, history.facts.get("versions", {})
    known = {
        "data fingerprint": facts.get("data_fingerprint"),
        "partition fingerprint": facts.get("partition_fingerprint"),
        "initial model fingerprint": facts.get("start_fingerprint"),
        "parameters": facts.get("parameters"),
        "clients": facts.get("clients"),
        "clients per round": facts.get("participate"),
        "runtime": facts.get("runtime"),
        **{f"{name} version": version for name, version in versions.items()},
    }
    return {name: str(value) for name, value in known.items() if value is not None}


_SAID_BY_FACTS = ("clients", "participate", "own", "name", "runtime")  # what was asked for; the facts say what came


def _flat(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Settings as people read them; what was left to its default, and has none to show, is not there."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from ((words.setting(inner, key), words.value(v)) for inner, v in value.items() if v is not None)
        elif key not in _SAID_BY_FACTS and value is not None:
            yield words.setting(key), words.value(value)


def _settings(histories: Sequence[History]) -> dict[str, Any]:
    """Every setting of every run: those that all share once, the others run by run."""
    rows = [dict(_flat(h.experiment)) | _facts(h) for h in histories]
    names = list(dict.fromkeys(name for row in rows for name in row))
    same = [n for n in names if len({row.get(n) for row in rows}) == 1]
    return {
        "shared": [[n, rows[0][n]] for n in same],
        "names": [n for n in names if n not in same],
        "rows": [[row.get(n, "") for n in names if n not in same] for row in rows],
    }
