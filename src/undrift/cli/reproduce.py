"""The command that runs the papers' tables: reproduce."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table as Drawn
from rich.text import Text

from undrift.cli.common import (
    DEFAULT_LEDGER,
    LedgerOption,
    QuietOption,
    RootOption,
    command_line,
    console,
    errors,
    say,
)
from undrift.cli.display import watching
from undrift.cli.ending import UNWELL
from undrift.cli.seeing import ForceOption, allowed
from undrift.cli.studies import WorkersOption, interruptible
from undrift.core.errors import InvalidInput
from undrift.papers import Paper, Table, papers, table
from undrift.papers.records import recorded
from undrift.report import reproduced as said
from undrift.report import words
from undrift.studies.jobs import Place
from undrift.studies.reproduce import Reproduced, from_records
from undrift.studies.reproduce import reproduce as run_table
from undrift.studies.scene import seeds_of

LIMIT = 48 * 3600.0  # seconds; what takes longer is said to


def register(app: typer.Typer) -> None:
    app.command()(reproduce)


def reproduce(
    reference: Annotated[
        str | None,
        typer.Argument(metavar="[PAPER[/TABLE]]", help="As fedtrip/table4. Left out: list all; a paper: list its own."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Seeds: 1..10 or 1,2,3. Left out: as many as the paper has trials.")
    ] = None,
    columns: Annotated[str | None, typer.Option("--columns", help="Some columns, with commas: mlp-mnist.")] = None,
    methods: Annotated[str | None, typer.Option("--methods", help="Some methods, with commas: FedTrip,FedAvg.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A cut-down of a few minutes; it says what is cut.")] = False,
    shipped: Annotated[bool, typer.Option("--recorded", help="Show the result that is shipped; run nothing.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A page with the table and figures, .html.")] = (
        None
    ),
    workers: WorkersOption = None,
    runtime: Annotated[
        str, typer.Option("--runtime", help="Where runs are played; ray spreads them over a cluster.")
    ] = "serial",
    ray_address: Annotated[
        str | None,
        typer.Option("--ray-address", help="The cluster: auto or HOST:PORT; left out: this machine's cores."),
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a table of a paper and put it beside what is printed. Without a name: list the tables.

    undrift reproduce fedtrip/table4 --columns mlp-mnist --seeds 1..10

    A table that was stopped goes on with the same command. Three numbers a cell: printed, measured with its 95 %
    interval, and whether they agree.
    """
    if reference is None or "/" not in reference:
        _list(_paper(reference))
        return
    asked = table(reference)
    some = columns.split(",") if columns else []
    if output is not None:
        if output.suffix != ".html":
            raise InvalidInput(f"{output}: the page is written as .html")
        force = allowed(output, force)
    if shipped:
        found = _shipped(asked, some)
    else:
        chosen = seeds_of(seeds or f"1..{max(asked.trials, 2)}")
        only = methods.split(",") if methods else []
        with interruptible(command_line()), watching(quiet, None) as observer:
            found = run_table(
                asked,
                Place(ledger, root),
                seeds=chosen,
                columns=some,
                methods=only,
                quick=quick,
                workers=workers,
                observer=observer,
                plan={"runtime": runtime, "ray_address": ray_address},
            )
    _show(found, markdown)
    if output is not None:
        from undrift.report.reproduced_page import write_page

        write_page(found, output, force=force)
        say(f"wrote [bold]{escape(str(output))}[/]")
    if found.failed:
        raise typer.Exit(UNWELL)


def _paper(name: str | None) -> list[Paper]:
    known = papers()
    if name is None:
        return list(known.values())
    if name not in known:
        table(name)  # says what there is
    return [known[name]]


def _shipped(asked: Table, columns: list[str]) -> Reproduced:
    found = from_records(asked, columns)
    if not found.columns:
        have = [t.reference for paper in papers().values() for t in paper.tables.values() if recorded(t)]
        raise InvalidInput(
            f"no result of {asked.reference} is shipped: run it without --recorded ({', '.join(have)} are)"
        )
    return found


def _show(found: Reproduced, markdown: bool) -> None:
    if markdown:
        typer.echo(said.markdown(found), nl=False)
        return
    console.print(said.drawn(found))
    say(escape(said.tally(found)))


def _list(shown: list[Paper]) -> None:
    """Every table: what it is, the data it needs, how long it would take here, whether a result is shipped."""
    from undrift.studies.expected import seconds

    cores = os.cpu_count() or 1
    with errors.status("timing a step of each model on this machine"):
        for paper in shown:
            drawn = Drawn(title=Text(paper.title), title_justify="left")
            for name in ("table", "what", "data", "time here", "recorded"):
                drawn.add_column(name, overflow="fold")
            for each in paper.tables.values():
                spent = seconds(each, each.trials, cores)
                drawn.add_row(
                    each.reference,
                    Text(f"{each.source}: {each.title}"),
                    ", ".join(each.data),
                    _time(spent),
                    _recorded(each),
                )
            console.print(drawn)
    say(
        f"[dim]Time: about, with {words.count(cores, 'core')}, for as many seeds as the paper has trials; "
        "--quick takes minutes. recorded: columns whose measured result is shipped, see --recorded.[/]"
    )


def _time(spent: float) -> str:
    return words.duration(spent) if spent < LIMIT else f"{words.amount(spent / 86400)} days"


def _recorded(each: Table) -> str:
    found = recorded(each)
    have = [c for c in each.columns if all((m, c.name) in found for m in each.methods)]
    if not have:
        return "–"
    seeds = min(len(found[m, c.name]) for m in each.methods for c in have)
    return f"{len(have)} of {words.count(len(each.columns), 'column')}, {words.count(seeds, 'seed')}"
