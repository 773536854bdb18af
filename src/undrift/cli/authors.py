"""For authors of methods: ``new`` writes one that runs, ``conform`` asks what holds of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from undrift.algorithms import algorithms
from undrift.cli.common import JsonOption, console, say
from undrift.core.errors import InvalidInput
from undrift.studies.conform import QUESTIONS, Answer, conform


def register(app: typer.Typer) -> None:
    app.command("new")(new)
    app.command("conform")(conform_command)


def new(
    what: Annotated[Literal["method"], typer.Argument(help="What to write: method.")],
    name: Annotated[str, typer.Argument(help="Its name, as on the command line: fedleash.")],
    folder: Annotated[Path, typer.Option("--folder", "-C", help="Where to write it.", file_okay=False)] = Path(),
) -> None:
    """Write a method that runs, with its test and its page, to be changed."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise InvalidInput(f"name = {name!r}: it must be a Python name in small letters, such as fedleash")
    if name in algorithms():
        raise InvalidInput(f"there is a method {name!r} already: choose another name")
    files = {f"{name}.py": METHOD, f"test_{name}.py": TEST, f"{name}.md": PAGE}
    there = [file for file in files if (folder / file).exists()]
    if there:
        raise InvalidInput(f"{folder / there[0]} exists already: choose another name or another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text.replace("NAME", name).replace("TITLE", _title(name)), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be written to: {error.strerror or error}") from None
    at = folder / f"{name}.py"
    reference = escape(f"./{at}" if not at.is_absolute() else str(at))
    say(f"written: {', '.join(escape(str(folder / file)) for file in files)}")
    say(f"try: undrift run --algorithm {reference} --rounds 10; undrift conform {reference}")


def _title(name: str) -> str:
    rest = name.removeprefix("fed").replace("_", "")
    return f"Fed{rest.capitalize()}" if name.startswith("fed") and rest else name.replace("_", "").capitalize()


def conform_command(
    method: Annotated[str, typer.Argument(help="A method's name, ./file.py, or package.module:Name.")],
    as_json: JsonOption = False,
) -> None:
    """Ask what holds of a method: same bits everywhere, from bytes, after a stop; does it learn, what does it send."""
    from undrift.cli.showing import print_json

    kind = algorithms()[method]
    answers: list[Answer] = []
    with console.status("", spinner="dots") as status:
        found = conform(kind)
        for question in QUESTIONS:
            status.update(question)
            answers.append(next(found))
            if not as_json:
                _say(answers[-1])
    if as_json:
        rows = [{"question": a.question, "holds": a.holds, "remark": a.remark} for a in answers]
        print_json({"method": method, "holds": all(a.holds for a in answers), "answers": rows})
    failed = [a for a in answers if not a.holds]
    if not as_json:
        say(f"{kind.title or method}: {len(answers) - len(failed)} of {len(answers)} hold")
    if failed:
        raise typer.Exit(1)


def _say(answer: Answer) -> None:
    mark = "[green]holds[/]" if answer.holds else "[bold red]fails[/]"
    say(f"  {mark}  {answer.question}" + (f" ({escape(answer.remark)})" if answer.remark else ""))


METHOD = '''"""TITLE: FedAvg whose clients may not move further than `radius` from the model they received."""

from __future__ import annotations

from typing import Annotated, ClassVar

from undrift import Averaging, Broadcast, Local, Nothing, Trained, positive


class TITLE(Averaging[Nothing]):
    title: ClassVar[str] = "TITLE"
    paper: ClassVar[str] = "not published yet"

    radius: Annotated[float, "largest move of a client per round", positive()] = 1.0

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        x = local.descend(local.grad, down.x)
        move = x - down.x
        return Trained(down.x + move * (self.radius / move.norm()).clamp(max=1)), me
'''

TEST = '''"""TITLE keeps what all methods promise, and its own word."""

import pathlib

import pytest

import undrift
from undrift.studies.conform import QUESTIONS, conform

METHOD = undrift.algorithms.algorithms()[str(pathlib.Path(__file__).with_name("NAME.py"))]


def test_it_conforms():
    answers = list(conform(METHOD))
    assert len(answers) == len(QUESTIONS)
    assert [answer for answer in answers if not answer.holds] == []


def test_a_wide_leash_is_fedavg():
    wide = undrift.run(METHOD(radius=1e6), rounds=3)
    free = undrift.run("fedavg", rounds=3)
    assert wide.accuracy == pytest.approx(free.accuracy, abs=0.01)
'''

PAGE = """# TITLE

What it does, in two sentences: a client trains as in FedAvg, and its move is cut back to `radius`.

| setting | meaning | default |
| --- | --- | --- |
| `radius` | largest move of a client per round | 1.0 |

    undrift run --algorithm ./NAME.py --radius 0.5 --data digits --partition dirichlet --alpha 0.1
"""
