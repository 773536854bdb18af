"""A member of a federation as a process that can be killed: real sockets, real bridge and relays, no engine.

    python party.py site FOLDER NUMBER
    python party.py coordinator FOLDER EXPERIMENT.toml [again]

The coordinator goes on with its run where there is one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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


def site(folder: Path, number: int) -> None:
    data, _ = held({"data": {"name": "digits"}, "part": {"number": number + 1, "of": COUNT}}, "the data")
    place = folder / NAMES[number]
    member = Site(place, NAMES[number], data, Policy(experiments="any"), Installed())
    with Answers(socket_file(place), member.answer):
        print("ready", flush=True)
        sys.stdin.read()


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


if __name__ == "__main__":
    if sys.argv[1] == "site":
        site(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        coordinator(Path(sys.argv[2]), Path(sys.argv[3]))
