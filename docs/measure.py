"""Measure every method on the digits and write the result into its page.

    python docs/measure.py            # runs what is not in runs/pages.sqlite yet, then writes the pages

The setting is the one the pages' commands give: Dirichlet 0.1, 20 of 100 clients, 50 rounds, the methods' defaults;
three seeds. Pages of methods in ``BESIDE`` show other settings as well.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from undrift.algorithms import algorithms
from undrift.core.figure import Figure
from undrift.ledger.history import History
from undrift.ledger.store import Ledger

DOCS = Path(__file__).parent
LEDGER = DOCS.parent / "runs" / "pages.sqlite"
SEEDS, TARGET = (1, 2, 3), 0.85
BESIDE = {  # rows of their own
    "fedtr": ["fedtr:drift=dual", "fedtr:alpha=1.0:eta_d=0.1", "fedtr:drift=dual:alpha=1.0"],
    "fedadm": ["fedadm:tau=5"],
    "fedmom": ["fedmom:beta=0.9"],
    "mime": ["mime:beta=0.9"],
    "mimelite": ["mimelite:beta=0.9"],
    "fedsam": ["fedsam:rho_relative=0.00626", "fedsam:rho=0.1"],
    "mofedsam": ["mofedsam:rho_relative=0.00626", "mofedsam:rho=0.1"],
    "fedmrur": ["fedmrur:rho_relative=0.00626", "fedmrur:rho=0.1", "fedmrur:rho=0.5"],
    "fedspeed": ["fedspeed:rho=0.1"],
    "fedsmoo": ["fedsmoo:rho=0.1"],
    "pfedmo": ["pfedmo:variant=interp", "pfedmo:variant=literal"],
}
METHODS = [*algorithms(), *(variant for variants in BESIDE.values() for variant in variants)]
COMMAND = f"""compare --algorithms {",".join(METHODS)}
    --data digits --partition dirichlet --partition.alpha 0.1 --clients 100 --participate 20 --rounds 50
    --seeds 1..3 --target 0.85 --runtime serial --others-public shared --name pages"""


def run() -> None:
    command = [sys.executable, "-m", "undrift", *COMMAND.split(), "--resume", "--ledger", str(LEDGER), "--quiet"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def percent(values: list[float]) -> str:
    if any(math.isnan(v) for v in values):
        return "not a number"
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f} %"


def reached(histories: list[History]) -> str:
    hits = [h.reached(TARGET) for h in histories]
    if any(hit is None for hit in hits):
        return f"not reached in {histories[0].planned} rounds by {sum(h is None for h in hits)} of {len(hits)} seeds"
    return f"{np.mean([hit.rounds for hit in hits if hit]):.1f}"


def row(name: str, histories: list[History]) -> list[str]:
    """One method's figures, each labelled by the column it stands in."""

    def last(model: str, data: str) -> str:
        values = [h.curve(Figure(model, data))[1] for h in histories]
        return percent([v[-1] for v in values]) if all(values) else "-"

    return [
        name,
        last("global", "test"),
        last("global", "own test (worst decile)"),
        last("personal", "own test (mean)"),
        reached(histories),
    ]


def result(found: dict[str, list[History]], name: str) -> str:
    lines = [
        [
            "",
            "global model, test",
            "global model, own test, worst decile",
            "personal models, own test, mean",
            "rounds to 85 %",
        ],
        ["---"] * 5,
    ]
    wanted = dict.fromkeys(["fedavg", *algorithms()[name].controls, name])
    lines += [row(algorithms()[key].title, found[key]) for key in wanted]
    for variant in BESIDE.get(name, []):
        settings = ", ".join(f"`{pair.replace('=', ' = ')}`" for pair in variant.split(":")[1:])
        lines.append(row(f"{algorithms()[name].title}, {settings}", found[variant]))
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    extra = ""
    for model in dict.fromkeys(figure.model for figure in found[name][0].figures if figure == Figure(figure.model)):
        if model != "global":
            value = percent([h.curve(Figure(model))[1][-1] for h in found[name]])
            extra += f"\n\nIts `{model}` model alone: {value} on the test set."
    return f"Measured after the last of 50 rounds, mean ± standard deviation over the seeds 1, 2, 3:\n\n{table}{extra}"


def main() -> None:
    run()
    with Ledger(LEDGER) as ledger:
        found = {
            name: [History.of(ledger, ledger.run(f"pages/{name}/seed{seed}")) for seed in SEEDS] for name in METHODS
        }
    for name in algorithms():
        page = DOCS / "algorithms" / f"{name}.md"
        text = page.read_text(encoding="utf-8")
        body = f"<!-- result -->\n{result(found, name)}\n<!-- /result -->"
        text = re.sub(r"<!-- result -->(.*<!-- /result -->)?", body.replace("\\", r"\\"), text, flags=re.S)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
