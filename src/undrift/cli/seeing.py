"""Commands that show what happened: report, watch, plot, export."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from undrift.analysis.selection import selected
from undrift.cli.common import DEFAULT_LEDGER, LedgerOption, RootOption, interactive, open_ledger, say
from undrift.core.errors import InvalidInput, unknown
from undrift.core.figure import HEADLINE, Figure
from undrift.core.files import refuse_existing
from undrift.ledger.history import History

RunsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="A comparison, or names, numbers, beginnings or patterns ('*') of runs; left out: the latest.",
    ),
]
ForceOption = Annotated[bool, typer.Option("--force", "-f", help="Replace a file that exists already.")]
TargetOption = Annotated[
    float | None, typer.Option("--target", help="Target of the headline figure, such as 0.9; left out: the runs' own.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    for command in (report, watch, plot, export):
        app.command()(command)


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

    with open_ledger(ledger) as book, book.reading():
        runs = selected(book, names or ())
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

    with open_ledger(ledger) as book:
        judged = {str(run.experiment.get("headline") or HEADLINE.metric) for run in book.runs()} or {HEADLINE.metric}
    if target is not None and not any(Figure(metric=metric).allows(target) for metric in judged):
        raise InvalidInput(f"--target {target:g}: it must be {Figure(metric=sorted(judged)[0]).range}")
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
    kind: Annotated[str, typer.Argument(metavar="KIND", help="curves, series, bars, box, partition or tsne.")],
    names: RunsArgument = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A .png, .pdf or .svg file.")] = None,
    target: TargetOption = None,
    of: Annotated[
        str,
        typer.Option("--of", help="series: any figure or note of the runs, as loss, 'loss on training', tau or mu."),
    ] = "loss",
    axis: Annotated[
        str, typer.Option("--axis", help="curves, series: against rounds, bytes, macs or seconds.")
    ] = "rounds",
    smooth: Annotated[float, typer.Option("--smooth", help="curves: factor of a moving average; 0: none.")] = 0.0,
    style: Annotated[str, typer.Option("--style", help="partition: bubbles or bars.")] = "bubbles",
    last: Annotated[int, typer.Option("--last", min=1, help="box: how many of the last evaluations.")] = 10,
    client: Annotated[int, typer.Option("--client", min=0, help="tsne: which client.")] = 0,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    force: ForceOption = False,
) -> None:
    """Draw a figure for a paper: curves, series (anything recorded), bars (rounds to target), box, partition, tsne."""
    from undrift.report import features, plots
    from undrift.report import series as recorded

    if kind not in plots.KINDS:
        raise unknown("kind of plot", kind, plots.KINDS)
    output = output or Path(f"{kind}.png")
    plots.check_format(output)
    with open_ledger(ledger) as book, book.reading():
        runs = selected(book, names or ())
        force = allowed(output, force)
        histories = [History.of(book, run) for run in runs]
        if kind == "curves":
            plots.curves(histories, output, axis=axis, smooth=smooth, target=target, force=force)
        elif kind == "series":
            recorded.draw(histories, of, output, axis=axis, force=force)
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

    with open_ledger(ledger) as book, book.reading():
        runs = selected(book, names or ())
        force = allowed(output, force)
        count = write([History.of(book, run) for run in runs], output, force=force)
    say(f"wrote [bold]{escape(str(output))}[/] ({count} rows)")
