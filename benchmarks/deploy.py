"""What the network costs: exchanges with four sites over the real engine and mutual TLS, on the loopback interface.

A message goes down to each of four sites and comes back, without computing, of 250 KB and of 10 MB; beside it the same
through the bridge and the relays with no engine between them. Once, 250 MB go to one site, and it says how much memory
that took.
 Needs the engine's environment (`undrift deploy engine`, or UNDRIFT_ENGINE).
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from common import interleave, machine, write

from undrift.deploy import engine, kits
from undrift.deploy.bridge import Bridge
from undrift.deploy.engine import Daemon
from undrift.deploy.nvflare_pipe import NVFlarePipe
from undrift.deploy.pipe import Calls, Failure, Pipe, socket_file
from undrift.deploy.relay import Relay, Reply, Request

SITES = ("east", "north", "south", "west")
LIMIT = 300.0
ECHO = """
import resource, sys
from pathlib import Path
from undrift.deploy.pipe import Answers, socket_file
def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
base = peak()
with Answers(socket_file(Path(sys.argv[1])), lambda m: str(peak() - base).encode() if m == b"peak" else m):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def echoes(folder: Path) -> Iterator[None]:
    """A process per site that gives back what it was sent."""
    with contextlib.ExitStack() as stack:
        for site in SITES:
            process = subprocess.Popen(
                [sys.executable, "-c", ECHO, folder / site], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield


@contextlib.contextmanager
def nvflare(folder: Path) -> Iterator[NVFlarePipe]:
    """The real engine, with kits of its own."""
    place = engine.place()
    engine.check(place)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    made = kits.make(kits.Federation("bench", "localhost", SITES, port=port), folder / "kits", place)
    unpacked = {kit.name: kits.unpack(kit.path, folder / kit.name) for kit in made}
    with contextlib.ExitStack() as stack:
        for kit in unpacked.values():
            stack.enter_context(Daemon(kit, place))
        stack.enter_context(echoes(folder))
        pipe = stack.enter_context(NVFlarePipe(unpacked[kits.COORDINATOR], place))
        reached = pipe.open(within=LIMIT)
        if set(reached.values()) != {"ready"}:
            raise SystemExit(f"not all sites were reached: {reached}")
        yield pipe


@contextlib.contextmanager
def bare(folder: Path) -> Iterator[Calls]:
    """Bridge and relays in this process, with nothing between them."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(echoes(folder))
        relays = {site: Relay(socket_file(folder / site)) for site in SITES}

        def ask(site: str, request: Request, seconds: float) -> Reply | None:
            return relays[site].handle(request)

        path = socket_file(folder / "server")
        calls = stack.enter_context(Calls(path))
        bridge = Bridge(path, calls.token, ask)
        threading.Thread(target=bridge.run, args=(lambda: False,), daemon=True).start()
        assert calls.await_bridge(10)
        yield calls


def exchange(pipe: Pipe, size: int) -> None:
    message = random.Random(size).randbytes(size)
    answers = dict(pipe.call(dict.fromkeys(SITES, message), LIMIT))
    assert all(answer == message for answer in answers.values())


def large(pipe: Pipe, size: int) -> dict[str, Any]:
    """One message of a size to one site and back, and the memory that it took there."""
    message = random.Random(size).randbytes(size)
    site = SITES[0]
    began = time.perf_counter()
    (answer,) = dict(pipe.call({site: message}, LIMIT)).values()
    seconds = time.perf_counter() - began
    assert answer == message
    (peak,) = dict(pipe.call({site: b"peak"}, LIMIT)).values()
    assert not isinstance(peak, Failure)
    row = {"pipe": "NVFlare", "sites": 1, "bytes": size, "median, s": round(seconds, 2), "best, s": round(seconds, 2)}
    return {**row, "aim, s": "", "memory at the site / bytes": round(int(peak) / size, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--large", type=int, default=250_000_000, help="bytes of the one large message; 0: none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        real = stack.enter_context(nvflare(Path(folder) / "nvflare"))
        plain = stack.enter_context(bare(Path(folder) / "bare"))
        on, rows = machine(), []
        for size, aim in ((250_000, 0.1), (10_000_000, 1.5)):
            seconds = interleave(
                {"NVFlare": partial(exchange, real, size), "no engine": partial(exchange, plain, size)},
                options.repetitions,
            )
            for name in ("NVFlare", "no engine"):
                taken = seconds[name]
                row = {
                    "pipe": name,
                    "sites": len(SITES),
                    "bytes": size,
                    "median, s": round(statistics.median(taken), 4),
                }
                rows.append({**row, "best, s": round(min(taken), 4), "aim, s": aim if name == "NVFlare" else ""})
        if options.large:
            rows.append(large(real, options.large))
    write("deploy", "Exchanges with sites, without computing, on the loopback interface", rows, on)


if __name__ == "__main__":
    main()
