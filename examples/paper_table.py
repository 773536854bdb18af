"""A paper's table: what is printed beside what we measured, and four of its methods in miniature on embedded data.

The whole table runs with: undrift reproduce fedtrip/table4
"""

from __future__ import annotations

import undrift
from undrift.papers import table
from undrift.report.reproduced import caption, markdown, tally
from undrift.studies.reproduce import from_records

recorded = from_records(table("fedtrip/table4"))
print(markdown(recorded))
print(caption(recorded), tally(recorded))

# Momentum 0.9, 4 of 10 clients, Dirichlet 0.5, as in the paper; data and rate are others, and so are the numbers.
print(
    undrift.compare(
        ["fedavg", "fedtrip", "fedprox", "moon"],
        partition={"name": "dirichlet", "alpha": 0.5},
        training=undrift.Training(lr=0.05, momentum=0.9, batch_size=50, epochs=1),
        clients=10,
        participate=4,
        rounds=30,
        seeds="1..3",
        target=0.85,
    )
)
