"""Commands that run things: run, compare, resume, show, demo."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from undrift import algorithms
from undrift.analysis.comparison import comparison
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
from undrift.cli.flags import ExperimentCommand, as_changes, given, parse_seeds
from undrift.cli.showing import announce, print_json
from undrift.core.errors import InvalidInput
from undrift.core.figure import GLOBAL, Figure
from undrift.data import data_root
from undrift.experiment.description import Experiment, merge, parse_method, read_toml
from undrift.experiment.execute import Result
from undrift.experiment.prepare import completed, refuse
from undrift.experiment.progress import Watcher
from undrift.experiment.start import resume_experiment, start_experiment
from undrift.ledger.history import History
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.ledger.track import available
from undrift.report.table import cells, headers, render, sentences

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


def register(app: typer.Typer) -> None:
    app.command(cls=ExperimentCommand)(run)
    app.command(cls=ExperimentCommand)(compare)
    app.command()(resume)
    app.command()(demo)


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
    base.pop("algorithms", None)
    base.pop("seeds", None)
    chosen: dict[str, Any] = {}
    for section, name in (("data", data), ("partition", partition), ("model", model)):
        if name:
            chosen[section] = {"name": name}
    if algorithm and len(algorithm) == 1:
        chosen["algorithm"] = parse_method(algorithm[0])
    base = merge(base, chosen)
    names = {
        "algorithm": [text.split(":")[0] for text in algorithm] if algorithm else [_name(base, "algorithm", "fedavg")],
        "data": [_name(base, "data", "digits")],
        "partition": [_name(base, "partition", "column" if "client" in given(ctx) else "dirichlet")],
        "model": [_name(base, "model", "mlp")],
        "train": [""],
        "skew": [""],
        "plan": [""],
    }
    return merge(base, as_changes(given(ctx), names))


def _name(values: dict[str, Any], section: str, default: str) -> str:
    value = values.get(section, default)
    return value if isinstance(value, str) else str(value.get("name", default))


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
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run one experiment: from a TOML file, from flags, or both.

    undrift run --algorithm fedtrip --mu 0.4 --partition dirichlet --alpha 0.1 --clients 50 --participate 5

    Every setting of the method, the partition, the model and the training is a flag: see
    `undrift run --algorithm NAME --help`.
    """
    values = description(ctx, experiment, [algorithm] if algorithm else None, data, partition, model)
    if name:
        values["name"] = name
    built = Experiment.build(values, str(experiment) if experiment else "command line")
    if print_toml:
        sys.stdout.write(built.to_toml())
        return
    _check_tracker(track)
    with open_ledger(ledger, create=True) as book:
        result = _guarded(book, [built], root, quiet, track=track)[0]
        announce(result, as_json)
        for control in _controls(built):
            beside = _guarded(book, [control], root, quiet, track=track)[0]
            if not as_json and beside.run is not None:
                say(
                    f"Its control {escape(beside.history.label)}, on the same partition, ends at "
                    f"{100 * beside.accuracy:.1f} % on the test set; recorded as [bold]{escape(beside.run.name)}[/]."
                )


