"""The command line. Bad input gets one sentence and exit code 2; Ctrl-C stops cleanly and says how to go on.

`undrift.cli.ending` lists the exit codes.
"""

from __future__ import annotations

import os
import re
import sqlite3
import sys
from typing import Annotated

import click
import typer

from undrift.cli import authors, beginning, keeping, lists, reproduce, runs, seeing, showing, studies, taking
from undrift.cli.common import complain, errors, say, show_warnings
from undrift.cli.deploy import register as register_deploy
from undrift.cli.ending import (
    BAD_INPUT,
    BUG,
    OK,
    STOPPED,
    TERMINATED,
    report_bug,
    surroundings,
    terminable,
)
from undrift.cli.site import register as register_site
from undrift.core.errors import InvalidInput
from undrift.version import versions

app = typer.Typer(
    name="undrift",
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Federated learning that holds course when the clients' data differ.\n\n"
    "Start with [bold]undrift demo[/], then [bold]undrift compare --algorithms fedavg,fedtrip --seeds 1..3[/].",
    epilog="Every command has --help. Shell completion: undrift --install-completion.",
)


def _say_version(wanted: bool) -> None:
    if wanted:
        say(versions())
        raise typer.Exit


@app.callback()
def about(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Say which undrift this is, and on what it runs.", is_eager=True, callback=_say_version
        ),
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        beginning.here()


beginning.register(app)
runs.register(app)
studies.register(app)
reproduce.register(app)
showing.register(app)
register_deploy(app)
register_site(app)
lists.register(app)
seeing.register(app)
keeping.register(app)
taking.register(app)
authors.register(app)


def main() -> None:
    """The entry point of the ``undrift`` command."""
    sys.exit(run(sys.argv[1:]))


def run(args: list[str]) -> int:
    """Run a command line; the exit code."""
    show_warnings()
    with terminable() as asked:
        code = _run(args)
    return TERMINATED if asked and code == STOPPED else code


def _run(args: list[str]) -> int:
    try:
        code = app(args, standalone_mode=False)  # Typer returns the code of an exit, and of Ctrl-C
    except InvalidInput as error:
        complain(str(error))
        return BAD_INPUT
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.NoArgsIsHelpError:
        return OK  # the help has been shown
    except click.ClickException as error:
        complain(_sentence(error))
        return BAD_INPUT
    except (click.Abort, KeyboardInterrupt):
        complain("stopped")
        return STOPPED
    except BrokenPipeError:
        errors.file = open(os.devnull, "w")  # noqa: SIM115 - the reader of our output has gone; say nothing more
        return OK
    except (OSError, MemoryError, sqlite3.OperationalError) as error:  # the machine's, not undrift's
        complain(surroundings(error))
        return BAD_INPUT
    except Exception as error:
        report_bug(error)
        return BUG
    return code if isinstance(code, int) else OK


def _sentence(error: click.ClickException) -> str:
    where = getattr(error, "ctx", None)
    help_hint = f" (see {where.command_path} --help)" if where is not None else ""
    if isinstance(error, click.NoSuchOption):  # not the twins of a flag: --head_epochs, --algorithm.mu
        known = [p for p in error.possibilities or () if "_" not in p and ("." not in p or "." in error.option_name)]
        meant = f" Did you mean '{known[0]}'?" if known else ""
        return f"No such option '{error.option_name}'.{meant}{help_hint}"  # Click's own words differ between versions
    text = error.format_message().replace("\n", " ").rstrip(".")
    sentences = dict.fromkeys(re.split(r"(?<=[.?]) ", text))  # Typer and Click both add a did-you-mean
    return " ".join(sentences) + help_hint
