"""How long the report of 20 runs of 500 rounds takes and what it weighs, how long the export of 2,000 runs takes, how
soon ``watch`` knows of a new round, and what share of the time the terminal display takes while LeNet-5 trains.

Fifty readers ask the server as fifty open pages do, from a process of their own.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from common import machine, write
from rich.console import Console
from rich.progress import Progress

from undrift.cli.display import COLUMNS, REFRESH, Live
from undrift.core import rng
from undrift.experiment.progress import Progress as Where
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.report.export import export
from undrift.report.page import write_report
from undrift.report.watch import Follower, Server

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from ledgers import add_run, entry

RUNS, ROUNDS, PAGES = 20, 500, 50
METHODS = {"fedavg": 0.010, "fedtrip": 0.016, "scaffold": 0.013, "feddyn": 0.020}


def fill(ledger: Ledger) -> None:
    """Runs that climb at different speeds, with noise."""
    for method, speed in METHODS.items():
        for seed in range(1, RUNS // len(METHODS) + 1):
            noise = rng.generator(seed, method).normal(0, 0.01, ROUNDS)
            climb = [0.1 + 0.85 * (1 - math.exp(-speed * t)) + float(noise[t]) for t in range(ROUNDS)]
            add_run(ledger, method, seed, climb, notes={"xi": 0.5}, clients=dict.fromkeys(range(50), 0.9))


def readers(address: str, stop: Any) -> None:
    """What fifty pages do: ask for news every 0.8 s and read it."""

    def read() -> None:
        version = ""
        while not stop.wait(0.8):
            with urllib.request.urlopen(f"{address}data.json?version={version}", timeout=30) as answer:
                answer.read()
                version = answer.headers["X-Version"]

    threads = [threading.Thread(target=read) for _ in range(PAGES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def latency(path: Path) -> list[float]:
    """Seconds from a recorded round to the moment when the server has it."""
    context, found = multiprocessing.get_context("spawn"), []
    follower = Follower(path, ["*"])
    with Ledger(path) as book, Server(follower, "127.0.0.1", 0, None) as server:
        run = book.runs()[-1]
        book.set_status(run, "running")
        with book.holding(run):
            follower.start()
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stop = context.Event()
            crowd = context.Process(target=readers, args=(server.url, stop))
            crowd.start()
            for at in range(ROUNDS + 1, ROUNDS + 11):
                time.sleep(1)
                version, began = follower.latest()[0], time.perf_counter()
                book.record(run, entry(at, 0.9))
                while follower.latest()[0] == version:
                    time.sleep(0.01)
                found.append(time.perf_counter() - began)
            stop.set()
            crowd.join()
            server.shutdown()
            follower.stop()
    return found


def display() -> list[float]:
    """Percent of a LeNet round (about 0.7 s) that the live display uses: processor time, its thread included."""
    console = Console(file=open(os.devnull, "w"), force_terminal=True, width=120)  # noqa: SIM115
    shares = []
    for _ in range(3):
        with Progress(*COLUMNS, console=console, refresh_per_second=REFRESH) as live:
            shown = Live(live, 1)
            began, used = time.perf_counter(), time.process_time()
            for t in range(1, 6):
                shown.watch(Where("FedAvg", 1, t, 100, 0.5, 0.7 * t, t))
                time.sleep(0.7)
            shares.append(100 * (time.process_time() - used) / (time.perf_counter() - began))
    return shares


def exports(folder: Path) -> list[float]:
    """Seconds to write 2,000 runs of 50 rounds as CSV, reading them from the ledger included."""
    found = []
    with Ledger(folder / "many.sqlite", create=True) as book:
        for seed in range(2000):
            add_run(book, "fedavg", seed, [0.5] * 50, notes={"xi": 0.5})
        for _ in range(3):
            began = time.perf_counter()
            with book.reading():
                export([History.of(book, run) for run in book.runs()], folder / "many.csv", force=True)
            found.append(time.perf_counter() - began)
    return found


def row(what: str, values: list[float], goal: float) -> dict[str, Any]:
    return {"what": what, "median": round(statistics.median(values), 2), "worst": round(max(values), 2), "goal": goal}


def main() -> None:
    on = machine()
    with tempfile.TemporaryDirectory() as folder:
        path, report = Path(folder) / "ledger.sqlite", Path(folder) / "report.html"
        times = []
        with Ledger(path, create=True) as book:
            fill(book)
            for _ in range(5):
                began = time.perf_counter()
                write_report(book, book.runs(), report, force=True)
                times.append(time.perf_counter() - began)
        size = report.stat().st_size
        late = latency(path)
        many = exports(Path(folder))
    rows = [
        row("terminal display, percent of a LeNet round", display(), 1),
        row(f"report of {RUNS} runs x {ROUNDS} rounds, s", times, 3),
        row("its size, MB", [size / 1e6], 5),
        row("export of 2000 runs x 50 rounds to CSV, s", many, 10),
        row(f"watch: a new round known with {PAGES} open pages, s (a page asks every 0.8 s)", late, 1.2),
    ]
    write("seeing", "The display, the report and watch", rows, on)


if __name__ == "__main__":
    main()
