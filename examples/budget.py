"""An equal budget for every method: ten megabytes of traffic. Who does most with them?

A method that sends twice as much has half the rounds. On the command line: undrift compare ... --limit bytes=1e7
"""

from __future__ import annotations

import undrift

compared = undrift.compare(
    ["fedavg", "fedavgm", "fedtrip", "scaffold"],
    seeds="1..3",
    partition={"name": "dirichlet", "alpha": 0.1},
    clients=20,
    participate=5,
    rounds=200,
    limit="bytes=1e7",
)
print(compared)
for history in compared.histories:
    traffic = sum(row.bytes_up + row.bytes_down for row in history.rounds)
    print(f"{history.label}, seed {history.seed}: {len(history.rounds)} rounds, {traffic / 1e6:.1f} MB")
    assert traffic <= 1e7
