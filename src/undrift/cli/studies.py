"""Commands over many runs: compare, sweep, advise, demo. They speak what `undrift.studies` finds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from undrift.cli.common import (
    DEFAULT_LEDGER,
    JsonOption,
    LedgerOption,
    QuietOption,
    RootOption,
    TrackOption,
    command_line,
    console,
    errors,
    open_ledger,
    say,
)
from undrift.cli.display import watching
from undrift.cli.ending import OK, UNWELL, judged
from undrift.cli.flags import ExperimentCommand
from undrift.cli.runs import (
    DataOption,
    ExperimentArgument,
    ModelOption,
    NameOption,
    PartitionOption,
    check_tracker,
    description,
)
from undrift.cli.seeing import ForceOption, allowed
from undrift.cli.showing import print_json
from undrift.core.errors import InvalidInput
from undrift.core.figure import GLOBAL, Figure
from undrift.experiment.description import read_toml
from undrift.report import words
from undrift.report.table import cells, headers, render, sentences
from undrift.studies.compare import DEFAULT, Compared, run_comparison
from undrift.studies.jobs import Done, Place
from undrift.studies.lineup import Section, line_up, with_controls
from undrift.studies.pilot import Budget, Pilot, plain_names
from undrift.studies.scene import Scene, seeds_of
from undrift.studies.shown import Shown

MethodsOption = Annotated[
    str | None,
    typer.Option("--algorithms", "-a", help="Methods, with commas; `name:key=value` sets one; `all` for every one."),
]
SeedsOption = Annotated[str | None, typer.Option("--seeds", help="Seeds: 1..5 or 1,2,3. Left out: 1..3.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", min=1, help="Runs at the same time; left out: one per core.")
]


def register(app: typer.Typer) -> None:
    for command in (compare, sweep, advise):
        app.command(cls=ExperimentCommand)(command)
    app.command()(demo)


def compare(
    ctx: typer.Context,
    experiment: ExperimentArgument = None,
    algorithm: MethodsOption = None,
    seeds: SeedsOption = None,
    data: DataOption = None,
    partition: PartitionOption = None,
    model: ModelOption = None,
    name: NameOption = None,
    again: Annotated[
        bool, typer.Option("--resume", help="Keep what an earlier, interrupted comparison of the same name has done.")
    ] = False,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare methods over seeds, on the same data, partition and initial model.

    undrift compare --algorithms fedavg,fedtrip:mu=1 --seeds 1..5 --target 0.9

    Ends with a table: accuracy, and rounds, bytes, MACs and seconds to the target, each with its ratio to FedAvg.
    """
    file = read_toml(experiment) if experiment else {}
    methods = with_controls(line_up(algorithm or listed_in(file, DEFAULT)))
    values = description(ctx, experiment, names_of(methods), data, partition, model)
    chosen = seeds_of(seeds or file.get("seeds", "1..3"))
    check_tracker(track)
    onward = command_line() + ("" if again else " --resume")
    with interruptible(onward), watching(quiet, len(methods) * len(chosen)) as observer:
        found = run_comparison(
            Scene(values),
            methods,
            chosen,
            name=name or "compare",
            place=Place(ledger, root, track),
            resume=again,
            observer=observer,
            facts={"command": command_line()},
        )
    raise typer.Exit(_said(found, as_json))


def listed_in(file: Mapping[str, Any], otherwise: Any) -> Any:
    """The methods that a file lists: as ``algorithms``, or in ``[[method]]`` tables."""
    if "algorithms" in file and "method" in file:
        raise InvalidInput("the file lists methods twice, as `algorithms` and in [[method]] tables: leave one out")
    return file.get("algorithms", file.get("method", otherwise))


def names_of(methods: Sequence[Section]) -> list[str]:
    return list(dict.fromkeys(str(method["name"]) for method in methods))


def _said(found: Compared, as_json: bool) -> int:
    """The table and what may be concluded; the exit code."""
    if as_json:
        print_json([_row(found, row) for row in found.rows])
    else:
        console.print(render(found.comparison, console.width))
        for sentence in (*sentences(found.comparison), *_beside(found)):
            say(escape(sentence))
        say(f"ledger: [bold]{escape(str(found.ledger))}[/]")
    return max(judged(found.histories), _failures(found.failed))


def _row(found: Compared, row: Any) -> dict[str, Any]:
    """A row of the table as text, and the numbers behind it."""
    costs = {
        column: {
            "value": cost.value,
            "per_seed": list(cost.per_seed),
            "ratio": None if cost.ratio is None else vars(cost.ratio),
        }
        for column, cost in row.costs.items()
    }
    figures = [
        {**vars(figure), "mean": spread.mean, "sd": spread.sd, "values": list(spread.values)}
        for figure, spread in found.figures[row.label].items()
    ]
    texts = dict(zip(headers(found.comparison), cells(found.comparison, row), strict=True))
    return {**texts, "figures": figures, "costs": costs, "gain": None if row.gain is None else vars(row.gain)}


def _beside(found: Compared) -> list[str]:
    """What the methods' other models reach: pFedMo's server-side model alone, for one."""
    return [
        f"{label}: its {figure.model} model alone ends at {words.percent(spread.mean)} on the test set."
        for label, figures in found.figures.items()
        for figure, spread in figures.items()
        if figure.model != GLOBAL and figure == Figure(figure.model)
    ]


def _failures(failed: Sequence[Done]) -> int:
    """A table of what failed and why; the exit code."""
    if not failed:
        return OK
    table = Table(title=f"{len(failed)} of the runs failed", title_justify="left")
    table.add_column("run", overflow="fold")
    table.add_column("why", overflow="fold")
    for done in failed:
        table.add_row(escape(done.name), escape(done.error))
    errors.print(table)
    return UNWELL


