"""Showing runs: the ``show`` command, and what ``run`` and ``resume`` print at the end."""

from __future__ import annotations

import json
import math
import sys
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from undrift.cli.common import DEFAULT_LEDGER, JsonOption, LedgerOption, console, open_ledger, say
from undrift.cli.display import count, size
from undrift.experiment.execute import Result
from undrift.ledger.history import History
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger


def register(app: typer.Typer) -> None:
    app.command()(show)


def show(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Name, number or unique beginning of a run; left out: list all."),
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    as_json: JsonOption = False,
) -> None:
    """Show a run: settings, figures, costs. Without a name: the runs of the ledger."""
    with open_ledger(ledger) as book, book.reading():
        if name is None:
            _list(book, as_json)
            return
        run = book.run(name)
        history = History.of(book, run)
        if as_json:
            print_json(_as_json(history, book, run))
            return
        summary(history, run)
        for at, client, reason in book.rejections(run)[:10]:
            say(f"[yellow]rejected[/] in round {at}: client {escape(client)}: {escape(reason)}")


def _list(book: Ledger, as_json: bool) -> None:
    histories = [History.of(book, run) for run in book.runs()]
    if as_json:
        print_json(
            [
                {
                    "name": h.name,
                    "label": h.label,
                    "seed": h.seed,
                    "status": h.status,
                    "rounds": len(h.rounds),
                    "final": _number(h.final),
                }
                for h in histories
            ]
        )
        return
    table = Table(title=str(book.path), title_justify="left")
    for column in ("run", "method", "seed", "status", "rounds", "final", "best"):
        left = column in ("run", "method", "status")
        # A name is what `undrift show` and `undrift resume` take, so it must be whole.
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    for h in histories:
        table.add_row(
            escape(h.name),
            escape(h.label),
            str(h.seed),
            h.status,
            f"{len(h.rounds)}/{h.planned}",
            _percent(h.final) if h.metrics else "–",
            _percent(h.best) if h.metrics else "–",
        )
    console.print(table)


def announce(result: Result, as_json: bool) -> None:
    assert result.run is not None
    if as_json:
        assert result.ledger is not None
        with Ledger(result.ledger) as book:
            print_json(_as_json(result.history, book, result.run))
        return
    summary(result.history, result.run)
    where = "" if result.ledger == DEFAULT_LEDGER else f" --ledger {result.ledger}"
    name = escape(result.run.name)
    say(f"recorded as [bold]{name}[/] in {escape(str(result.ledger))}; see: undrift show {name}{escape(where)}")


def summary(history: History, run: Run) -> None:
    table = Table(
        title=f"{escape(history.label)}, seed {history.seed} ({history.status})",
        title_justify="left",
        show_header=False,
    )
    table.add_column("what")
    table.add_column("value", justify="right")
    facts, experiment = history.facts, history.experiment
    if facts:
        table.add_row("data", f"{escape(str(facts['data']))} [dim]{facts['data_fingerprint']}[/]")
        split = f"{experiment['partition']['name']}, {facts['clients']} clients, {facts['participate']} per round"
        table.add_row("partition", f"{split} [dim]{facts['partition_fingerprint']}[/]")
        model = f"{experiment['model']['name']}, {facts['parameters']:,} parameters"
        table.add_row("model", f"{model}, {count(facts['macs_forward'])} MACs forward")
    table.add_row("rounds", f"{len(history.rounds)} of {history.planned}")
    for figure in history.figures:
        title = f"{figure.model} model, {figure.metric} on {figure.data}"
        values = [v for v in history.curve(figure)[1] if not math.isnan(v)]
        if not values:
            table.add_row(title, "not a number")
        elif figure.share:
            table.add_row(title, f"{_percent(values[-1])} (best {_percent(max(values))})")
        else:
            table.add_row(title, f"{values[-1]:.4f}")
    table.add_row("bytes up / down", f"{size(history.total('bytes_up'))} / {size(history.total('bytes_down'))}")
    table.add_row("client compute", f"{count(history.total('macs'))} MACs")
    table.add_row("time", f"{history.total('seconds'):.2f} s")
    if "runtime" in facts:
        table.add_row("runtime", escape(f"{facts['runtime']}: {facts.get('runtime_why', 'as asked')}"))
    target = experiment.get("target")
    if target is not None:
        hit = history.reached(float(target))
        cost = f"not reached in {len(history.rounds)} rounds"
        if hit is not None:
            traffic = f"{size(hit.bytes_up)} up, {size(hit.bytes_down)} down"
            cost = f"{hit.rounds} rounds, {traffic}, {count(hit.macs)} MACs, {hit.seconds:.2f} s"
        table.add_row(f"to {100 * float(target):g} %", cost)
    if history.rejected:
        table.add_row("rejected uploads", str(history.rejected))
    if history.skipped:
        table.add_row("skipped rounds", f"{history.skipped} (no upload could be used)")
    console.print(table)


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
        "final": _number(history.final),
        "best": _number(history.best),
        "reached": vars(hit) if hit is not None else None,
        "rounds": [row.plain() for row in history.rounds],
        "metrics": [{"round": at, **vars(figure), "value": value} for at, figure, value in history.metrics],
        "rejections": [dict(zip(("round", "client", "reason"), r, strict=True)) for r in book.rejections(run)],
    }


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value


def _percent(value: float) -> str:
    return "not a number" if math.isnan(value) else f"{100 * value:.1f} %"
