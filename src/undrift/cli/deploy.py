"""Commands of the one who organises and the one who trains: deploy init, engine, run, status, demo."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from undrift.cli import attendance
from undrift.cli.common import (
    DEFAULT_LEDGER,
    JsonOption,
    LedgerOption,
    QuietOption,
    RootOption,
    command_line,
    complain,
    console,
    errors,
    open_ledger,
    say,
)
from undrift.cli.display import watching
from undrift.cli.ending import UNWELL, judged
from undrift.cli.showing import announce, print_json
from undrift.core.errors import InvalidInput
from undrift.deploy import engine, flower_pipe, kits
from undrift.deploy.coordinator import Abandoned
from undrift.deploy.engine import Daemon
from undrift.deploy.flower_pipe import FlowerPipe
from undrift.deploy.journal import Journal
from undrift.deploy.nvflare_pipe import NVFlarePipe
from undrift.experiment.federate import Federated, federate
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger

app = typer.Typer(no_args_is_help=True, help="A real federation: sites that keep their data, over mutual TLS.")

FlowerOption = Annotated[
    str | None, typer.Option("--flower", metavar="CONNECTION", help="Over Flower: a SuperLink in its configuration.")
]
KitOption = Annotated[Path, typer.Option("--kit", help="The coordinator's kit: the folder, or the archive.")]

EXAMPLE = """\
name = "clinics"                 # of the federation
host = "fl.example.org"          # the machine that the coordinator runs on; the sites must be able to reach it
port = 8002                      # the one port that must be open there
sites = ["north", "south", "west"]
"""


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="deploy")


@app.command()
def init(
    federation: Annotated[Path | None, typer.Argument(metavar="FEDERATION.toml", help="Who takes part.")] = None,
    folder: Annotated[Path, typer.Option("--kits", help="Where to put the kits: a new folder.")] = Path("kits"),
    example: Annotated[bool, typer.Option("--example", help="Print a FEDERATION.toml to begin with.")] = False,
) -> None:
    """Make one sealed kit per site and one for the coordinator, and a page that says what to send to whom."""
    if example or federation is None:
        console.print(EXAMPLE, end="", markup=False, soft_wrap=True)
        return
    made = kits.make(kits.Federation.read(federation), folder, engine.place())
    for kit in made:
        say(f"[bold]{escape(str(kit.path))}[/]  {kit.sha256[:16]}")
    say(f"What to send to whom, and which port to open: [bold]{escape(str(folder / 'README.md'))}[/]")


@app.command("engine")
def engine_command() -> None:
    """Install the engine that carries messages (NVFlare), in an environment of its own; or bring it up to date."""
    place = engine.place()
    if (place / "bin" / "nvflare").exists():
        engine.seed(place)
    else:
        say(f"Installing {engine.VERSIONS} in {escape(str(place))} ...")
        engine.install(place)
    engine.check(place)
    say(f"The engine at [bold]{escape(str(place))}[/] is ready.")


@app.command()
def run(
    experiments: Annotated[
        list[Path] | None, typer.Argument(metavar="EXPERIMENT.toml...", help="What to train, one after the other.")
    ] = None,
    kit: KitOption = Path("coordinator"),
    name: Annotated[str | None, typer.Option("--name", help="What to call the run in the ledger.")] = None,
    again: Annotated[str | None, typer.Option("--resume", help="Go on with this run where it stopped.")] = None,
    flower: FlowerOption = None,
    patience: Annotated[float, typer.Option("--wait", help="Seconds to wait for the sites at the beginning.")] = 300.0,
    ledger: LedgerOption = DEFAULT_LEDGER,
    root: RootOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Train with the sites of a federation; they are the clients. The same ledger, report and display as ever.

    undrift deploy run fedtrip.toml --kit coordinator
    """
    described = [Federated.load(path) for path in experiments or ()]
    if bool(described) == (again is not None):
        raise InvalidInput("give one or more experiments, or --resume with the name of a run")
    kit = opened(kit, "coordinator")
    histories = []
    with open_ledger(ledger, create=again is None) as book, contextlib.ExitStack() as stack:
        earlier = None if again is None else _earlier(book, again)
        if earlier is not None:
            described = [Federated.of(earlier)]
        pipe: NVFlarePipe | FlowerPipe
        if flower is None:
            pipe = stack.enter_context(connected(kit))
        else:
            pipe = stack.enter_context(over_flower(kit, flower))
        journal = Journal(kit / "journal.jsonl")
        stack.callback(journal.close)
        for federated in described:
            with watching(quiet) as observer, _told_how_to_go_on(book, kit):
                aloud: dict[str, Any] = {"say": _aloud, "watch": observer.watch, "within": observer.within}
                told: dict[str, Any] = {"name": name or "", "extra": {"command": command_line()}}
                result = federate(
                    federated, pipe, pipe.sites, book, journal,
                    again=earlier, patience=patience, root=root, **aloud, **told,
                )  # fmt: skip
            announce(result, as_json)
            histories.append(result.history)
    raise typer.Exit(judged(histories))


