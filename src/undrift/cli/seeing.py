"""Commands that show what happened and help to choose: report, watch, plot, export, sweep, advise."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from undrift import algorithms
from undrift.cli.common import (
    DEFAULT_LEDGER,
    LedgerOption,
    QuietOption,
    RootOption,
    console,
    errors,
    interactive,
    open_ledger,
    say,
)
from undrift.cli.flags import ExperimentCommand, parse_seeds
from undrift.cli.runs import DataOption, ExperimentArgument, ModelOption, PartitionOption, description
from undrift.core.errors import InvalidInput, unknown
from undrift.experiment.description import parse_method
from undrift.ledger.history import History
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.report.content import check_runs
from undrift.report.files import refuse_existing
from undrift.studies.jobs import Done, Tell

RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[RUN]...", help="Names, numbers or unique beginnings of runs; left out: all."),
]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Replace a file that exists already.")]
TargetOption = Annotated[
    float | None, typer.Option("--target", help="Target accuracy, a share such as 0.9; left out: the runs' own.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (report, watch, plot, export):
        app.command()(command)
    app.command(cls=ExperimentCommand)(sweep)
    app.command(cls=ExperimentCommand)(advise)


def chosen(book: Ledger, names: list[str] | None) -> list[Run]:
    """The runs that were asked for, each once."""
    runs = [book.run(name) for name in names] if names else book.runs()
    check_runs(runs, book)
    return list({run.id: run for run in runs}.values())


def allowed(path: Path, force: bool) -> bool:
    """May the file be written? On a terminal the user is asked; elsewhere an existing one is refused."""
    if not force and path.is_file() and interactive():
        typer.confirm(f"{path} exists already. Replace it?", abort=True)
        return True
    refuse_existing(path, force)
    return force


def report(
    names: RunsArgument = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path("report.html"),
    target: TargetOption = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    force: ForceOption = False,
) -> None:
    """Write one self-contained HTML page about runs: curves, costs, verdict, partition, fairness, drift, settings."""
    from undrift.report.page import write_report

    with open_ledger(ledger) as book:
        runs = chosen(book, names)
        force = allowed(output, force)
        write_report(book, runs, output, force=force, target=target)
    say(f"wrote [bold]{escape(str(output))}[/] ({len(runs)} run{'' if len(runs) == 1 else 's'})")


def watch(
    names: RunsArgument = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    host: Annotated[str, typer.Option("--host", help="Where to listen; other than this machine only with --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0 for any that is free.")] = 8642,
    token: Annotated[
        str | None, typer.Option("--token", envvar="UNDRIFT_TOKEN", help="What readers must know; `auto` makes one.")
    ] = None,
    target: TargetOption = None,
    browse: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Serve the report of a ledger while it is being written; pages follow the runs round by round."""
    from undrift.report.watch import Follower, Server

    open_ledger(ledger).close()
    if target is not None and not 0 < target <= 1:
        raise InvalidInput(f"--target {target:g}: it must be a share in (0, 1], for example 0.9 for 90 %")
    follower = Follower(ledger, names or [], target)
    with Server(follower, host, port, secrets.token_urlsafe(24) if token == "auto" else token) as server:
        follower.start()
        say(f"watching {escape(str(ledger))} at [bold]{escape(server.url)}[/] (Ctrl-C ends it)")
        if browse:
            import webbrowser

            webbrowser.open(server.url)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("")
        finally:
            follower.stop()


def plot(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="curves, bars, box, partition or tsne.")],
    names: RunsArgument = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A .png, .pdf or .svg file.")] = None,
    target: TargetOption = None,
    axis: Annotated[str, typer.Option("--axis", help="curves: against rounds, bytes, macs or seconds.")] = "rounds",
    smooth: Annotated[float, typer.Option("--smooth", help="curves: factor of a moving average; 0: none.")] = 0.0,
    style: Annotated[str, typer.Option("--style", help="partition: bubbles or bars.")] = "bubbles",
    last: Annotated[int, typer.Option("--last", min=1, help="box: how many of the last evaluations.")] = 10,
    client: Annotated[int, typer.Option("--client", min=0, help="tsne: which client.")] = 0,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    force: ForceOption = False,
) -> None:
    """Draw a figure for a paper: curves, bars (rounds to target), box, partition, tsne."""
    from undrift.report import features, plots

    if kind not in plots.KINDS:
        raise unknown("kind of plot", kind, plots.KINDS)
    output = output or Path(f"{kind}.png")
    plots.check_format(output)
    with open_ledger(ledger) as book:
        runs = chosen(book, names)
        force = allowed(output, force)
        histories = [History.of(book, run) for run in runs]
        if kind == "curves":
            plots.curves(histories, output, axis=axis, smooth=smooth, target=target, force=force)
        elif kind == "bars":
            plots.bars(histories, output, target=target, force=force)
        elif kind == "box":
            plots.box(histories, output, last=last, force=force)
        elif kind == "partition":
            plots.partition(histories, output, style=style, force=force)
        else:
            features.tsne(features.features(book, runs[0], client, root=root), output, force=force)
    say(f"wrote [bold]{escape(str(output))}[/]")


def export(
    names: RunsArgument = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .csv, .parquet or .json file.")] = Path("runs.csv"),
    ledger: LedgerOption = DEFAULT_LEDGER,
    force: ForceOption = False,
) -> None:
    """Write runs as a table for other programs: one row per run and round."""
    from undrift.report.export import export as write

    with open_ledger(ledger) as book:
        runs = chosen(book, names)
        force = allowed(output, force)
        count = write([History.of(book, run) for run in runs], output, force=force)
    say(f"wrote [bold]{escape(str(output))}[/] ({count} rows)")


WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Runs at the same time; left out: one per core.")
]
SeedsOption = Annotated[str, typer.Option("--seeds", help="Seeds: 1..5 or 1,2,3.")]


@contextmanager
def counting(quiet: bool) -> Iterator[Tell]:
    """Counts the runs that are done, on a terminal; says which failed, everywhere."""
    columns = (TextColumn("runs"), BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=quiet or not interactive(), transient=True) as live:
        task = live.add_task("runs", total=None)

        def tell(done: Done) -> None:
            live.advance(task)
            if done.error and not quiet:
                errors.print(f"[yellow]failed:[/] {escape(done.name)}: {escape(done.error)}")

        yield tell


def _methods(text: str) -> list[str]:
    return list(algorithms.algorithms()) if text == "all" else text.split(",")


def sweep(
    ctx: typer.Context,
    experiment: ExperimentArgument = None,
    algorithm: Annotated[
        str, typer.Option("--algorithms", "-a", help="Methods, with commas; `name:key=value` sets one; `all`.")
    ] = "fedavg",
    over: Annotated[
        list[str] | None,
        typer.Option("--over", help="What to vary: lr=0.01,0.1 or fedprox.mu=0.01..1 (a range). Repeatable."),
    ] = None,
    search: Annotated[str, typer.Option("--search", help="grid, random or optuna.")] = "grid",
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Trials per method, the same for all.")] = None,
    by: Annotated[
        str, typer.Option("--by", help="Rank by final or best accuracy, or by rounds to --target.")
    ] = "final",
    seeds: SeedsOption = "1..3",
    data: DataOption = None,
    partition: PartitionOption = None,
    model: ModelOption = None,
    name: Annotated[str, typer.Option("--name", help="The sweep's name; the same name goes on with it.")] = "sweep",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Heat map: .png, .pdf or .svg.")] = None,
    workers: WorkersOption = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Search hyper-parameters: a grid or at random, the same number of trials per method, several seeds.

    undrift sweep -a fedprox,fedtrip --over algorithm.mu=0.01,0.1,1 --over lr=0.01,0.1 --seeds 1..3 -o heat.png

    A sweep that was stopped goes on with the same command. Ends with a table and, with -o, a heat map.
    """
    from undrift.report.plots import check_format
    from undrift.studies import sweep as searching

    for kind, given, choices in (
        ("search", search, ("grid", "random", "optuna")),
        ("--by", by, ("final", "best", "rounds")),
    ):
        if given not in choices:
            raise unknown(kind, given, choices)
    if output is not None:
        check_format(output)
        force = allowed(output, force)
    methods = [parse_method(text) for text in _methods(algorithm)]
    names = [str(method["name"]) for method in methods]
    values = description(ctx, experiment, names, data, partition, model)
    values.pop("algorithm", None)
    plan = searching.Sweep(
        base=values,
        methods=tuple(methods),
        over=tuple(searching.parse_over(text, names, values) for text in over or ()),
        seeds=tuple(parse_seeds(seeds)),
        search=search,  # type: ignore[arg-type]
        trials=trials,
        name=name,
        measure=by,  # type: ignore[arg-type]
        target=values.get("target"),
    )
    with counting(quiet) as tell:
        found = searching.run_sweep(plan, ledger, workers=workers, root=root, tell=tell)
    console.print(searching.table(found))
    if len({len(scores) for scores in found.scores.values()}) > 1:
        say(f"The methods had different numbers of trials: the last column compares them at {found.budget} each.")
    say("[dim]Settings are chosen by the test set here; the winner's figure flatters it a little.[/]")
    if output is not None:
        searching.heat_map(found, output, force=force)
        say(f"wrote [bold]{escape(str(output))}[/]")


def advise(
    ctx: typer.Context,
    experiment: ExperimentArgument = None,
    budget: Annotated[
        str, typer.Option("--budget", help="Of the real training: rounds=200, bytes=2e9, macs=1e12 or seconds=3600.")
    ] = "rounds=100",
    algorithm: Annotated[
        str, typer.Option("--algorithms", "-a", help="Methods to consider, with commas; `all`.")
    ] = "all",
    seeds: SeedsOption = "1..3",
    pilot: Annotated[float, typer.Option("--pilot", help="Share of the budget that the finalists are given.")] = 0.2,
    goal: Annotated[
        str,
        typer.Option("--goal", help="`global`: one model, on the test set; `personal`: on clients' own parts."),
    ] = "global",
    data: DataOption = None,
    partition: PartitionOption = None,
    model: ModelOption = None,
    name: Annotated[str, typer.Option("--name", help="The pilot's name; the same name goes on with it.")] = "advise",
    workers: WorkersOption = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Say which method to take for these data and this budget, from a short pilot with all of them.

    undrift advise --data digits --partition dirichlet --alpha 0.1 --clients 50 --participate 10 --budget rounds=200
    """
    from undrift.studies import advise as piloting

    if goal not in ("global", "personal"):
        raise unknown("goal", goal, ("global", "personal"))
    names = [] if algorithm == "all" else [str(parse_method(text)["name"]) for text in algorithm.split(",")]
    values = description(ctx, experiment, None, data, partition, model)
    plan = piloting.Pilot(
        base=values,
        budget=piloting.Budget.parse(budget),
        methods=tuple(names),
        seeds=tuple(parse_seeds(seeds)),
        share=pilot,
        goal=goal,  # type: ignore[arg-type]
        name=name,
    )
    with counting(quiet) as tell:
        found = piloting.advise(plan, ledger, workers=workers, root=root, tell=tell)
    console.print(piloting.table(found))
    for place, sentence in enumerate(found.sentences):
        say(f"[bold]{escape(sentence)}[/]" if place == 0 else escape(sentence))
