"""The same jobs on other libraries: time per round after start-up, time to the first round, memory of all processes.

Each library gets its own virtual environment in a cache folder, with the locked torch, and is set up the way that is
fastest for it (``benchmarks/adapters/``). One that cannot be installed or run is reported as such, with the reason.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from adapters.jobs import JOBS
from common import machine, write

HERE = Path(__file__).parent / "adapters"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "undrift" / "peers"


@dataclass(frozen=True)
class Peer:
    """A library: what its environment needs, its adapter, and the ways to run that are tried. The fastest counts.

    What follows ``--no-deps`` is installed without what it requires: torchvision, which several require and none needs
    here, would bring another torch.
    """

    adapter: str
    requirements: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("",)
    python: str = "python3.11"


PEERS = {
    "flower": Peer("flower.py", ("flwr[simulation]==1.41.0",)),
    "pfl": Peer("pfl_.py", ("pfl[pytorch]==0.6.0",), ("2 processes", "1 process")),
    "blazefl": Peer("blazefl_.py", ("blazefl[contrib,reproducibility]==2.0.3",), python="python3.12"),
    "fedlab": Peer(
        "fedlab_.py",
        ("numpy", "pandas", "scikit-learn", "pynvml", "tqdm", "munch", "pillow", "--no-deps", "fedlab==1.3.0"),
        ("2 processes", "1 process, 1 thread", "1 process, 2 threads"),
    ),
    "fluke": Peer(
        "fluke_.py",
        ("numpy", "pandas", "scikit-learn", "torchmetrics", "rich", "psutil", "matplotlib", "seaborn", "diskcache",
         "cerberus", "omegaconf", "pyyaml", "requests", "--no-deps", "fluke-fl==0.8.1"),
        ("1 thread", "2 threads"),
    ),
    "flgo": Peer(
        "flgo_.py",
        ("tqdm", "scipy", "matplotlib", "prettytable", "ujson", "pynvml", "pyyaml", "networkx", "requests", "toolz",
         "--no-deps", "flgo==0.4.4"),
        ("1 thread", "2 clients at once", "2 threads"),
    ),
}  # fmt: skip

# what runs in this very environment
OURS = {
    "undrift": Peer("ours.py", modes=("auto",)),
    "undrift, processes": Peer("ours.py", modes=("processes",)),
    "bare PyTorch, one core": Peer("bare.py"),
    "bare PyTorch, two processes": Peer("bare2.py"),
}


def interpreter(python: str) -> str:
    """An interpreter that answers: on the path, or one of pyenv's (whose shims are on the path but may not answer)."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    installed = versions.glob(f"{python.removeprefix('python')}*/bin/{python}")
    for found in [shutil.which(python), *sorted(map(str, installed), reverse=True)]:
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            return found
    raise RuntimeError(f"it needs {python}, which is not installed")


def environment(name: str) -> Path:
    """The interpreter of a peer's own environment, made once."""
    requirements, folder = PEERS[name].requirements, CACHE / name
    ready = folder / "ready"
    if not ready.exists():
        found = interpreter(PEERS[name].python)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([found, "-m", "venv", str(folder)], check=True)
        locked = f"torch=={importlib.metadata.version('torch').split('+')[0]}"
        cut = requirements.index("--no-deps") if "--no-deps" in requirements else len(requirements)
        for wanted in filter(None, ([locked, *requirements[:cut]], requirements[cut:])):
            done = subprocess.run(
                [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *wanted],
                capture_output=True, text=True,
            )  # fmt: skip
            if done.returncode:
                raise RuntimeError(f"pip: {done.stderr.strip().splitlines()[-1]}")
        ready.touch()
    return folder / "bin" / "python"


class Memory(threading.Thread):
    """The peak of the memory of a process and all below it; what they share is counted once."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.process, self.peak, self.over = psutil.Process(pid), 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.25):
            total = 0
            try:
                family = [self.process, *self.process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for process in family:
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.peak = max(self.peak, total)


def measure(python: Path, adapter: str, job: str, rounds: int, limit: float, mode: str = "") -> dict[str, Any]:
    """Run an adapter in its own process and read the moments at which its rounds ended."""
    ticks: list[float] = []
    short = False  # a round in which clients failed is quick, and says nothing
    tail: list[str] = []
    began = time.time()
    environment = os.environ | {"RAY_DEDUP_LOGS": "0"}
    with subprocess.Popen(
        [str(python), adapter, job, str(rounds), mode],
        cwd=HERE, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        memory = Memory(process.pid)
        stop = threading.Timer(limit, os.killpg, (process.pid, signal.SIGKILL))  # its processes too: they hold the pipe
        stop.start()
        assert process.stdout is not None
        for line in process.stdout:
            if tick := re.search(r"TICK (\[.*?\])", line):
                moment, trained = json.loads(tick[1])
                ticks.append(moment)
                short = short or trained != JOBS[job]["participate"]
            else:
                tail = [*tail[-5:], line.strip()]
        process.wait()
        stop.cancel()
        memory.over.set()
    if short:
        raise RuntimeError(f"not all clients trained, so its times mean nothing: {' / '.join(tail)[-300:]}")
    if len(ticks) < 3:
        raise RuntimeError(f"no rounds (exit code {process.returncode}): {' / '.join(tail)[-300:]}")
    laps = [b - a for a, b in itertools.pairwise(ticks)]
    return {
        "s/round (best)": min(laps), "s/round (median)": statistics.median(laps),
        "s to first round": ticks[0] - began, "peak MB": memory.peak / 2**20,
    }  # fmt: skip


def fastest(name: str, job: str, rounds: int, limit: float) -> dict[str, Any]:
    """A contestant's row: of the ways to run it, the one with the fastest round."""
    ours = OURS.get(name)
    peer, python = (ours, Path(sys.executable)) if ours else (PEERS[name], environment(name))
    found: list[dict[str, Any]] = []
    failed: list[str] = []
    for mode in peer.modes:
        try:
            found.append({"mode": mode} | measure(python, peer.adapter, job, rounds, limit, mode))
        except RuntimeError as error:
            failed.append(f"{mode}: {error}" if mode else str(error))
    if not found:
        raise RuntimeError("; ".join(failed))
    return min(found, key=lambda row: row["s/round (median)"]) | {"note": "; ".join(failed)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--jobs", default="lenet,logistic")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--limit", type=float, default=150, help="seconds after which a run is stopped")
    chosen = parser.parse_args()
    on = machine()
    rows: list[dict[str, Any]] = []
    for job in chosen.jobs.split(","):
        base = 0.0
        for name in [*OURS, *chosen.peers.split(",")]:
            row: dict[str, Any] = {"job": job, "library": name}
            try:
                row |= fastest(name, job, chosen.rounds, chosen.limit)
                base = base or row["s/round (median)"]
                row["times undrift"] = row["s/round (median)"] / base
            except (RuntimeError, OSError, subprocess.SubprocessError) as error:
                row["note"] = str(error)
            rows.append(row)
            print(row, flush=True)
    columns = [
        "job", "library", "mode", "s/round (best)", "s/round (median)", "times undrift", "s to first round", "peak MB",
        "note",
    ]  # fmt: skip
    write("peers", "The same jobs on other libraries", [{c: row.get(c, "") for c in columns} for row in rows], on)
