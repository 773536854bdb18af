"""A member of a federation as a process that can be killed: real sockets, real bridge and relays, no engine.

``start`` forks it from a process that has imported all that a member needs, once: a trial with ten restarts would
otherwise spend most of its time on importing torch. The coordinator goes on with its run where there is one.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path

from undrift.deploy.bridge import Bridge, Pace
from undrift.deploy.journal import Journal
from undrift.deploy.pipe import Answers, Calls, socket_file
from undrift.deploy.policy import Policy
from undrift.deploy.relay import Relay, Reply, Request
from undrift.deploy.site import Site
from undrift.deploy.wire import CHUNK
from undrift.experiment.deployed import Installed
from undrift.experiment.federate import Federated, federate
from undrift.experiment.sitedata import held
from undrift.ledger.store import Ledger

COUNT = 4
NAMES = [f"site{number}" for number in range(COUNT)]


class Process:
    """A member that runs, until it ends or is killed."""

    def __init__(self, role: str, folder: Path, what: str) -> None:
        nurse()
        mine, theirs = NURSERY.Pipe()
        self._ready = mine
        self._process = NURSERY.Process(target=_member, args=(role, folder, what, theirs))
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def await_ready(self) -> None:
        assert self._ready.recv() == "ready"

    def wait(self, seconds: float) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def running(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


NURSERY = multiprocessing.get_context("forkserver")


def nurse() -> None:
    """Start the process that members are forked from. It finds this module by the path that it is given, and no other
    way: what it cannot import, it passes over without a word."""
    NURSERY.set_forkserver_preload(["party"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *([before] if before else [])])
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def _member(role: str, folder: Path, what: str, ready: Connection) -> None:
    log = os.open(folder / f"{role}{what[:1]}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if role == "site":
        site(folder, int(what), ready)
    else:
        coordinator(folder, Path(what))


def site(folder: Path, number: int, ready: Connection) -> None:
    data, _ = held({"data": {"name": "digits"}, "part": {"number": number + 1, "of": COUNT}}, "the data")
    place = folder / NAMES[number]
    member = Site(place, NAMES[number], data, Policy(experiments="any"), Installed())
    with Answers(socket_file(place), member.answer):
        ready.send("ready")
        with suppress(EOFError):
            ready.recv()  # until the test ends, in whatever way


@contextmanager
def piped(folder: Path) -> Iterator[Calls]:
    relays = {name: Relay(socket_file(folder / name)) for name in NAMES}

    def ask(name: str, request: Request, seconds: float) -> Reply | None:
        return relays[name].handle(request)

    path = socket_file(folder / "coordinator")
    with ExitStack() as stack:
        calls = stack.enter_context(Calls(path))
        bridge = Bridge(path, calls.token, ask, Pace(piece=16 * CHUNK, wait=0.5, grace=1.0, tries=3))
        threading.Thread(target=bridge.run, args=(lambda: False,), daemon=True).start()
        assert calls.await_bridge(10)
        yield calls


def coordinator(folder: Path, experiment: Path) -> None:
    with ExitStack() as stack:
        calls = stack.enter_context(piped(folder))
        book = stack.enter_context(Ledger(folder / "ledger.sqlite", create=True))
        journal = Journal(folder / "coordinator" / "journal.jsonl")
        earlier = book.runs()
        again = earlier[0] if earlier else None
        federated = Federated.load(experiment) if again is None else Federated.of(again)
        federate(federated, calls, NAMES, book, journal, again=again, patience=120)
