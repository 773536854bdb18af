"""Commands that run one experiment: run and resume."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from undrift import algorithms
from undrift.cli.common import (
    DEFAULT_LEDGER,
    DurableOption,
    JsonOption,
    LedgerOption,
    QuietOption,
    RootOption,
    TrackOption,
    command_line,
    errors,
    open_ledger,
    say,
)
from undrift.cli.display import watching
from undrift.cli.ending import judged
from undrift.cli.flags import ExperimentCommand, as_changes, given
from undrift.cli.showing import announce
from undrift.core.errors import InvalidInput
from undrift.core.plugins import split
from undrift.data import data_root
from undrift.experiment.description import Experiment, merge, parse_method, read_toml, usual_partition
from undrift.experiment.execute import Result
from undrift.experiment.federate import rehearsal
from undrift.experiment.prepare import completed, refuse
from undrift.experiment.start import resume_experiment, start_experiment
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.ledger.track import available
from undrift.report import words
from undrift.studies.lineup import common

ExperimentArgument = Annotated[
    Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="A description; flags go on top of it.")
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        "-a",
        help="The method; `undrift algorithms` lists them.",
        autocompletion=lambda: list(algorithms.algorithms()),
    ),
]
DataOption = Annotated[str | None, typer.Option("--data", "-d", help="The data set; `undrift data` lists them.")]
PartitionOption = Annotated[
    str | None, typer.Option("--partition", "-p", help="Who holds what: dirichlet, iid, classes, ...")
]
ModelOption = Annotated[str | None, typer.Option("--model", "-m", help="The model; `undrift models` lists them.")]
NameOption = Annotated[str | None, typer.Option("--name", help="What to call the run in the ledger.")]
COMPARED = ("algorithms", "method", "seeds")  # keys of a file that describes a comparison


def register(app: typer.Typer) -> None:
    app.command(cls=ExperimentCommand)(run)
    app.command()(resume)


def description(
    ctx: typer.Context,
    toml: Path | None,
    algorithm: list[str] | None,
    data: str | None,
    partition: str | None,
    model: str | None,
) -> dict[str, Any]:
    """The experiment that a file and flags describe together, as plain values."""
    base = read_toml(toml) if toml else {}
    for key in COMPARED:
        base.pop(key, None)
    base.pop("deploy", None)  # how rounds of a deployment wait: a simulation does not
    chosen: dict[str, Any] = {}
    for section, name in (("data", data), ("partition", partition), ("model", model)):
        if name:
            chosen[section] = {"name": name}
    if algorithm and len(algorithm) == 1:
        chosen["algorithm"] = parse_method(algorithm[0])
        chosen["train"] = chosen["algorithm"].pop("train", {})  # beneath the flags
    base = merge(base, chosen)
    source = _name(base, "data", "digits")
    section = base.get("data", {})
    options = {**(section if isinstance(section, Mapping) else {}), **given(ctx)}
    names = {
        "algorithm": [split(text)[0] for text in algorithm] if algorithm else [_name(base, "algorithm", "fedavg")],
        "data": [source],
        "partition": [_name(base, "partition", usual_partition(source, options))],
        "model": [_name(base, "model", "mlp")],
        "train": [""],
        "skew": [""],
        "plan": [""],
    }
    return merge(base, as_changes(given(ctx), names))


def _name(values: dict[str, Any], section: str, default: str) -> str:
    value = values.get(section, default)
    return str(value.get("name", default)) if isinstance(value, Mapping) else str(value)


def run(
    ctx: typer.Context,
    experiment: ExperimentArgument = None,
    algorithm: AlgorithmOption = None,
    data: DataOption = None,
    partition: PartitionOption = None,
    model: ModelOption = None,
    name: NameOption = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    print_toml: Annotated[
        bool, typer.Option("--toml", help="Print the complete experiment as TOML and do not run it.")
    ] = False,
    sites: Annotated[
        int | None, typer.Option("--sites", min=1, help="Rehearse a deployment: exactly what so many sites would do.")
    ] = None,
    track: TrackOption = None,
    durable: DurableOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one experiment: from a TOML file, from flags, or both.

    undrift run --algorithm fedtrip --mu 0.4 --partition dirichlet --alpha 0.1 --clients 50 --participate 5

    Every setting of the method, the partition, the model and the training is a flag: see
    `undrift run --algorithm NAME --help`.
    """
    if experiment and not algorithm and (listed := [key for key in COMPARED if key in read_toml(experiment)]):
        raise InvalidInput(f"{experiment} has {listed[0]}, so it describes a comparison: undrift compare {experiment}")
    values = description(ctx, experiment, [algorithm] if algorithm else None, data, partition, model)
    if name:
        values["name"] = name
    where = str(experiment) if experiment else "command line"
    built = Experiment.build(values, where) if sites is None else rehearsal(values, sites, where)
    if print_toml:
        sys.stdout.write(built.to_toml())
        return
    check_tracker(track)
    with open_ledger(ledger, create=True, durable=durable) as book:
        results = _performed(book, [built, *_controls(built)], root, quiet, track)
        announce(results[0], as_json)
        for beside in results[1:]:
            if not as_json and beside.run is not None:
                say(
                    f"Its control {escape(beside.history.label)}, on the same partition, ends at "
                    f"{words.figure(beside.figure, beside.value)} on the test set; "
                    f"recorded as [bold]{escape(beside.run.name)}[/]."
                )
    raise typer.Exit(judged([result.history for result in results]))


