"""``undrift deploy demo``: a federation on this machine, as separate processes over mutual TLS, and what goes wrong.

Every site is a process that ends up with its own rows only; the coordinator is another. The demonstration plays the
operator: it starts what was killed, as a service manager would. At the end every round is compared with a simulation.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from rich.markup import escape

from undrift.cli.common import say
from undrift.core.errors import InvalidInput
from undrift.deploy import engine, kits
from undrift.deploy.policy import write
from undrift.experiment.description import read_toml
from undrift.experiment.execute import execute
from undrift.experiment.federate import Witnessed, fingerprint, rehearsal
from undrift.experiment.prepare import prepare_experiment
from undrift.experiment.recorder import InMemory
from undrift.ledger.rows import Entry

FOUR = ("east", "north", "south", "west")
METHODS = ("fedtrip", "scaffold")
LIMIT = 600.0  # seconds until the demonstration gives up

EXPERIMENT = """\
name = "{method}"
rounds = {rounds}
seed = 1

[algorithm]
name = "{method}"

[model]
name = "mlp"

[train]
lr = 0.1
batch_size = 16
epochs = 1

[deploy]
deadline = 30
attempts = 10
"""

SITE = """\
[data]
name = "digits"

[part]
number = {number}
of = {of}
seed = 1
"""


class Kept:
    """A process that is started again when it was killed, as a service manager does it."""

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name, self._arguments, self._log = name, arguments, folder / f"{name}.log"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self._output() as output:
            return subprocess.Popen(
                [sys.executable, "-m", "undrift", *self._arguments], stdin=subprocess.DEVNULL, stdout=output,
                stderr=output, env={**os.environ, "UNDRIFT_ENGINE": str(engine.place()), "COLUMNS": "120"},
            )  # fmt: skip

    def _output(self) -> IO[bytes]:
        return self._log.open("ab")

    def again(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def check(self) -> None:
        if self.process.poll() is not None:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            raise InvalidInput(f"{self.name} has ended (exit code {self.process.returncode}): {' / '.join(tail)}")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def demonstrate(folder: Path, rounds: int, calm: bool, count: int = len(FOUR)) -> None:
    if folder.exists():
        raise InvalidInput(f"{folder} is there already: the demonstration wants a new folder (--folder)")
    names = FOUR if count == len(FOUR) else tuple(f"site{number:02d}" for number in range(1, count + 1))
    killed = names[1]
    began = time.monotonic()
    _ready_engine()
    unpacked = _set_up(folder, names, rounds)
    say(f"Kits for a coordinator and {count} sites are made, with keys of their own ({_since(began)}).")
    simulated = {method: _simulated(folder / f"{method}.toml", count) for method in METHODS}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        sites = {}
        for name in names:
            sites[name] = Kept(name, ["site", "start", str(unpacked[name])], folder)
            stack.callback(sites[name].end)
        files = [str(folder / f"{method}.toml") for method in METHODS]
        kit = unpacked[kits.COORDINATOR]
        where = ["--kit", str(kit), "--ledger", str(folder / "ledger.sqlite"), "--quiet"]
        coordinator = Kept("coordinator", ["deploy", "run", *files, *where], folder)
        stack.callback(coordinator.end)
        say(f"{count} sites and a coordinator run, as processes of their own, over mutual TLS.")
        _follow(coordinator, kit / "journal.jsonl", rounds, _accidents(sites[killed], kit, rounds, calm))
    _compare(_rounds(kit / "journal.jsonl"), simulated, began)
    say(f"The runs: [bold]undrift show --ledger {escape(str(folder / 'ledger.sqlite'))}[/]")
    say(f"A site's log: [bold]undrift site log {escape(str(unpacked[killed]))} --verify[/]")


def _ready_engine() -> None:
    place = engine.place()
    if not (place / "bin" / "nvflare").exists():
        say(f"Installing the engine in {escape(str(place))}; this is done once ...")
        engine.install(place)
    else:
        engine.seed(place)


def _set_up(folder: Path, names: tuple[str, ...], rounds: int) -> dict[str, Path]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    made = kits.make(kits.Federation("demo", "localhost", names, port=port), folder / "kits", engine.place())
    unpacked = {kit.name: kits.unpack(kit.path, folder / kit.name) for kit in made}
    for number, name in enumerate(names, 1):
        write(unpacked[name] / "site.toml", SITE.format(number=number, of=len(names)).encode())
        write(unpacked[name] / "policy.toml", b'experiments = ["fedtrip", "scaffold"]\nsmallest_cohort = 3\n')
    for method in METHODS:
        write(folder / f"{method}.toml", EXPERIMENT.format(method=method, rounds=rounds).encode())
    return unpacked


def _simulated(path: Path, sites: int) -> list[str]:
    """The fingerprint of every round of the same experiment, simulated here."""
    found: list[str] = []

    def witness(entry: Entry) -> None:
        found.append(fingerprint(entry))

    prepared = prepare_experiment(rehearsal(read_toml(path), sites, str(path)))
    execute(prepared, Witnessed(InMemory(prepared), witness))
    return found


def _accidents(site: Kept, kit: Path, rounds: int, calm: bool) -> dict[tuple[str, int], Callable[[], None]]:
    """What happens in which round of which run."""

    def lose_a_site() -> None:
        say(f"  kill -9: site {site.name} (it is started again)")
        site.again()

    def lose_the_engine() -> None:
        say("  kill -9: the engine beside the coordinator")
        for process in engine.processes(kit / "server"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    third = max(2, rounds // 3)
    return {} if calm else {(METHODS[0], third): lose_a_site, (METHODS[1], third): lose_the_engine}


def _follow(
    coordinator: Kept, journal: Path, rounds: int, accidents: dict[tuple[str, int], Callable[[], None]]
) -> None:
    """Wait for the coordinator to end; let things happen when their round has been played."""
    until, told = time.monotonic() + LIMIT, set[str]()
    while coordinator.process.poll() is None:
        if time.monotonic() > until:
            raise InvalidInput(f"the demonstration was not done after {LIMIT:g} s; the logs are beside the kits")
        for method, played in _rounds(journal).items():
            if method not in told:
                say(f"[bold]{method}[/]: the first of {rounds} rounds is done.")
                told.add(method)
            for (when, at), happen in list(accidents.items()):
                if when == method and len(played) >= at:
                    del accidents[(when, at)]
                    happen()
        time.sleep(0.1)
    if coordinator.process.returncode:
        coordinator.check()


def _rounds(journal: Path) -> dict[str, dict[int, str]]:
    """The fingerprints that the coordinator's log has so far, by method and round."""
    found: dict[str, dict[int, str]] = {}
    if journal.exists():
        for text in journal.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # a line that is being written
                line: dict[str, Any] = json.loads(text)
                if line["what"] == "round":
                    found.setdefault(str(line["run"]).rsplit("-", 1)[0], {})[line["round"]] = line["bits"]
    return found


def _compare(played: dict[str, dict[int, str]], simulated: dict[str, list[str]], began: float) -> None:
    for method, expected in simulated.items():
        same = sum(played.get(method, {}).get(at) == bits for at, bits in enumerate(expected, 1))
        if same != len(expected):
            raise InvalidInput(f"{method}: {same} of {len(expected)} rounds have the bits of the simulation")
        say(f"[bold]{method}[/]: {same} of {len(expected)} rounds have the bits of the simulation.")
    say(f"Done in {_since(began)} after set-up.")


def _since(began: float) -> str:
    return f"{time.monotonic() - began:.0f} s"
