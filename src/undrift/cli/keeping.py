"""Commands that look after a ledger: check, repair, rm, archive."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from undrift.cli.common import DEFAULT_LEDGER, say
from undrift.cli.display import size
from undrift.core.errors import InvalidInput
from undrift.ledger.check import check as examine
from undrift.ledger.repair import outcome
from undrift.ledger.repair import repair as mend

LedgerArgument = Annotated[
    Path, typer.Argument(metavar="[LEDGER]", envvar="UNDRIFT_LEDGER", help="The SQLite file that holds the runs.")
]
TOLD = 5  # troubles that a sentence names


def register(app: typer.Typer) -> None:
    app.command()(check)
    app.command()(repair)


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