@contextmanager
def interruptible(command: str) -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print("stopped; nothing recorded is lost.")
        errors.print(f"To go on: [bold]{escape(command)}[/]")
        raise


def sweep(
    ctx: typer.Context,
    experiment: ExperimentArgument = None,
    algorithm: MethodsOption = None,
    over: Annotated[
        list[str] | None,
        typer.Option("--over", help="What to vary: lr=0.01,0.1 or fedprox.mu=0.01..1 (a range). Repeatable."),
    ] = None,
    search: Annotated[str, typer.Option("--search", help="grid, random or optuna.")] = "grid",
    trials: Annotated[int | None, typer.Option("--trials", min=1, help="Trials per method, the same for all.")] = None,
    by: Annotated[
        str, typer.Option("--by", help="Rank by final or best accuracy, or by rounds to --target.")
    ] = "final",
    seeds: SeedsOption = None,
    data: DataOption = None,
    partition: PartitionOption = None,
    model: ModelOption = None,
    name: Annotated[str, typer.Option("--name", help="The sweep's name; the same name goes on with it.")] = "sweep",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Heat map: .png, .pdf or .svg.")] = None,
    workers: WorkersOption = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Search hyper-parameters: a grid or at random, the same number of trials per method, several seeds.

    undrift sweep -a fedprox,fedtrip --over algorithm.mu=0.01,0.1,1 --over lr=0.01,0.1 --seeds 1..3 -o heat.png

    A sweep that was stopped goes on with the same command. Ends with a table and, with -o, a heat map.
    """
    from undrift.report.plots import check_format
    from undrift.studies.heat import heat_map
    from undrift.studies.sweep import planned_sweep, run_sweep

    if output is not None:
        check_format(output)
        force = allowed(output, force)
    file = read_toml(experiment) if experiment else {}
    methods = with_controls(line_up(algorithm or listed_in(file, "fedavg")))
    values = description(ctx, experiment, names_of(methods), data, partition, model)
    chosen = seeds_of(seeds or file.get("seeds", "1..3"))
    plan = planned_sweep(values, methods, over or (), seeds=chosen, search=search, trials=trials, name=name, measure=by)
    with interruptible(command_line()), watching(quiet, plan.count) as observer:
        found = run_sweep(plan, ledger, workers=workers, root=root, observer=observer)
    _spoken(found, as_json)
    if output is not None:
        heat_map(found, output, force=force)
        say(f"wrote [bold]{escape(str(output))}[/]")
    raise typer.Exit(max(_failures(found.failed), UNWELL if found.unwell else OK))


def advise(
    ctx: typer.Context,
    experiment: ExperimentArgument = None,
    budget: Annotated[
        str, typer.Option("--budget", help="Of the real training: rounds=200, bytes=2e9, macs=1e12 or seconds=3600.")
    ] = "rounds=100",
    algorithm: MethodsOption = None,
    seeds: SeedsOption = None,
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
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say which method to take for these data and this budget, from a short pilot with all of them.

    undrift advise --data digits --partition dirichlet --alpha 0.1 --clients 50 --participate 10 --budget rounds=200
    """
    from undrift.studies.advise import run_pilot

    file = read_toml(experiment) if experiment else {}
    asked = algorithm or listed_in(file, "all")
    names = () if asked == "all" else plain_names(line_up(asked))
    values = description(ctx, experiment, None, data, partition, model)
    chosen = seeds_of(seeds or file.get("seeds", "1..3"))
    plan = Pilot(values, Budget.parse(budget), names, chosen, pilot, goal, name)  # type: ignore[arg-type]
    with interruptible(command_line()), watching(quiet, None) as observer:
        found = run_pilot(plan, ledger, workers=workers, root=root, observer=observer)
    _spoken(found, as_json, lead=True)
    raise typer.Exit(_failures(found.failed))


def _spoken(found: Shown, as_json: bool, lead: bool = False) -> None:
    """A study's table and sentences; ``lead``: the first of them is what the user wants to know."""
    if as_json:
        print_json(found.records())
        return
    (head, *rows), told = found.lines()
    table = Table()
    for place, title in enumerate(head):
        table.add_column(Text(title), justify="left" if place == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    for place, sentence in enumerate(told):
        say(f"[bold]{escape(sentence)}[/]" if lead and place == 0 else escape(sentence))


def demo(
    ledger: LedgerOption = Path("runs/demo.sqlite"),
    report: Annotated[Path, typer.Option("--report", help="Where to write the report.")] = Path("runs/demo.html"),
    quiet: QuietOption = False,
) -> None:
    """Compare four methods over three seeds on skewed handwritten digits, in under a minute."""
    from undrift.report.page import write_report

    say("1,438 handwritten digits, unevenly held by 50 clients (Dirichlet 0.1); 10 of them take part in each round.")
    values = {
        "data": "digits",
        "model": "mlp",
        "partition": {"name": "dirichlet", "alpha": 0.1},
        "train": {"lr": 0.1, "batch_size": 16, "epochs": 2},
        "clients": 50,
        "participate": 10,
        "rounds": 60,
        "target": 0.85,
    }
    methods, seeds = line_up(("fedavg", "fedprox", "scaffold", "fedtrip")), (1, 2, 3)
    with interruptible("undrift demo"), watching(quiet, len(methods) * len(seeds)) as observer:
        found = run_comparison(Scene(values), methods, seeds, name="demo", place=Place(ledger), observer=observer)
    code = _said(found, False)
    with open_ledger(ledger) as book:
        write_report(book, [book.run(history.name) for history in found.histories], report, force=True)
    say(f"report: [bold]{escape(str(report))}[/]")
    raise typer.Exit(code)
