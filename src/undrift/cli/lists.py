"""Commands that tell what there is: algorithms, data, models, partition."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from undrift import algorithms as methods
from undrift.cli.common import JsonOption, RootOption, console, say
from undrift.cli.flags import ExperimentCommand, plain
from undrift.cli.runs import DataOption, PartitionOption, description
from undrift.cli.showing import print_json
from undrift.core.errors import InvalidInput, unknown
from undrift.core.settings import Setting
from undrift.data import Heterogeneity, data_root, heterogeneity, sources
from undrift.experiment.description import Experiment
from undrift.models import catalogue

LEGEND = (
    "d: parameters, head: those of the last layer, n: samples, K: steps, E: epochs, M: batch size, C: classes, "
    "C_i: classes of the client, f: features."
)


def register(app: typer.Typer) -> None:
    app.command()(algorithms)
    app.command(cls=ExperimentCommand)(partition)
    app.command()(data)
    app.command()(models)


def algorithms(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="One method, in full.", autocompletion=lambda: list(methods.algorithms())
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Every method: its paper, its settings with defaults and meaning, what it costs on top of FedAvg."""
    found = methods.algorithms()
    if name is not None and name not in found:
        raise unknown("algorithm", name, found)
    chosen = {name: found[name]} if name else found
    if as_json:
        print_json({key: _method_json(cls) for key, cls in chosen.items()})
        return
    if name:
        _method(found[name])
        return
    for key, cls in chosen.items():
        say(f"[bold]{key}[/]  {escape(cls.title)}  [dim]{escape(cls.paper)}[/]")
        for s in cls.settings():
            if s.name != "weights":
                say(f"    --{s.name.replace('_', '-')} [cyan]{escape(_value(s))}[/]  {escape(s.help)}")
        say(f"    [dim]costs on top of FedAvg: {escape(_cost(cls))}[/]")
    say(f"{LEGEND} One in full: undrift algorithms NAME")


def _cost(cls: type[methods.Method]) -> str:
    cost = cls.cost
    parts = [
        f"{value} {what}"
        for value, what in (
            (cost.down, "numbers down"),
            (cost.up, "numbers up"),
            (cost.kept, "numbers kept"),
            (cost.gradients, "samples forward and backward"),
            (cost.forwards, "samples forward"),
            (cost.head_gradients, "samples forward, and backward through the head"),
            (cost.flops, "vector operations"),
        )
        if value != "0"
    ]
    return ", ".join(parts) or "nothing"


def _method(cls: type[methods.Method]) -> None:
    say(f"[bold]{escape(cls.title)}[/]  {escape(cls.paper)}")
    module = sys.modules[cls.__module__]
    say(escape((module.__doc__ or "").strip()))
    table = Table("setting", "default", "allowed", "meaning")
    for s in cls.settings():
        table.add_row(f"--{s.name.replace('_', '-')}", _value(s), escape(s.allowed), escape(s.help))
    console.print(table)
    cost = cls.cost
    rows = Table("on top of FedAvg, per client and round", "", show_header=True)
    for label, value in (
        ("numbers down", cost.down),
        ("numbers up", cost.up),
        ("numbers kept by the client", cost.kept),
        ("samples forward and backward", cost.gradients),
        ("samples forward only", cost.forwards),
        ("samples forward, and backward through the head alone", cost.head_gradients),
        ("vector operations (stated)", cost.flops),
    ):
        rows.add_row(label, escape(value))
    console.print(rows)
    say(LEGEND)
    if cls.refuses_momentum:
        say(f"Local momentum is refused: {escape(cls.refuses_momentum)}.")
    if cls.refuses_optimisers:
        say(f"Optimisers other than sgd are refused: {escape(cls.refuses_optimisers)}.")
    if cls.assumes_sgd:
        say(f"Its formulas assume sgd: {escape(cls.assumes_sgd)}.")
    say(f"Try: undrift run --algorithm {cls.name()} --partition.alpha 0.1 --clients 50 --participate 10")


def _method_json(cls: type[methods.Method]) -> dict[str, Any]:
    return {
        "title": cls.title,
        "paper": cls.paper,
        "settings": {
            s.name: {"default": None if s.required else s.default, "allowed": s.allowed, "help": s.help}
            for s in cls.settings()
        },
        "cost": vars(cls.cost),
        "exchanges": cls.exchanges,
    }


def _value(s: Setting) -> str:
    return "(needed)" if s.required else plain(s.default)


