"""Commands that look after a ledger: check, repair, rm, archive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from undrift.analysis.selection import selected
from undrift.cli.common import DEFAULT_LEDGER, LedgerOption, interactive, open_ledger, say
from undrift.cli.display import size
from undrift.core.errors import InvalidInput
from undrift.ledger.check import check as examine
from undrift.ledger.repair import outcome
from undrift.ledger.repair import repair as mend
from undrift.ledger.rows import Run

LedgerArgument = Annotated[
    Path, typer.Argument(metavar="[LEDGER]", envvar="UNDRIFT_LEDGER", help="The SQLite file that holds the runs.")
]
RunsArgument = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Names, numbers, beginnings or patterns of runs, or a comparison's name."),
]
TOLD = 5  # troubles or runs that a sentence names


def register(app: typer.Typer) -> None:
    for command in (check, repair, rm, archive):
        app.command()(command)


def check(ledger: LedgerArgument = DEFAULT_LEDGER) -> None:
    """Read all that a ledger holds and compare it with its digests. Exit code 2 if anything is not what was written."""
    found = examine(ledger)
    if found.damage:
        told = found.damage[:TOLD]
        more = f"; and {len(found.damage) - TOLD} more" if len(found.damage) > TOLD else ""
        raise InvalidInput(
            f"{ledger} is damaged: {'; '.join(told)}{more} "
            f"(`undrift repair {ledger}` goes back to the last sound round of each run)"
        )
    rounds, states = sum(one.upto for one in found.runs), sum(len(one.states) for one in found.runs)
    counted = f"{len(found.runs):,} runs, {rounds:,} rounds and {states:,} states"
    say(f"{escape(str(ledger))} is sound: {counted} are what was written ({size(ledger.stat().st_size)})")


def repair(ledger: LedgerArgument = DEFAULT_LEDGER) -> None:
    """Go back to the last sound round of each run of a damaged ledger. The damaged file is kept beside it."""
    done = mend(ledger)
    if done.aside is None:
        say(f"{escape(str(ledger))} is sound: there is nothing to repair")
        return
    for one in done.found.runs:
        if one.troubles:
            say(escape(outcome(one)))
    whole = sum(not one.troubles for one in done.found.runs)
    say(f"{whole} of {len(done.found.runs)} runs were sound; the damaged file is now {escape(str(done.aside))}")


def rm(
    names: RunsArgument,
    ledger: LedgerOption = DEFAULT_LEDGER,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete runs, with all that was recorded of them. Asks first."""
    with open_ledger(ledger) as book:
        runs = selected(book, names)
        if not yes and not interactive():
            raise InvalidInput(f"{_listed(runs)} would be deleted from {ledger}: say --yes where nobody can be asked")
        if not yes:
            typer.confirm(f"Delete {_listed(runs)} from {ledger}? It cannot be undone.", abort=True)
        for run in runs:
            with book.holding(run):
                book.delete(run)
        book.compact()
    say(f"deleted {escape(_listed(runs))}")


def archive(
    names: RunsArgument,
    to: Annotated[
        Path | None, typer.Option("--to", help="The ledger to move them to; left out: NAME-archive.sqlite beside it.")
    ] = None,
    ledger: LedgerOption = DEFAULT_LEDGER,
) -> None:
    """Move runs to another ledger, with all that belongs to them: there they can be shown and resumed as before."""
    to = to or ledger.with_name(f"{ledger.stem}-archive{ledger.suffix}")
    if to.resolve() == ledger.resolve():
        raise InvalidInput(f"--to {to} is the ledger that the runs are in: choose another file")
    with open_ledger(ledger) as book:
        runs = selected(book, names)
        with open_ledger(to, create=True) as other:
            for run in runs:
                book.move(run, other)
        book.compact()
    say(f"moved {escape(_listed(runs))} to {escape(str(to))}; see: undrift show --ledger {escape(str(to))}")


def _listed(runs: Sequence[Run]) -> str:
    """The runs in words; of many only the first."""
    named = ", ".join(run.name for run in runs[:TOLD])
    more = f" and {len(runs) - TOLD} more" if len(runs) > TOLD else ""
    return f"{len(runs)} run{'' if len(runs) == 1 else 's'} ({named}{more})"
