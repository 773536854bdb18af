"""What the commands share: the console, the ledger option, and how errors become one sentence."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from undrift.core.errors import InvalidInput
from undrift.ledger.store import Ledger

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

DEFAULT_LEDGER = Path("runs/ledger.sqlite")

LedgerOption = Annotated[
    Path,
    typer.Option("--ledger", envvar="UNDRIFT_LEDGER", help="The SQLite file that holds the runs.", dir_okay=False),
]
RootOption = Annotated[
    Path | None,
    typer.Option("--data-root", envvar="UNDRIFT_DATA", help="Where data sets are. Left out: the user's cache."),
]
TrackOption = Annotated[
    str | None, typer.Option("--track", help="Write to `tensorboard` or `mlflow` too, as rounds go by.")
]
DurableOption = Annotated[
    bool | None,
    typer.Option(
        "--durable/--no-durable",
        help="Wait for the disk after each round, so that a power cut loses none; the ledger remembers it.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress display.")]


def say(text: str) -> None:
    """A line for the user, with markup."""
    console.print(text)


def complain(sentence: str) -> None:
    """An error, as one sentence."""
    errors.print(f"[bold red]undrift:[/] {escape(sentence)}")


def show_warnings() -> None:
    """Warnings as one line each, without file names and source lines, and none of them twice.

    Python forgets what it has said whenever a library changes the filters, so what was said is kept here.
    """
    said: set[str] = set()

    def show(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
        if str(message) not in said:
            said.add(str(message))
            errors.print(f"[yellow]warning:[/] {escape(str(message))}")

    warnings.showwarning = show
    warnings.simplefilter("once", UserWarning)


def open_ledger(path: Path, *, create: bool = False, durable: bool | None = None) -> Ledger:
    if not create and not path.exists():
        raise InvalidInput(f"there is no ledger at {path}: runs are recorded there, or give another with --ledger")
    return Ledger(path, create=create, durable=durable)


def command_line() -> str:
    """The command as it was typed."""
    import shlex
    import sys

    return shlex.join(["undrift", *sys.argv[1:]])


def interactive() -> bool:
    return console.is_terminal and "CI" not in os.environ