def partition(
    ctx: typer.Context,
    data: DataOption = None,
    kind: PartitionOption = None,
    root: RootOption = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Also draw it: FILE.png, .pdf or .svg.")] = None,
    style: Annotated[Literal["bars", "bubbles"], typer.Option("--style", help="How to draw it.")] = "bars",
    force: Annotated[bool, typer.Option("--force", help="Replace a picture that exists.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most so many clients.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """Who holds what: a table of clients and classes, with figures of heterogeneity.

    undrift partition --data digits --partition dirichlet --alpha 0.1 --clients 20 --seed 1
    """
    values = description(ctx, None, None, data, kind, None)
    built = Experiment.build(values, "command line")
    dataset = built.data.load(data_root(root))
    clients = built.plan.clients or (None if built.partition.natural else 10)
    found = built.partition.split(dataset, clients, built.plan.seed)
    labels = dataset.labels
    figures = heterogeneity(found, labels, int(labels.max()) + 1) if labels is not None else None
    if picture is not None:
        from undrift.report.plots import partition_picture

        if labels is None:
            raise InvalidInput(f"{dataset.name} has no classes to draw")
        partition_picture(found, labels, int(labels.max()) + 1, picture, style, force=force)
    if as_json:
        print_json(_partition_json(found, labels, figures))
        return
    _partition_table(found, dataset, labels, limit)
    sizes = found.sizes
    spread = f"{sizes.min()} to {sizes.max()}, median {np.median(sizes):g}"
    say(f"{len(found):,} clients, {int(sizes.sum()):,} samples; per client: {spread}")
    if figures is not None:
        for label, value in _figures(figures).items():
            say(f"{label}: {value:.4f}")
    say(f"fingerprint: {found.fingerprint}")
    if picture is not None:
        say(f"picture: {escape(str(picture))}")


def _partition_table(found: Any, dataset: Any, labels: Any, limit: int) -> None:
    table = Table(title=f"{dataset.name}: {found.description.get('partitioner', '')}", title_justify="left")
    table.add_column("client")
    table.add_column("samples", justify="right")
    if labels is not None:
        classes = int(labels.max()) + 1
        histogram = found.histogram(labels, classes)
        shown = min(classes, 20)
        names = dataset.label_names
        for c in range(shown):
            table.add_column(escape(str(names[c]))[:10], justify="right")
        if classes > shown:
            table.add_column("...", justify="right")
    for client in range(min(limit, len(found))):
        name = str(client if found.names is None else found.names[client])
        cells = [escape(name), str(found.sizes[client])]
        if labels is not None:
            cells += [str(v) if v else "[dim]·[/]" for v in histogram[client, :shown]]
            if classes > shown:
                cells.append(str(int(histogram[client, shown:].sum())))
        table.add_row(*cells)
    console.print(table)
    if len(found) > limit:
        say(f"[dim]... and {len(found) - limit:,} more; --limit shows more of them[/]")


def _figures(figures: Heterogeneity) -> dict[str, float]:
    return {
        "label entropy, mean over clients (bits)": figures.entropy,
        "label entropy of all data (bits)": figures.entropy_global,
        "Jensen-Shannon divergence of two clients, mean": figures.divergence,
        "earth mover's distance to the global label mix, mean": figures.distance,
    }


def _partition_json(found: Any, labels: Any, figures: Any) -> dict[str, Any]:
    return {
        "description": found.description,
        "fingerprint": found.fingerprint,
        "sizes": found.sizes.tolist(),
        "histogram": None if labels is None else found.histogram(labels, int(labels.max()) + 1).tolist(),
        "figures": None if figures is None else _figures(figures),
    }


def data(
    action: Annotated[str | None, typer.Argument(metavar="[fetch NAME]", help="`fetch` downloads a data set.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="", help="The data set to fetch.")] = None,
    root: RootOption = None,
    check: Annotated[bool, typer.Option("--check", help="Read the files and check their checksums.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The data sets: where from, licence, size, present or not, checksums. `undrift data fetch NAME` downloads one."""
    if action is not None:
        if action != "fetch":
            raise unknown("action of `undrift data`", action, ["fetch"])
        if name is None:
            raise InvalidInput(f"fetch what? One of {', '.join(sources.SOURCES)}")
        _fetch(name, root)
        return
    rows = sources.inventory(root, check=check)
    if as_json:
        print_json([vars(row) for row in rows])
        return
    table = Table(title=f"data root: {data_root(root)}", title_justify="left")
    for column in ("name", "what", "licence", "size", "state", "checksums"):
        table.add_column(column, overflow="fold")
    for row in rows:
        state = f"[green]{row.state}[/]" if row.present else row.state
        table.add_row(row.name, escape(row.title), escape(row.licence), row.size, state, escape(row.checksums))
    console.print(table)
    say("Another folder: --data-root, or the variable UNDRIFT_DATA. Download: undrift data fetch NAME")


def _fetch(name: str, root: Path | None) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as shown:
        tasks: dict[str, TaskID] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = shown.add_task(escape(file), total=total)
            shown.update(tasks[file], completed=done, total=total)

        sources.fetch(name, root, progress)
    say(f"{escape(name)} is in {escape(str(data_root(root)))}")


def models(as_json: JsonOption = False) -> None:
    """The models, with their parameters and multiply-accumulates on the input of their paper."""
    rows = catalogue()
    if as_json:
        print_json([vars(row) for row in rows])
        return
    table = Table()
    for column in ("name", "what", "input", "parameters", "MACs forward", "settings"):
        table.add_column(
            column, justify="right" if column in ("parameters", "MACs forward") else "left", overflow="fold"
        )
    for row in rows:
        shape = " x ".join(map(str, row.shape))
        settings = ", ".join(f"{k}={v}" for k, v in row.settings.items())
        table.add_row(
            row.name, escape(row.title), shape, f"{row.parameters:,}", f"{row.macs:,}", escape(settings) or "-"
        )
    console.print(table)