def _controls(built: Experiment) -> list[Experiment]:
    """The experiments that must be shown beside one, on the same partition."""
    plan = built.plan
    if plan.others_public == "shared":
        plan = replace(plan, others_public="held-out")
    return [
        replace(
            built,
            algorithm=algorithms.create(control, **common(built.algorithm.values(), control)),
            plan=plan,
            name=f"{built.name}-{control}" if built.name else "",
        )
        for control in type(built.algorithm).controls
    ]


def _performed(
    book: Ledger, experiments: list[Experiment], root: Path | None, quiet: bool, track: str | None
) -> list[Result]:
    """Run experiments one after the other; Ctrl-C says how to go on."""
    results: list[Result] = []
    dataset = experiments[0].data.load(data_root(root))
    refuse(experiments, dataset)
    told: dict[str, Any] = {"root": root, "dataset": dataset, "track": track, "extra": {"command": command_line()}}
    try:
        with watching(quiet) as observer:
            for experiment in experiments:
                made = completed(experiment, dataset)
                results.append(start_experiment(made, book, watch=observer.watch, within=observer.within, **told))
    except KeyboardInterrupt:
        _say_how_to_resume(book, None)
        raise
    return results


def check_tracker(kind: str | None) -> None:
    if kind is not None:
        available(kind)


def _say_how_to_resume(book: Ledger, run: Run | None) -> None:
    """How to go on with a run that Ctrl-C has stopped; without one, with the latest."""
    run = book.run(run.id) if run is not None else next(iter(book.runs()[::-1]), None)
    if run is None or run.status != "stopped":
        return
    where = "" if book.path == DEFAULT_LEDGER else f" --ledger {book.path}"
    errors.print(f"stopped after round {run.rounds} of {run.experiment['rounds']}; nothing recorded is lost.")
    errors.print(f"To go on: [bold]undrift resume {escape(run.name)}{escape(where)}[/]")


def resume(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name, number or unique beginning of a run.")],
    ledger: LedgerOption = DEFAULT_LEDGER,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Go on to this round instead of the planned one.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse other versions or another processor, which may change the bits.")
    ] = False,
    root: RootOption = None,
    track: TrackOption = None,
    durable: DurableOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends with the same bits as if it had not been."""
    check_tracker(track)
    with open_ledger(ledger, durable=durable) as book:
        found = book.run(name)
        if found.status == "finished" and (rounds is None or rounds <= found.rounds):
            raise InvalidInput(f"run {found.name!r} is finished after {found.rounds} rounds; --rounds extends it")
        try:
            with watching(quiet) as observer:
                told: dict[str, Any] = {"watch": observer.watch, "within": observer.within, "track": track}
                result = resume_experiment(found, book, root=root, rounds=rounds, strict=strict, **told)
        except KeyboardInterrupt:
            _say_how_to_resume(book, found)
            raise
        announce(result, as_json)
    raise typer.Exit(judged([result.history]))
