"""Where one begins: ``undrift`` alone says where one is, ``undrift init`` asks three questions and writes a file."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from undrift.cli.common import DEFAULT_LEDGER, RootOption, open_ledger, say
from undrift.cli.seeing import ForceOption, allowed
from undrift.core.errors import InvalidInput, unknown
from undrift.data import SOURCES, data_root
from undrift.data.sources.files import atomic_write
from undrift.experiment.description import Experiment
from undrift.experiment.prepare import refuse
from undrift.ledger.history import History
from undrift.ledger.rows import Run
from undrift.report import words
from undrift.version import version

FILES = {".csv": "csv", ".parquet": "parquet", ".npz": "npz"}  # data sets that are files of one's own
TABLES = ("csv", "parquet")  # those with columns that have names
CLIENTS = 10
GOALS = {
    "compare": ("which method suits these data", ["fedavg", "fedavgm", "fedtrip", "scaffold"]),
    "train": ("one model for all", ["fedavgm"]),
    "personal": ("a model for every client", ["fedavg", "fedrep", "local"]),
}


def register(app: typer.Typer) -> None:
    app.command()(init)


# -- where am I -------------------------------------------------------------------------------------------------------


def here() -> None:
    """What has been done here, and what to do next."""
    ledger = Path(os.environ.get("UNDRIFT_LEDGER") or DEFAULT_LEDGER)
    say(f"[bold]undrift {version()}[/]: federated learning that holds course when the clients' data differ.")
    if not ledger.exists():
        say(f"Nothing has been run here yet: there is no {escape(str(ledger))}.")
        _next(
            ("undrift demo", "see it work, in under a minute"),
            ("undrift init", "begin an experiment of your own: three questions"),
        )
        return
    with open_ledger(ledger) as book, book.reading():
        runs = book.runs()
        stopped = [
            run for run in runs if run.status == "stopped" or (run.status == "running" and not book.is_held(run))
        ]
        last = History.of(book, runs[-1]) if runs else None
    counted = Counter("unfinished" if run in stopped else run.status for run in runs)
    states = ", ".join(f"{number} {status}" for status, number in counted.items())
    say(f"{len(runs)} run{'' if len(runs) == 1 else 's'} in {escape(str(ledger))}{f': {states}' if states else ''}.")
    if last is not None:
        say(f"The last one: [bold]{escape(last.name)}[/], {escape(last.label)}, seed {last.seed}: {_ended(last)}.")
    _next(*_suggested(runs, stopped))


def _ended(last: History) -> str:
    rounds = f"{len(last.rounds)} of {last.planned} rounds"
    if not last.metrics:
        return f"{last.status}, {rounds}, not evaluated yet"
    return f"{last.status}, {words.figure(last.main_curve, last.final)} {last.main_curve.words} after {rounds}"


def _suggested(runs: Sequence[Run], stopped: Sequence[Run]) -> list[tuple[str, str]]:
    found = [(f"undrift resume {run.name}", "go on where it stopped") for run in stopped[-1:]]
    labels = {str(run.experiment.get("algorithm", {}).get("name", "")) for run in runs}
    if len(labels) < 2:
        other = next(iter(labels - {"fedavg", ""}), "fedtrip")
        found.append((f"undrift compare -a fedavg,{other} --seeds 1..3", "is the difference real, or chance?"))
    found.append(("undrift show", "every run"))
    found.append(("undrift report -o report.html", "one page with everything"))
    return found


def _next(*commands: tuple[str, str]) -> None:
    say("Next:")
    width = max(len(command) for command, _ in commands)
    for command, why in (*commands, ("undrift --help", "every command")):
        say(f"  [bold]{escape(command.ljust(max(width, 14)))}[/]  {why}")


# -- init -------------------------------------------------------------------------------------------------------------


def init(
    path: Annotated[Path, typer.Argument(metavar="[FILE.toml]", help="The file to write.", dir_okay=False)] = Path(
        "experiment.toml"
    ),
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="A data set by name, or a file: .csv, .parquet or .npz.")
    ] = None,
    clients: Annotated[
        str | None, typer.Option("--clients", help="How many, or the column of a table that says who they are.")
    ] = None,
    goal: Annotated[str | None, typer.Option("--goal", help=f"One of {', '.join(GOALS)}.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Of a table: the column to predict.")] = None,
    root: RootOption = None,
    force: ForceOption = False,
) -> None:
    """Write an experiment that runs, after three questions: data, clients, goal. Flags answer them beforehand."""
    allowed(path, force)
    asked = data or _ask("Data: a data set by name, or a file (.csv, .parquet, .npz)", "digits", _source)
    source: dict[str, Any] = _source(asked)
    if source["name"] in TABLES:
        columns = _columns(Path(source["path"]))
        hint = f" ({', '.join(columns)})" if columns else ""
        source["label"] = label or _ask(f"Which column is to be predicted{hint}", columns[-1] if columns else "")
    elif label is not None:
        raise InvalidInput(f"--label is a column of a table; {asked} is none")
    who = clients or _ask("Clients: how many, or the column that says who they are", str(CLIENTS))
    plan = _who(who, source)
    wanted = goal or _ask(f"Goal: {', '.join(f'{name} ({why})' for name, (why, _) in GOALS.items())}", "compare", _goal)
    methods = GOALS[_goal(wanted)][1]
    values = {"rounds": 50, **plan, "data": source, "partition": _partition(source)}
    built = [Experiment.build({**values, "algorithm": name}, str(path)) for name in methods]
    refuse(built, built[0].data.load(data_root(root)))  # nothing is written that would not run
    atomic_write(path, _text(wanted, methods, values))
    verb = "compare" if len(methods) > 1 else "run"
    say(f"written: {escape(str(path))}. Next: [bold]undrift {verb} {escape(str(path))}[/]")


def asking() -> bool:
    return sys.stdin.isatty()


def _ask(question: str, default: str, check: Callable[[str], Any] = str) -> str:
    """An answer; asked again while it does not hold."""
    if not asking():
        raise InvalidInput(
            "init asks on a terminal; without one give --data, --clients and --goal (of a table --label too)"
        )
    while True:
        answer: str = typer.prompt(question, default=default or None)
        try:
            check(answer)
        except InvalidInput as error:
            say(f"[yellow]{escape(str(error))}[/]")
        else:
            return answer


def _source(text: str) -> dict[str, Any]:
    """The section [data] that a name or a file means."""
    kind = FILES.get(Path(text).suffix.lower())
    if kind is not None:
        if not Path(text).is_file():
            raise InvalidInput(f"data: there is no file {text}")
        return {"name": kind, "path": text}
    if text not in SOURCES:
        raise unknown("data set", text, SOURCES)
    if text in (*TABLES, "npz", "npy", "images"):
        raise InvalidInput(f"data: name the file itself instead of {text!r}, such as visits.csv")
    return {"name": text}


def _columns(path: Path) -> list[str]:
    if path.suffix.lower() != ".csv":
        return []
    with path.open(newline="", encoding="utf-8-sig") as file:
        return next(csv.reader(file), [])


def _who(answer: str, source: dict[str, Any]) -> dict[str, Any]:
    """The plan's keys that the answer means; a column goes to the data."""
    if answer.isdecimal():
        if int(answer) < 1:
            raise InvalidInput(f"clients = {answer}: at least one is needed")
        return {"clients": int(answer), "participate": min(int(answer), max(5, int(answer) // 5))}
    if source["name"] not in TABLES:
        raise InvalidInput(f"clients = {answer!r}: a whole number is needed; a column can be named of a table alone")
    source["client"] = answer
    return {}


def _partition(source: dict[str, Any]) -> dict[str, Any]:
    return {"name": "column"} if "client" in source else {"name": "dirichlet", "alpha": 0.3}


def _goal(answer: str) -> str:
    if answer not in GOALS:
        raise unknown("goal", answer, GOALS)
    return answer


def _text(goal: str, methods: Sequence[str], values: dict[str, Any]) -> str:
    """The experiment as a file to be changed."""
    many = len(methods) > 1
    lines = [f"# {GOALS[goal][0].capitalize()}: undrift {'compare' if many else 'run'} this file."]
    lines += (
        [f"algorithms = {json.dumps(methods)}  # undrift algorithms: all there are", 'seeds = "1..3"'] if many else []
    )
    lines += ["seed = 1"] if not many else []
    lines += [f"{key} = {value}" for key, value in values.items() if not isinstance(value, dict)]
    sections = {key: value for key, value in values.items() if isinstance(value, dict)}
    if not many:
        sections["algorithm"] = {"name": methods[0]}
    for name, section in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in section.items())]
    return "\n".join([*lines, ""])