def compare(
    ctx: typer.Context,
    experiment: ExperimentArgument = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithms", "-a", help="Methods, with commas; `name:key=value` sets one; `all` for every one."
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Seeds: 1..5 or 1,2,3. Left out: 1..3.")] = None,
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
    texts = (algorithm or _listed(file.get("algorithms", "fedavg,fedprox,scaffold,fedtrip"))).split(",")
    if texts == ["all"]:
        texts = list(algorithms.algorithms())
    methods = _with_controls([parse_method(text) for text in texts])
    values = description(ctx, experiment, [str(m["name"]) for m in methods], data, partition, model)
    experiments = _grid(values, methods, parse_seeds(seeds or _listed(file.get("seeds", "1..3"))), name or "compare")
    _check_tracker(track)
    with open_ledger(ledger, create=True) as book:
        results = _guarded(book, experiments, root, quiet, again=again, track=track)
        target = experiments[0].plan.target
        _table([r.history for r in results], target, as_json, book.path)


def _listed(value: Any) -> str:
    """A list in a file as it is written on the command line: with commas."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _with_controls(methods: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The methods, and those that must be shown beside them."""
    known = algorithms.algorithms()
    for method in list(methods):
        for control in known[method["name"]].controls:
            beside = {"name": control} | _common(method, control)
            if beside not in methods:
                methods.append(beside)
    return methods


def _common(settings: dict[str, Any], control: str) -> dict[str, Any]:
    """The settings that a control has as well: a control with another momentum or other weights would be none."""
    names = [s.name for s in algorithms.algorithms()[control].settings()]
    return {name: value for name, value in settings.items() if name in names}


def _controls(built: Experiment) -> list[Experiment]:
    """The experiments that must be shown beside one, on the same partition."""
    plan = built.plan
    if plan.others_public == "shared":
        plan = replace(plan, others_public="held-out")
    return [
        replace(
            built,
            algorithm=algorithms.create(control, **_common(built.algorithm.values(), control)),
            plan=plan,
            name=f"{built.name}-{control}" if built.name else "",
        )
        for control in type(built.algorithm).controls
    ]


def _grid(values: dict[str, Any], methods: list[dict[str, Any]], seeds: Sequence[int], group: str) -> list[Experiment]:
    shared = dict(values)
    if any(algorithms.algorithms()[m["name"]].needs_public for m in methods):
        shared.setdefault("others_public", "held-out")  # so that all methods are compared on the same partition
    common = {k: v for k, v in dict(shared.pop("algorithm", {})).items() if k != "name"}
    known = {name: {s.name for s in cls.settings()} for name, cls in algorithms.algorithms().items()}
    found = []
    for method in methods:
        section = {k: v for k, v in common.items() if k in known[method["name"]]} | method
        for seed in seeds:
            built = Experiment.build({**shared, "algorithm": section, "seed": seed}, "comparison")
            tag = ":".join([method["name"], *(f"{k}={v}" for k, v in method.items() if k != "name")])
            found.append(replace(built, name=f"{group}/{tag}/seed{seed}"))
    return found


def _guarded(
    book: Ledger,
    experiments: Sequence[Experiment],
    root: Path | None,
    quiet: bool,
    again: bool = False,
    track: str | None = None,
) -> list[Result]:
    """Run experiments one after the other; Ctrl-C says how to go on."""
    results: list[Result] = []
    dataset = experiments[0].data.load(data_root(root))
    refuse(experiments, dataset)
    taken = {run.name: run for run in book.runs()}
    try:
        with watching(quiet) as watch:
            for experiment in (completed(e, dataset) for e in experiments):
                earlier = taken.get(experiment.name) if again else None
                results.append(_one(book, experiment, earlier, root, dataset, watch, track))
    except KeyboardInterrupt:
        _say_how_to_resume(book, None, len(experiments) > 1)
        raise
    return results


def _one(
    book: Ledger,
    experiment: Experiment,
    earlier: Run | None,
    root: Path | None,
    dataset: Any,
    watch: Watcher,
    track: str | None,
) -> Result:
    if earlier is not None and earlier.experiment == json.loads(json.dumps(experiment.values())):
        if earlier.status == "finished":
            return Result(History.of(book, earlier), None, earlier, book.path)
        return resume_experiment(earlier, book, root=root, watch=watch, track=track)
    extra = {"command": command_line()}
    return start_experiment(experiment, book, root=root, dataset=dataset, watch=watch, extra=extra, track=track)


def _check_tracker(kind: str | None) -> None:
    if kind is not None:
        available(kind)


def _say_how_to_resume(book: Ledger, run: Run | None, several: bool) -> None:
    """How to go on with a run that Ctrl-C has stopped; without one, with the latest."""
    run = book.run(run.id) if run is not None else next(iter(book.runs()[::-1]), None)
    if run is None or run.status != "stopped":
        return
    where = "" if book.path == DEFAULT_LEDGER else f" --ledger {book.path}"
    errors.print(f"stopped after round {run.rounds} of {run.experiment['rounds']}; nothing recorded is lost.")
    if several:
        errors.print(f"To go on: [bold]{escape(command_line())} --resume[/]")
    else:
        errors.print(f"To go on: [bold]undrift resume {escape(run.name)}{escape(where)}[/]")


def resume(
    name: Annotated[str, typer.Argument(metavar="RUN", help="Name, number or unique beginning of a run.")],
    ledger: LedgerOption = DEFAULT_LEDGER,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Go on to this round instead of the planned one.")
    ] = None,
    root: RootOption = None,
    track: TrackOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on with a run that was stopped or killed; it ends with the same bits as if it had not been."""
    _check_tracker(track)
    with open_ledger(ledger) as book:
        found = book.run(name)
        if found.status == "finished" and (rounds is None or rounds <= found.rounds):
            raise InvalidInput(f"run {found.name!r} is finished after {found.rounds} rounds; --rounds extends it")
        try:
            with watching(quiet) as watch:
                result = resume_experiment(found, book, root=root, watch=watch, rounds=rounds, track=track)
        except KeyboardInterrupt:
            _say_how_to_resume(book, found, False)
            raise
        announce(result, as_json)


def _table(histories: Sequence[History], target: float | None, as_json: bool, path: Path) -> None:
    found = comparison(histories, target)
    if as_json:
        print_json([dict(zip(headers(found), cells(found, row), strict=True)) for row in found.rows])
        return
    console.print(render(found, console.width))
    for sentence in sentences(found):
        say(escape(sentence))
    for sentence in _beside(histories):
        say(escape(sentence))
    for name, why in dict.fromkeys((h.facts.get("runtime"), h.facts.get("runtime_why")) for h in histories[:1]):
        if why:
            say(f"runtime: {name} ({escape(why)})")
    say(f"ledger: [bold]{escape(str(path))}[/]")


def _beside(histories: Sequence[History]) -> list[str]:
    """What the methods' other models reach: pFedMo's server-side model alone, for one."""
    found: dict[tuple[str, str], list[float]] = {}
    for history in histories:
        for figure in history.figures:
            if figure.model != GLOBAL and figure == Figure(figure.model):
                found.setdefault((history.label, figure.model), []).append(history.curve(figure)[1][-1])
    return [
        f"{label}: its {model} model alone ends at {100 * sum(values) / len(values):.1f} % on the test set."
        for (label, model), values in found.items()
    ]


def demo(
    ledger: LedgerOption = Path("runs/demo.sqlite"),
    report: Annotated[Path, typer.Option("--report", help="Where to write the report.")] = Path("runs/demo.html"),
    quiet: QuietOption = False,
) -> None:
    """Compare four methods over three seeds on skewed handwritten digits, in under a minute."""
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
    methods = [{"name": n} for n in ("fedavg", "fedprox", "scaffold", "fedtrip")]
    with open_ledger(ledger, create=True) as book:
        results = _guarded(book, _grid(values, methods, [1, 2, 3], "demo"), None, quiet)
        _table([r.history for r in results], 0.85, False, book.path)
        _report([r.run for r in results if r.run is not None], book, report)


def _report(runs: Sequence[Run], book: Ledger, path: Path) -> None:
    from undrift.report.page import write_report

    write_report(book, list(runs), path, force=True)
    say(f"report: [bold]{escape(str(path))}[/]")
