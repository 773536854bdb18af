"""What the network costs: exchanges with four sites over the real engine and mutual TLS, on the loopback interface.

A message goes down to each of four sites and comes back, without computing, of 250 KB and of 10 MB; beside it the same
through the bridge and the relays with no engine between them, a round of NVFlare's own FedAvg recipe and a round of
Flower's own FedAvg, whose clients send back what they get. Once, 250 MB go to one site and back, and both ends say how
much memory that took.

    undrift deploy engine                                   # NVFlare; or UNDRIFT_ENGINE names its environment
    python -m venv flower && flower/bin/pip install flwr==1.41.0
    UNDRIFT_FLOWER=flower python benchmarks/deploy.py       # without it Flower is left out, and the table says so
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "deploy"))

from common import interleave, machine, write
from superlink import SuperLink

from undrift.deploy import engine, flower_pipe, kits
from undrift.deploy.bridge import Bridge
from undrift.deploy.engine import Daemon
from undrift.deploy.flower_pipe import FlowerPipe
from undrift.deploy.nvflare_pipe import NVFlarePipe
from undrift.deploy.pipe import Calls, Failure, Pipe, socket_file
from undrift.deploy.relay import Relay, Reply, Request

SITES = ("east", "north", "south", "west")
LIMIT = 300.0
LONGEST = 1200.0  # seconds of another's rounds, with all that they need to start
ADAPTERS = Path(__file__).parent / "adapters"
ECHO = """
import sys
from pathlib import Path
from undrift.deploy.pipe import Answers, socket_file
def peak():  # of this program alone: getrusage counts what its parent had when it was forked
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
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
def over_flower(folder: Path, environment: Path) -> Iterator[FlowerPipe]:
    """A SuperLink and a SuperNode per site, with TLS, in Flower's own environment."""
    names = [kits.COORDINATOR, *SITES]
    for name in names:
        (folder / name).mkdir(mode=0o700, parents=True)
        (folder / name / "kit.json").write_text(json.dumps({"name": name, "sites": SITES}), encoding="utf-8")
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(SuperLink(folder / "link", environment))
        os.environ["FLWR_HOME"] = link.environment["FLWR_HOME"]
        for site in SITES:
            link.node(f'kit="{folder / site}"')
        stack.enter_context(echoes(folder))
        pipe = stack.enter_context(FlowerPipe(folder / kits.COORDINATOR, environment))
        reached = pipe.open(within=LIMIT)
        if set(reached.values()) != {"ready"}:
            raise SystemExit(f"not all sites were reached over Flower: {reached}")
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


def recipe(adapter: str, python: Path, size: int, rounds: int) -> list[float]:
    """Seconds of the rounds of another's FedAvg, played in its own environment; the first is a warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        words = [str(python), str(ADAPTERS / f"{adapter}.py"), str(size), str(rounds + 1), str(len(SITES)), folder]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(words, env=kept, cwd=folder, capture_output=True, text=True, timeout=LONGEST)
        if done.returncode:
            raise SystemExit(f"{adapter} failed: {done.stderr[-2000:]}")
        return [float(seconds) for seconds in json.loads(done.stdout.splitlines()[-1])][1:]


def rivals() -> dict[str, tuple[str, Path]]:
    """Whose FedAvg is measured beside ours: the adapter and the interpreter of each that is installed."""
    found = {"NVFlare's FedAvg recipe": ("nvflare_fedavg", engine.place() / "bin" / "python")}
    named = os.environ.get("UNDRIFT_FLOWER")
    if named:
        found["Flower's FedAvg"] = ("flower_fedavg", Path(named).resolve() / "bin" / "python")
    else:
        print("Flower is left out: let UNDRIFT_FLOWER name an environment that has it")
    return found


def row(name: str, sites: int, size: int, taken: Sequence[float], aim: float | None = None) -> dict[str, Any]:
    return {
        "pipe": name,
        "sites": sites,
        "bytes": size,
        "median, s": round(statistics.median(taken), 4),
        "best, s": round(min(taken), 4),
        "aim, s": aim or "",
        "memory at the site / bytes": "",
        "at the coordinator": "",
    }


def large(pipe: Pipe, size: int) -> dict[str, Any]:
    """One message of a size to one site and back, and the memory that it took at both ends."""
    before = resident()
    message = random.Random(size).randbytes(size)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here
    began = time.perf_counter()
    (answer,) = dict(pipe.call({SITES[0]: message}, LIMIT)).values()
    seconds = time.perf_counter() - began
    here = resident("VmHWM") - before
    assert answer == message
    (there,) = dict(pipe.call({SITES[0]: b"peak"}, LIMIT)).values()
    assert not isinstance(there, Failure)
    ratios = {"memory at the site / bytes": round(int(there) / size, 2), "at the coordinator": round(here / size, 2)}
    return {**row("undrift over NVFlare", 1, size, [seconds]), **ratios}


def resident(what: str = "VmRSS") -> int:
    """Bytes of memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(what))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--large", type=int, default=250_000_000, help="bytes of the one large message; 0: none")
    options = parser.parse_args()
    others, on, rows = rivals(), machine(), []
    for size, aim in ((250_000, 0.1), (10_000_000, 1.5)):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            real = stack.enter_context(nvflare(Path(folder) / "nvflare"))
            plain = stack.enter_context(bare(Path(folder) / "bare"))
            mine = {"undrift over NVFlare": partial(exchange, real, size), "no engine": partial(exchange, plain, size)}
            seconds = interleave(mine, options.repetitions)
            rows += [row(name, len(SITES), size, seconds[name], aim * (name != "no engine")) for name in mine]
            if options.large and size == 250_000:
                rows.append(large(real, options.large))
        for name, (adapter, python) in others.items():  # after ours has ended: they would share two cores
            rows.append(row(name, len(SITES), size, recipe(adapter, python, size, options.repetitions)))
        if "Flower's FedAvg" in others:
            with tempfile.TemporaryDirectory() as folder, over_flower(Path(folder), flower_pipe.place()) as pipe:
                seconds = interleave({"undrift over Flower": partial(exchange, pipe, size)}, options.repetitions)
            rows.append(row("undrift over Flower", len(SITES), size, seconds["undrift over Flower"]))
    write("deploy", "Exchanges with sites, without computing, on the loopback interface", rows, on)


if __name__ == "__main__":
    main()
