"""A federation over slow links: sixteen sites, each in a network namespace of its own, 20 ms, 50 Mbit/s, 1 % loss.

Real processes, the real engine, mutual TLS; SCAFFOLD on parts of the digits. Every round must have the bits of the
simulation. Links are emulated by `tests/deploy/slowlink.py`, which needs root; elsewhere the benchmark says so.

    undrift deploy engine                    # NVFlare; or UNDRIFT_ENGINE names its environment
    python benchmarks/slow_sites.py          # --sites 16 --rounds 50
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "tests" / "deploy"))

from common import machine, write
from slowlink import SlowLinks, obstacle

from undrift.deploy import engine, kits
from undrift.deploy.journal import entries
from undrift.experiment.description import read_toml
from undrift.experiment.execute import execute
from undrift.experiment.federate import Witnessed, fingerprint, rehearsal
from undrift.experiment.prepare import prepare_experiment
from undrift.experiment.recorder import InMemory

HOST = "center"
LONGEST = 1800.0  # seconds until it is given up
EXPERIMENT = """\
name = "slow"
rounds = {rounds}
seed = 1
[algorithm]
name = "scaffold"
[model]
name = "mlp"
[train]
lr = 0.1
batch_size = 16
[deploy]
deadline = 60
attempts = 10
"""


def simulated(path: Path, sites: int) -> dict[int, str]:
    found: list[str] = []
    prepared = prepare_experiment(rehearsal(read_toml(path), sites, str(path)))
    execute(prepared, Witnessed(InMemory(prepared), lambda entry: found.append(fingerprint(entry))))
    return dict(enumerate(found, 1))


def start(links: SlowLinks, where: str, words: list[str], log: Path) -> subprocess.Popen[bytes]:
    kept = {**os.environ, "UNDRIFT_ENGINE": str(engine.place()), "COLUMNS": "200"}
    with log.open("ab") as output:
        return subprocess.Popen(
            [*links.inside(where), sys.executable, "-m", "undrift", *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=kept,
        )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def play(folder: Path, links: SlowLinks, names: tuple[str, ...], experiment: Path) -> tuple[Path, float]:
    """The coordinator's log, and the seconds until the run had ended."""
    made = kits.make(kits.Federation("slow", HOST, names), folder / "kits", engine.place())
    unpacked = {kit.name: kits.unpack(kit.path, folder / kit.name) for kit in made}
    for number, name in enumerate(names, 1):
        part = f'[data]\nname = "digits"\n[part]\nnumber = {number}\nof = {len(names)}\nseed = 1\n'
        (unpacked[name] / "site.toml").write_text(part, encoding="utf-8")
        (unpacked[name] / "policy.toml").write_text('experiments = ["slow"]\n', encoding="utf-8")
    kit, began = unpacked[kits.COORDINATOR], time.monotonic()
    with contextlib.ExitStack() as stack:
        for name in names:
            site = start(links, name, ["site", "start", str(unpacked[name])], folder / f"{name}.log")
            stack.callback(end, site)
        words = ["deploy", "run", str(experiment), "--kit", str(kit), "--ledger", str(folder / "ledger.sqlite")]
        log = folder / "coordinator.log"
        coordinator = start(links, HOST, [*words, "--wait", "900", "--quiet"], log)
        stack.callback(end, coordinator)
        if coordinator.wait(LONGEST):
            raise SystemExit(log.read_text(encoding="utf-8", errors="replace")[-3000:])
    return kit / "journal.jsonl", time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    if why := obstacle():
        raise SystemExit(f"left out: {why}")
    engine.check(engine.place())
    names, on = tuple(f"site{number:02d}" for number in range(1, options.sites + 1)), machine()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that namespaces and processes are removed
    with tempfile.TemporaryDirectory() as folder, SlowLinks(names, HOST) as links:
        experiment = Path(folder) / "slow.toml"
        experiment.write_text(EXPERIMENT.format(rounds=options.rounds), encoding="utf-8")
        journal, seconds = play(Path(folder), links, names, experiment)
        expected, carried, lost, crowded = simulated(experiment, len(names)), *links.packets
        lines = [line for line in entries(journal) if line["what"] == "round"]
    print(json.dumps(lines[-1]["sites"], indent=1)[:2000])
    write("slow_sites", "Sites over links of 20 ms, 50 Mbit/s and 1 % loss", [row(lines, expected, options, {
        "packets": carried, "lost": lost, "dropped by full queues": crowded, "all, s": round(seconds),
    })], on)  # fmt: skip


def row(
    lines: list[dict[str, Any]], expected: dict[int, str], options: argparse.Namespace, packets: dict[str, Any]
) -> dict[str, Any]:
    slowest = [max(site["total"] for site in line["sites"]) for line in lines]
    worked = [max(site["worked"] for site in line["sites"]) for line in lines]
    missed = sum(bool(site["why"]) for line in lines for site in line["sites"])
    same = sum(expected.get(line["round"]) == line["bits"] for line in lines)
    return {
        "sites": options.sites,
        "rounds": len(lines),
        "with the simulation's bits": same,
        "answers missed": missed,
        "slowest site, median s": round(statistics.median(slowest), 2),
        "of which at work": round(statistics.median(worked), 2),
        **packets,
    }


if __name__ == "__main__":
    main()