@contextlib.contextmanager
def _told_how_to_go_on(book: Ledger, kit: Path) -> Iterator[None]:
    """A run that stopped on its way can go on: say how."""
    before = {run.id: run.rounds for run in book.runs()}
    try:
        yield
    except (KeyboardInterrupt, Abandoned) as error:
        begun = [run for run in book.runs() if "deployed" in run.facts and run.rounds > before.get(run.id, -1)]
        if isinstance(error, Abandoned):
            complain(str(error))
        if begun:
            _aloud(f"go on with: undrift deploy run --resume {begun[-1].name} --kit {kit} --ledger {book.path}")
        if isinstance(error, Abandoned):
            raise typer.Exit(UNWELL) from None
        raise


def _earlier(book: Ledger, name: str) -> Run:
    found = book.run(name)
    if "deployed" not in found.facts:
        raise InvalidInput(f"run {found.name!r} is a simulation: `undrift resume {found.name}` goes on with it")
    return found


def _aloud(sentence: str) -> None:
    errors.print(escape(sentence))


@app.command()
def status(kit: KitOption = Path("coordinator"), as_json: JsonOption = False) -> None:
    """Who is there, since when, how fast, and what they hold if they tell.

    From the log of the run that is on, or by asking the sites if there is none.
    """
    kit = opened(kit, "coordinator")
    if engine.is_running(kit):
        rows = attendance.last_round(kit)
    else:
        with connected(kit) as pipe:
            rows = attendance.asked(pipe)
    if as_json:
        print_json(rows)
        return
    table = Table(box=None)
    for column in rows[0] if rows else ("site",):
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()))
    console.print(table)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--folder", help="A new folder for kits and runs.")] = Path("runs/deploy"),
    rounds: Annotated[int, typer.Option("--rounds", min=4, help="Rounds of each of the two runs.")] = 30,
    calm: Annotated[bool, typer.Option("--calm", help="Kill nothing.")] = False,
    sites: Annotated[int, typer.Option("--sites", min=3, max=64, help="Each takes about 450 MB of memory.")] = 4,
) -> None:
    """Sites and a coordinator on this machine, over mutual TLS; a site and the engine are killed on the way."""
    from undrift.cli.demonstration import demonstrate

    demonstrate(folder, rounds, calm, sites)


# --- what the commands of a site need too -----------------------------------------------------------------------------


def opened(kit: Path, role: str) -> Path:
    """The folder of a kit; an archive is unpacked beside itself, once."""
    if kit.suffix == ".zip":
        folder = kit.with_suffix("")
        kit = folder if folder.exists() else kits.unpack(kit, folder)
    found = kits.about(kit)
    if found.get("role") != role:
        raise InvalidInput(f"{kit} is the kit of a {found.get('role')}, and a {role}'s is needed")
    return kit


@contextlib.contextmanager
def connected(kit: Path) -> Iterator[NVFlarePipe]:
    """The coordinator's end of the pipe, with the engine running as long as it is used."""
    place = engine.place()
    with in_sentences(), ended_by_term(), Daemon(kit, place), NVFlarePipe(kit, place) as pipe:
        yield pipe


@contextlib.contextmanager
def over_flower(kit: Path, superlink: str) -> Iterator[FlowerPipe]:
    """The coordinator's end of the pipe, over a SuperLink that somebody else runs."""
    with in_sentences(), ended_by_term(), FlowerPipe(kit, flower_pipe.place(), superlink) as pipe:
        yield pipe


@contextlib.contextmanager
def ended_by_term() -> Iterator[None]:
    """A service is asked to end by a signal: that is a Ctrl-C like any other."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def in_sentences(level: int = logging.WARNING) -> Iterator[None]:
    """What the modules of a deployment have to say, a line each."""

    class Aloud(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.print(escape(f"{self.format(record)}"))

    logger, handler = logging.getLogger("undrift"), Aloud()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def as_table(rows: Sequence[tuple[str, str]]) -> None:
    table = Table(box=None, show_header=False)
    for name, value in rows:
        table.add_row(name, escape(value))
    console.print(table)


def shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
