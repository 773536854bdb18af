"""Flower's own FedAvg over its own SuperLink and SuperNodes with TLS; the ClientApp sends back what it gets.

    python flower_fedavg.py BYTES ROUNDS SITES FOLDER

prints the seconds of each round (train alone, no evaluation), as JSON.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests" / "deploy"))

from superlink import SuperLink

SIZE, ROUNDS, SITES, FOLDER = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]).resolve()
LONGEST = 600.0  # seconds until it is given up
BIN = Path(sys.executable).parent
PROJECT = """
[project]
name = "exchange"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "exchange.apps:server"
clientapp = "exchange.apps:client"
"""
APPS = """
import json, time
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    answer = {{"arrays": message.content["arrays"], "metrics": MetricRecord({{"num-examples": 1}})}}
    return Message(content=RecordDict(answer), reply_to=message)

class Timed(FedAvg):
    times = []

    def configure_train(self, server_round, arrays, config, grid):
        self.times.append(time.perf_counter())
        return super().configure_train(server_round, arrays, config, grid)

@server.main()
def main(grid, context):
    start = np.random.default_rng(0).standard_normal({size} // 4, dtype=np.float32)
    strategy = Timed(fraction_evaluate=0.0, min_train_nodes={sites}, min_available_nodes={sites})
    strategy.start(grid=grid, initial_arrays=ArrayRecord({{"x": Array(start)}}), num_rounds={rounds})
    times = [*strategy.times, time.perf_counter()]
    with open({out!r} + ".new", "w") as file:
        json.dump([b - a for a, b in zip(times, times[1:])], file)
    import os
    os.rename({out!r} + ".new", {out!r})
"""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    app, out = FOLDER / "app", FOLDER / "seconds.json"
    (app / "exchange").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (app / "exchange" / "__init__.py").touch()
    text = APPS.format(size=SIZE, sites=SITES, rounds=ROUNDS, out=str(out))
    (app / "exchange" / "apps.py").write_text(text, encoding="utf-8")
    with SuperLink(FOLDER / "link", BIN.parent) as link:
        for _ in range(SITES):
            link.node()
        if subprocess.run([BIN / "flwr", "run", app], env=link.environment, capture_output=True).returncode:
            raise SystemExit(link.log()[-2000:])
        until = time.monotonic() + LONGEST
        while not out.exists():
            if time.monotonic() > until:
                raise SystemExit(link.log()[-2000:])
            time.sleep(0.5)  # there is no event to wait for in another process's file
    print(out.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
