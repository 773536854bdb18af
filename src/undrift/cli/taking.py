"""Taking a trained model out of a run: the ``export-model`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from undrift.analysis.selection import selected
from undrift.cli.common import DEFAULT_LEDGER, LedgerOption, RootOption, open_ledger, say
from undrift.core.errors import InvalidInput
from undrift.experiment.takeout import SUFFIXES, Format, module_of


def register(app: typer.Typer) -> None:
    app.command("export-model")(export_model)


def export_model(
    run: Annotated[str, typer.Argument(help="Name, number or beginning of a run.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file; left out: RUN.safetensors.")] = None,
    format: Annotated[
        Format | None, typer.Option("--format", help="Left out: what the name of the file ends in.")
    ] = None,
    client: Annotated[str | None, typer.Option("--client", help="The personal model of this client.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
) -> None:
    """Write the model that a run has trained to a file, with a card beside it that says what it is."""
    with open_ledger(ledger) as book, book.reading():
        found = selected(book, [run])
        if len(found) != 1:
            raise InvalidInput(f"{run!r} stands for {len(found)} runs: a model is that of one run")
        taken = module_of(book, found[0], root, client)
    ending = next(ending for ending, kind in SUFFIXES.items() if kind == (format or "safetensors"))
    path = output or Path(found[0].name.replace("/", "-") + ("" if client is None else f"-{client}") + ending)
    card = path.with_suffix(".md")
    for there in (path, card):
        if there.exists() and not force:
            raise InvalidInput(f"{there} exists already: choose another name, or give --force")
    taken.save(path, format)
    card.write_text(taken.card(), encoding="utf-8")
    say(f"{escape(taken.what)} of [bold]{escape(found[0].name)}[/]: {escape(str(path))}; its card: {escape(str(card))}")
