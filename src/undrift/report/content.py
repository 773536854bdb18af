"""What the page shows, as plain values ready for JSON: curves, costs, tables, partitions, settings. Draws nothing.

All statistics are worked out here, by the same code as ``undrift compare``; the page only shows them.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from undrift.analysis.comparison import Comparer, Comparison
from undrift.analysis.groups import grouped
from undrift.core.errors import InvalidInput
from undrift.core.figure import Figure
from undrift.data import Partition, heterogeneity
from undrift.experiment.description import SECTIONS, components
from undrift.ledger.history import History
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.report import sentences, table, words

SHOWN_CLIENTS = 100  # columns of a partition picture, and points of a fairness strip


def content(ledger: Ledger, runs: Sequence[Run], *, target: float | None = None, title: str = "") -> dict[str, Any]:
    """Everything on the page about some runs of a ledger."""
    return Reader(ledger).content(runs, target=target, title=title)


class Reader:
    """Reads runs of a ledger again and again; those that have not changed since are not read twice."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._known: dict[int, tuple[Run, History, dict[str, Any]]] = {}
        self._parts: dict[str, Any] = {}

    def _read(self, run: Run) -> tuple[History, dict[str, Any]]:
        known = self._known.get(run.id)
        if known is None or known[0] != run or run.status == "running":
            history = History.of(self.ledger, run)
            self._known[run.id] = run, history, _run(self.ledger, run, history)
        return self._known[run.id][1:]

    def _partitions(self, histories: Sequence[History]) -> dict[str, Any]:
        """Who holds what, by the partition's fingerprint."""
        found: dict[str, Any] = {}
        for history in histories:
            mark = history.facts.get("partition_fingerprint", "")
            if history.facts.get("histogram") is not None and mark not in found:
                found[mark] = self._parts[mark] = self._parts.get(mark) or _partition(history)
        return found

    def content(
        self, runs: Sequence[Run], *, target: float | None = None, title: str = "", coarse: bool = False
    ) -> dict[str, Any]:
        """The content; with ``coarse`` the target moves in steps of 5 %, which is worked out sooner."""
        read = [self._read(run) for run in runs]
        histories = [history for history, _ in read]
        groups, remarks = grouped(histories)
        place = {id(history): i for i, history in enumerate(histories)}
        verdict = _verdict(Comparer(histories), target, coarse) if groups else None
        return {
            "title": title or _title(histories),
            "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "ledger": str(self.ledger.path),
            "warnings": verdict["warnings"] if verdict else [sentences.remark(r) for r in remarks],
            "groups": [
                {
                    "label": g.label,
                    "runs": [place[id(h)] for h in g.runs],
                    "partial": [place[id(h)] for h in g.unfinished],
                }
                for g in groups
            ],
            "runs": [shown for _, shown in read],
            "series": _series(histories),
            "partitions": self._partitions(histories),
            "fairness": _fairness(self.ledger, [(g.label, [runs[place[id(h)]] for h in g.runs]) for g in groups]),
            "settings": _settings(histories),
            "verdict": verdict,
        }


def _title(histories: Sequence[History]) -> str:
    data = list(dict.fromkeys(str(h.facts.get("data", "?")) for h in histories))
    methods = list(dict.fromkeys(h.label for h in histories))
    what = words.series(methods) if 0 < len(methods) <= 4 else f"{len(methods)} methods"
    return f"{what} on {words.series(data)}" if histories else "no runs yet"


# --- the verdict at every target --------------------------------------------------------------------------------------


def _verdict(comparer: Comparer, target: float | None, coarse: bool) -> dict[str, Any]:
    chosen = comparer.at(target)
    best = max(comparer.best(group) for group in comparer.groups)
    targets = {chosen.target} if chosen.target is not None else set()
    if chosen.figure.share:
        fine = [*range(10, 900, 10), *range(900, 1001, 5)]  # per mille: whole per cents, finer near the top
        steps = range(50, 1001, 50) if coarse else fine
        targets |= {step / 1000 for step in steps if step / 1000 <= best + 0.02}
    every = [chosen if t == chosen.target else comparer.at(t) for t in sorted(targets)] or [chosen]
    first, *rest = table.COST_TITLES.values()
    return {
        "metric": chosen.figure.metric,
        "chosen": every.index(chosen),
        "from": sentences.target_source(chosen),
        "baseline": [chosen.is_baseline(row) and len(chosen.rows) > 1 for row in chosen.rows],
        "warnings": [sentences.remark(r) for r in chosen.remarks],
        "columns": [first, table.OWN_MEAN, *rest, "seeds", f"final {chosen.figure.metric}", "best", "rejected"],
        "rows": [table.plain_cells(row) for row in chosen.rows],
        "targets": [_at(c) for c in every],
    }


