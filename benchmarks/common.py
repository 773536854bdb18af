"""What the benchmarks share: the jobs, interleaved timing, and the tables they leave behind.

Times on a shared machine drift, so everything that is compared is measured in one run, one repetition of each in turn.
A ratio is the median of the ratios within the repetitions, and beside it the ratio of the best times.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift.algorithms import create
from undrift.core.federation import Federation, build
from undrift.core.loop import Loop, Round, Snapshot
from undrift.core.runtime import Runtime
from undrift.core.states import Kept
from undrift.core.training import Training
from undrift.ledger.rows import Entry, RoundRow
from undrift.models import LOSSES, spec

RESULTS = Path(__file__).parent / "results"


def federation(
    model: str, clients: int, samples: int, training: Training, *, classes: int = 10, seed: int = 0, **settings: Any
) -> Federation:
    """Clients with the same number of random MNIST-shaped samples each: the time does not depend on the values."""
    generator = np.random.default_rng(seed)
    total = clients * samples
    chosen = spec(model, **settings)
    return Federation(
        module=build(lambda: chosen.build((1, 28, 28), classes), seed),
        loss=LOSSES[chosen.loss],
        x=torch.from_numpy(generator.standard_normal((total, 1, 28, 28), dtype=np.float32)),
        y=torch.from_numpy(generator.integers(0, classes, total)),
        indices=np.arange(total),
        offsets=np.arange(0, total + 1, samples),
        training=training,
        seed=seed,
    )


class Player:
    """A run that is played one round at a time."""

    def __init__(self, job: Federation, method: str, runtime: Runtime, participate: int, **settings: Any) -> None:
        self.loop = Loop(job, create(method, **settings), runtime, participate)
        self.snapshot: Snapshot = self.loop.start()

    def __call__(self) -> Round:
        done = self.loop.play(self.snapshot)
        self.snapshot = done.snapshot
        return done


def entry(done: Round, kept: Mapping[int, Kept]) -> Entry:
    """What a round leaves in the ledger."""
    row = RoundRow(
        done.snapshot.round, done.seconds, done.spent.seconds, done.spent.bytes_up, done.spent.bytes_down,
        done.spent.gradients, done.spent.forwards, done.spent.head_gradients, participants=done.cohort.size,
        drift=done.drift, notes=done.notes,
    )  # fmt: skip
    after = done.snapshot
    return Entry(row, server=after.server, buffers=after.buffers, kept=kept)


def interleave(
    contestants: Mapping[str, Callable[[], Any]], repetitions: int, warmup: int = 1, rounds: int = 1
) -> dict[Any, list[float]]:
    """Seconds of every repetition of every contestant; the order turns from repetition to repetition.

    ``rounds`` are played one after the other in a repetition, as in a run, and divided by: a single round after another
    contestant's turn would be timed with cold caches and sleeping workers.
    Under ``(name, "cpu")`` are the seconds of processor time of this process, which others on the machine disturb less.
    """
    names = list(contestants)
    for name in names:
        for _ in range(warmup):
            contestants[name]()
    seconds: dict[Any, list[float]] = {key: [] for name in names for key in (name, (name, "cpu"))}
    for repetition in range(repetitions):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            began, used = time.perf_counter(), time.process_time()
            for _ in range(rounds):
                contestants[name]()
            seconds[name, "cpu"].append((time.process_time() - used) / rounds)
            seconds[name].append((time.perf_counter() - began) / rounds)
    return seconds


def ratios(seconds: Sequence[float], base: Sequence[float], scale: float = 1.0) -> tuple[float, float]:
    """Median of the ratios, and ratio of the best; ``scale`` is what the base is multiplied with."""
    paired = statistics.median(a / (scale * b) for a, b in zip(seconds, base, strict=True))
    return paired, min(seconds) / (scale * min(base))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table."""

    def cell(value: Any) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(row.get(name, "")) for name in head) + " |" for row in rows]
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), platform.machine())
    return {
        "date": date.today().isoformat(),
        "cpu": model,
        "cores": os.cpu_count(),
        "load before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def write(name: str, title: str, rows: Sequence[Mapping[str, Any]], on: Mapping[str, Any]) -> None:
    """Print a table, and leave it as JSON and Markdown in ``benchmarks/results``."""
    text = f"# {title}\n\n{table(rows)}\n\n" + ", ".join(f"{k}: {v}" for k, v in on.items()) + "\n"
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    (RESULTS / f"{name}.json").write_text(
        json.dumps({"title": title, "machine": dict(on), "rows": list(rows)}, indent=1) + "\n", encoding="utf-8"
    )
