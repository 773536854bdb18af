"""A federation of four sites on this machine, over the real engine and mutual TLS."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from undrift.deploy import engine, kits
from undrift.deploy.engine import Daemon
from undrift.deploy.nvflare_pipe import NVFlarePipe
from undrift.deploy.pipe import socket_file

SITES = ("east", "north", "south", "west")

# A site process: answers with the bytes it was given; to "peak" with the memory it took, to "wait" when it is told to.
SITE = """
import sys, time
from pathlib import Path
from undrift.deploy.pipe import Answers, socket_file

def peak():  # of this program alone: getrusage counts what its parent had when it was forked
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

base, kit = peak(), Path(sys.argv[1])

def answer(message):
    if message == b"peak":
        return str(peak() - base).encode()
    if message == b"wait":
        (kit / "waiting").touch()
        time.sleep(3600)
    return message

with Answers(socket_file(kit), answer):
    print("ready", flush=True)
    sys.stdin.read()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Federation:
    """Kits, daemons and site processes, each of which can be ended and started again."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.environment = environment
        self.plan = kits.Federation("trial", "localhost", SITES, port=free_port())
        self.packed = kits.make(self.plan, folder / "packed", environment)
        self.kits = {kit.name: kits.unpack(kit.path, folder / kit.name) for kit in self.packed}
        self.daemons: dict[str, Daemon] = {}
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self.stack = ExitStack()

    def start(self) -> NVFlarePipe:
        for name, kit in self.kits.items():
            self.daemons[name] = self.stack.enter_context(Daemon(kit, self.environment))
        for site in SITES:
            self.start_site(site)
        self.stack.callback(lambda: [self.end_site(site) for site in SITES])
        return self.stack.enter_context(NVFlarePipe(self.kits["coordinator"], self.environment))

    def start_site(self, site: str) -> None:
        socket_file(self.kits[site]).unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", SITE, self.kits[site]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self.processes[site] = process

    def end_site(self, site: str) -> None:
        process = self.processes[site]
        process.kill()
        process.communicate()

    def engine_processes(self, name: str) -> list[int]:
        """The daemon first, then its job processes."""
        daemon = self.daemons[name]
        found = engine.processes(daemon.folder)
        return sorted(found, key=lambda pid: pid != daemon.process)


@pytest.fixture(scope="session")
def environment() -> Path:
    """The engine's environment, with the modules of this checkout in it."""
    place = engine.place()
    if not (place / "bin" / "nvflare").exists():
        pytest.skip(f"no engine at {place}: let UNDRIFT_ENGINE name the folder of its environment")
    engine.seed(place)
    return place


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory, environment: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path_factory.mktemp("trial"), environment)
    with federation.stack:
        yield federation
    leftover = [pid for kit in federation.kits.values() for pid in engine.processes(kit)]
    assert leftover == []
    assert not any(process.poll() is None for process in federation.processes.values())


@pytest.fixture(scope="module")
def pipe(trial: Federation) -> NVFlarePipe:
    return trial.start()


@pytest.fixture
def ready(pipe: NVFlarePipe) -> NVFlarePipe:
    """The pipe, with a job that reaches all sites."""
    reached = pipe.open(within=60)
    if set(reached.values()) != {"ready"}:
        reached = pipe.roll(within=90)
    assert reached == dict.fromkeys(SITES, "ready")
    return pipe


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