def _at(found: Comparison) -> dict[str, Any]:
    headline = sentences.headline_of(found)
    return {
        "target": found.target,
        "words": "" if found.target is None else words.target_words(found.target),
        "headline": headline.claim,
        "evidence": headline.detail,
        "verdicts": table.sentences(found)[1:],
        "costs": [table.cost_cells(found, row) for row in found.rows],
    }


# --- runs -------------------------------------------------------------------------------------------------------------


def _run(ledger: Ledger, run: Run, history: History) -> dict[str, Any]:
    rounds = history.rounds
    at = sorted({r for r, *_ in history.metrics})
    where = {r: i for i, r in enumerate(at)}
    figures: dict[str, list[float | None]] = {}
    for r, figure, value in history.metrics:
        figures.setdefault(_figure_name(figure), [None] * len(at))[where[r]] = short(value)
    return {
        "name": run.name,
        "label": history.label,
        "seed": history.seed,
        "status": history.status,
        "message": run.message,
        "planned": history.planned,
        "created": datetime.fromtimestamp(run.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "rounds": [row.round for row in rounds],
        "up": np.cumsum([row.bytes_up for row in rounds], dtype=np.int64).tolist(),
        "down": np.cumsum([row.bytes_down for row in rounds], dtype=np.int64).tolist(),
        "macs": [int(v) for v in np.cumsum([row.macs for row in rounds], dtype=np.int64)],
        "seconds": [short(v) for v in np.cumsum([row.seconds for row in rounds])],
        "participants": [row.participants for row in rounds],
        "rejected": history.rejected,
        "skipped": history.skipped,
        "rejections": [[at_, client, reason] for at_, client, reason in ledger.rejections(run)[:20]],
        "at": at,
        "figures": figures,
        "main": _figure_name(history.main_curve),
        "drift": _columns([row.drift for row in rounds]),
        "notes": _columns([row.notes for row in rounds]),
        "partition": history.facts.get("partition_fingerprint", ""),
        "command": command(history.experiment),
        "typed": str(history.facts.get("command", "")),
        "facts": _facts(history),
    }


def _figure_name(figure: Figure) -> str:
    return f"{figure.metric} of the {figure.model} model on {figure.data}"


def short(value: float | None) -> float | None:
    """Six significant figures, and no number as None: what JSON can hold."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [short(row.get(name)) for row in rows] for name in names}


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


def _series(histories: Sequence[History]) -> list[str]:
    """All labelled figures, the headline ones first."""
    mains = [_figure_name(h.main_curve) for h in histories if h.metrics]
    names = [_figure_name(figure) for h in histories for figure in h.figures]
    return list(dict.fromkeys([*mains, *sorted(names)]))


def _flat(values: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", str(v)) for inner, v in value.items())
        elif key != "own":
            yield key, str(value)


def _settings(histories: Sequence[History]) -> dict[str, Any]:
    """Every setting of every run: those that all share once, the others run by run."""
    rows = [dict(_flat(h.experiment)) | _facts(h) for h in histories]
    names = list(dict.fromkeys(name for row in rows for name in row))
    same = [n for n in names if len({row.get(n) for row in rows}) == 1]
    return {
        "shared": [[n, rows[0][n]] for n in same],
        "names": [n for n in names if n not in same and n != "name"],
        "rows": [[row.get(n, "") for n in names if n not in same and n != "name"] for row in rows],
    }


def command(experiment: Mapping[str, Any]) -> str:
    """The command that repeats a run: every setting that is not a default, named."""
    if experiment.get("own"):
        return ""
    known, parts = components(), ["undrift", "run"]
    for section in SECTIONS:
        values = dict(experiment.get(section, {}))
        name = values.pop("name", "")
        defaults = {s.name: s.default for s in known[section].get(name, ())}
        unnamed = "" in known[section]
        parts += [] if unnamed else [f"--{section}", str(name)]
        prefix = "" if unnamed else f"{section}."
        for key, value in values.items():
            if key in defaults and _plain(value) != _plain(defaults[key]):
                parts += _flag(prefix + key, value)
    defaults = {s.name: s.default for s in known["plan"][""]}
    for key, value in experiment.items():
        if key in defaults and key not in SECTIONS and _plain(value) != _plain(defaults[key]):
            parts += _flag(key, value)
    return shlex.join(parts)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _flag(key: str, value: Any) -> list[str]:
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list | tuple):
        return [f"--{name}", ",".join(map(str, value))]
    return [f"--{name}", str(value)]


# --- who holds what, and how it fares ---------------------------------------------------------------------------------


def _partition(history: History) -> dict[str, Any]:
    histogram = np.array(history.facts["histogram"], np.int64)
    clients = len(histogram)
    shown = np.unique(np.linspace(0, clients - 1, min(clients, SHOWN_CLIENTS)).round().astype(np.int64))
    return {
        "seed": history.seed,
        "title": f"{history.facts.get('data', '')}, {sentences.partition(history)}, seed {history.seed}",
        "clients": clients,
        "shown": shown.tolist(),
        "counts": histogram[shown].tolist(),
        "figures": _heterogeneity(histogram),
    }


def _heterogeneity(histogram: np.ndarray[Any, Any]) -> list[list[str]]:
    """The figures of a partition, from its counts alone."""
    clients, classes = histogram.shape
    labels = np.tile(np.arange(classes), clients).repeat(histogram.reshape(-1))
    offsets = np.concatenate([[0], np.cumsum(histogram.sum(axis=1))])
    found = heterogeneity(Partition(np.arange(len(labels)), offsets), labels, classes)
    return [
        ["samples per client", f"{found.smallest} to {found.largest}, median {found.median:g}"],
        ["class entropy of a client", f"{found.entropy:.2f} of {found.entropy_global:.2f} bits"],
        ["divergence between two clients", f"{found.divergence:.2f} (0 same, 1 disjoint)"],
        ["distance to the whole", f"{found.distance:.2f} (share of samples to move)"],
    ]


def _fairness(ledger: Ledger, groups: Sequence[tuple[str, Sequence[Run]]]) -> list[dict[str, Any]]:
    """How the clients fare on their own test parts, at the latest evaluation, all seeds of a group together."""
    found = []
    for place, (label, runs) in enumerate(groups):
        pooled: dict[str, list[float]] = {}
        rounds: dict[str, int] = {}
        for run in runs:
            for model, (at, accuracies) in sorted(ledger.client_metrics(run).items(), key=_global_first):
                pooled.setdefault(model, []).extend(accuracies.values())
                rounds[model] = at
        for model, values in pooled.items():
            array = np.sort(np.array(values, np.float64))
            array = array[np.isfinite(array)]
            if not len(array):
                continue
            worst = array[: max(1, len(array) // 10)]
            shown = array[np.unique(np.linspace(0, len(array) - 1, min(len(array), 2 * SHOWN_CLIENTS)).astype(int))]
            found.append(
                {
                    "group": place,
                    "label": label if model == "global" else f"{label}, {model} models",
                    "round": rounds[model],
                    "clients": len(array),
                    "mean": short(float(array.mean())),
                    "sd": short(float(array.std())),
                    "worst": short(float(worst.mean())),
                    "quantiles": [short(float(q)) for q in np.quantile(array, [0, 0.25, 0.5, 0.75, 1])],
                    "values": [round(float(v), 4) for v in shown],
                }
            )
    return found


def _global_first(item: tuple[str, Any]) -> tuple[bool, str]:
    return item[0] != "global", item[0]


def check_runs(runs: Sequence[Run], ledger: Ledger) -> None:
    if not runs:
        raise InvalidInput(f"the ledger {ledger.path} holds no runs yet")
