"""Showing runs: the ``show`` command, and what ``run`` and ``resume`` print at the end."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from undrift.analysis.selection import selected
from undrift.cli.common import DEFAULT_LEDGER, JsonOption, LedgerOption, console, open_ledger, say
from undrift.core.figure import Figure
from undrift.deploy import timing
from undrift.experiment.execute import Result
from undrift.experiment.limit import TIME, Limit
from undrift.ledger.history import History
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.report import sentences, words
from undrift.report.clients import fared
from undrift.report.numbers import short, valid

NAMED = 3  # clients that are named as those that fare worst


def register(app: typer.Typer) -> None:
    app.command()(show)


def show(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Name, number or beginning of a run; of a comparison, or with '*', a list; left out: all runs.",
        ),
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    as_json: JsonOption = False,
) -> None:
    """Show a run: settings, figures, costs. Without a name: the runs of the ledger."""
    with open_ledger(ledger) as book, book.reading():
        runs = selected(book, names) if names else book.runs()
        if not names or len(runs) > 1:
            _list(book, runs, as_json)
            return
        (run,) = runs
        history = History.of(book, run)
        if as_json:
            print_json(_as_json(history, book, run))
            return
        summary(history, run, _lowest(book, run))
        for at, client, reason in book.rejections(run)[:10]:
            say(f"[yellow]rejected[/] in round {at}: client {escape(client)}: {escape(reason)}")


def _list(book: Ledger, runs: Sequence[Run], as_json: bool) -> None:
    histories = [History.of(book, run) for run in runs]
    if as_json:
        print_json([_brief(history) for history in histories])
        return
    table = Table(title=str(book.path), title_justify="left")
    for column in ("run", "method", "seed", "status", "rounds", "final", "best"):
        left = column in ("run", "method", "status")
        # A name is what `undrift show` and `undrift resume` take, so it must be whole.
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for h in histories:
        last = [_value(h.main_curve, v) for v in (h.final, h.best)] if h.metrics else ["–", "–"]
        table.add_row(escape(h.name), escape(h.label), str(h.seed), h.status, f"{len(h.rounds)}/{h.planned}", *last)
    console.print(table)


def _brief(history: History) -> dict[str, Any]:
    return {
        "name": history.name,
        "label": history.label,
        "seed": history.seed,
        "status": history.status,
        "rounds": len(history.rounds),
        "figure": vars(history.main_curve) if history.metrics else None,
        "final": short(history.final),
    }


def _value(figure: Figure, value: float) -> str:
    """A value of a figure; what is no accuracy says what it is."""
    if math.isnan(value):
        return "not a number"
    return words.figure(figure, value) if figure.share else f"{figure.metric} {words.figure(figure, value)}"


def announce(result: Result, as_json: bool) -> None:
    assert result.run is not None
    assert result.ledger is not None
    with Ledger(result.ledger) as book, book.reading():
        if as_json:
            print_json(_as_json(result.history, book, result.run))
            return
        summary(result.history, result.run, _lowest(book, result.run))
    where = "" if result.ledger == DEFAULT_LEDGER else f" --ledger {result.ledger}"
    name = escape(result.run.name)
    say(f"recorded as [bold]{name}[/] in {escape(str(result.ledger))}; see: undrift show {name}{escape(where)}")


def _lowest(book: Ledger, run: Run) -> dict[str, str]:
    """Who fares worst under which model."""
    found = {one.model: one.lowest(NAMED) for one in fared([(run, book.client_metrics(run))])}
    return {model: ", ".join(f"{name} {words.percent(v)}" for name, v in low) for model, low in found.items()}


def summary(history: History, run: Run, lowest: dict[str, str] | None = None) -> None:
    table = Table(
        title=f"{escape(history.label)}, seed {history.seed} ({history.status})",
        title_justify="left",
        show_header=False,
    )
    table.add_column("what")
    table.add_column("value", justify="right")
    rows = [*_setting(history), *_figures(history)]
    rows += [(f"{model} model, lowest of the clients", escape(said)) for model, said in (lowest or {}).items()]
    for what, value in [*rows, *_costs(history)]:
        table.add_row(what, value)
    console.print(table)


def _setting(history: History) -> list[tuple[str, str]]:
    facts, experiment = history.facts, history.experiment
    played = ("rounds", f"{len(history.rounds)} of {history.planned}")
    if not facts:
        return [played]
    split = f"{experiment['partition']['name']}, {facts['clients']} clients, {facts['participate']} per round"
    model = f"{experiment['model']['name']}, {facts['parameters']:,} parameters"
    return [
        ("data", f"{escape(str(facts['data']))} [dim]{facts['data_fingerprint']}[/]"),
        ("partition", f"{split} [dim]{facts['partition_fingerprint']}[/]"),
        ("model", f"{model}, {words.operations(facts['macs_forward'])} forward"),
        played,
    ]


def _figures(history: History) -> list[tuple[str, str]]:
    found = []
    for figure in history.figures:
        values = [v for v in history.curve(figure)[1] if not math.isnan(v)]
        said = words.figure(figure, values[-1]) if values else "not a number"
        best = (min if figure.better == "lower" else max)(values, default=math.nan)
        if values and figure == history.main_curve:
            said += f" (best {words.figure(figure, best)})"
        found.append((f"{figure.model} model, {words.metric(figure, history.facts)} on {figure.place}", said))
    return found


def _costs(history: History) -> list[tuple[str, str]]:
    up, down = (words.data_size(history.total(column)) for column in ("bytes_up", "bytes_down"))
    facts, target = history.facts, history.experiment.get("target")
    found = [
        ("bytes up / down", f"{up} / {down}"),
        ("client compute", words.operations(history.total("macs"))),
        ("time", words.duration(history.total("seconds"))),
    ]
    late = timing.slowest([row.notes for row in history.rounds])
    if late is not None:
        found.append(("slowest site", escape(sentences.slowest(late))))
    if "runtime" in facts:
        found.append(("runtime", escape(f"{facts['runtime']}: {facts.get('runtime_why', 'as asked')}")))
    limit = Limit.parse(str(history.experiment.get("limit", "")))
    for name, used in limit.used(history.rounds).items():
        unit = "seconds" if name == TIME else name
        title = "simulated time" if name == TIME else name
        found.append(
            (f"{title} used of the limit", f"{words.cost(unit, used)} of {words.cost(unit, limit.amounts[name])}")
        )
    if target is not None:
        found.append(
            (f"to {words.target_words(float(target), history.main_curve)}", _to_target(history, float(target)))
        )
    if history.rejected:
        found.append(("rejected uploads", str(history.rejected)))
    if history.skipped:
        found.append(("skipped rounds", f"{history.skipped} (no upload could be used)"))
    return found


def _to_target(history: History, target: float) -> str:
    hit = history.reached(target)
    if hit is None:
        return f"not reached in {words.count(len(history.rounds), 'round')}"
    traffic = f"{words.data_size(hit.bytes_up)} up, {words.data_size(hit.bytes_down)} down"
    spent = f"{words.operations(hit.macs)}, {words.duration(hit.seconds)}"
    return f"{words.count(hit.rounds, 'round')}, {traffic}, {spent}"


def _as_json(history: History, book: Ledger, run: Run) -> dict[str, Any]:
    target = history.experiment.get("target")
    hit = history.reached(float(target)) if target is not None else None
    return {
        "name": run.name,
        "label": history.label,
        "seed": history.seed,
        "status": history.status,
        "experiment": history.experiment,
        "facts": history.facts,
        "figure": vars(history.main_curve) if history.metrics else None,
        "final": short(history.final),
        "best": short(history.best),
        "reached": vars(hit) if hit is not None else None,
        "rounds": [row.plain() for row in history.rounds],
        "metrics": [{"round": at, **vars(figure), "value": value} for at, figure, value in history.metrics],
        "rejections": [dict(zip(("round", "client", "reason"), r, strict=True)) for r in book.rejections(run)],
    }


def print_json(value: Any) -> None:
    """JSON that every reader takes: what is no number is null."""
    sys.stdout.write(json.dumps(valid(value), indent=2, default=str, allow_nan=False) + "\n")
