"""Does every method learn with its default settings? Run all of them on four small settings and write docs/defaults.md.

    python docs/defaults.py            # or make defaults: runs what is not in runs/defaults.sqlite yet, on all cores

MNIST is read from the folder that UNDRIFT_DATA names.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from undrift.algorithms import algorithms
from undrift.analysis.health import health
from undrift.core.errors import InvalidInput
from undrift.core.figure import Figure
from undrift.data import data_root, load
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.studies.jobs import Done, Observer, Place, Queued, work_off

DOCS = Path(__file__).parent
LEDGER = DOCS.parent / "runs" / "defaults.sqlite"
SEEDS = (1,)
MODELS = (("digits", "mlp"), ("mnist", "logistic"), ("mnist", "mlp"), ("mnist", "lenet"))
PARTITIONS: dict[str, dict[str, Any]] = {
    "Dirichlet 0.1": {"name": "dirichlet", "alpha": 0.1},
    "iid": {"name": "iid"},
}
PLAN = {"clients": 20, "participate": 10, "rounds": 30, "eval_every": 3, "runtime": "serial"}
TRAIN = {"steps": 20}
LAST = 3  # evaluations whose mean is shown: one alone is noisy under label skew
BEHIND = 5.0  # points under FedAvg that a page has to explain


def settings() -> list[tuple[str, str, str]]:
    return [(data, model, skew) for data, model in MODELS for skew in PARTITIONS]


def job(method: str, setting: tuple[str, str, str], seed: int) -> Queued:
    data, model, skew = setting
    values = {
        "algorithm": {"name": method},
        "data": {"name": data},
        "partition": PARTITIONS[skew],
        "model": {"name": model},
        "train": TRAIN,
        "seed": seed,
        **PLAN,
    }
    return Queued(f"{data}-{model}-{skew}/{method}/seed{seed}", values)


def run() -> None:
    wanted = [job(m, s, seed) for seed in SEEDS for s in settings() for m in algorithms()]
    LEDGER.parent.mkdir(exist_ok=True)
    count = 0

    def tell(done: Done) -> None:
        nonlocal count
        count += 1
        print(f"{count}/{len(wanted)} {done.name} {done.error}".rstrip(), flush=True)

    if work_off(wanted, Place(LEDGER), observer=Observer(tell)):
        raise InvalidInput("some runs failed: the same command tries them again")


def accuracy(history: History, figure: Figure) -> float:
    return 100 * fmean(history.curve(figure)[1][-LAST:])


def measured(book: Ledger) -> dict[str, list[tuple[float, float, set[str]]]]:
    """For each method and setting: its accuracy, FedAvg's on the same data, and the states its runs ended in."""
    found: dict[str, list[tuple[float, float, set[str]]]] = {}
    for method in algorithms():
        for setting in settings():
            mine, theirs, states = [], [], set()
            for seed in SEEDS:
                own, base = (History.of(book, book.run(job(name, setting, seed).name)) for name in (method, "fedavg"))
                mine.append(accuracy(own, own.main_curve))
                theirs.append(accuracy(base, replace(own.main_curve, model="global")))
                states.add(health(own).state)
            found.setdefault(method, []).append((fmean(mine), fmean(theirs), states))
    return found


def cell(value: float, base: float, states: set[str]) -> str:
    worst = next((state for state in ("diverged", "chance", "fell") if state in states), "")
    text = f"{value:.1f}" + (f" {worst}" if worst else "")
    return f"**{text}**" if base - value > BEHIND or worst in ("diverged", "chance") else text


def table(found: dict[str, list[tuple[float, float, set[str]]]], personal: set[str]) -> str:
    heads = ["", *(f"{data} {model}, {skew}" for data, model, skew in settings())]
    lines = [heads, ["---"] * len(heads)]
    for method, cells in found.items():
        star = " *" if method in personal else ""
        lines.append([f"[{algorithms()[method].title}](algorithms/{method}.md){star}", *(cell(*c) for c in cells)])
    lines.append(["FedAvg on the data of *", *(f"{c[1]:.1f}" for c in found[min(personal)])])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    if not os.environ.get("UNDRIFT_DATA"):
        sys.exit("set UNDRIFT_DATA to the folder with the data sets: three of the four settings are on MNIST")
    try:
        load("mnist", data_root(None))
        run()
    except InvalidInput as error:
        sys.exit(str(error))
    with Ledger(LEDGER) as book:
        runs = {m: History.of(book, book.run(job(m, settings()[0], SEEDS[0]).name)) for m in algorithms()}
        found = measured(book)
    personal = {m for m, history in runs.items() if history.main_curve.model == "personal"}
    versions = ", ".join(f"{name} {version}" for name, version in runs["fedavg"].facts["versions"].items())
    plan = " ".join(f"--{k.replace('_', '-')} {v}" for k, v in (PLAN | TRAIN).items())
    command = f"undrift run --algorithm NAME --data mnist --model lenet --partition dirichlet --alpha 0.1 {plan}"
    body = f"{table(found, personal)}\n\nSeeds {', '.join(map(str, SEEDS))}; {versions}. One of the runs:\n\n"
    body += f"```\n{shlex.join(shlex.split(command))}\n```"
    page = DOCS / "defaults.md"
    text = re.sub(
        r"<!-- table -->.*<!-- /table -->",
        lambda _: f"<!-- table -->\n{body}\n<!-- /table -->",
        page.read_text(encoding="utf-8"),
        flags=re.S,
    )
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
