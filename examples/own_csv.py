"""Your own table: a CSV whose column `hospital` says who the clients are. Which of two methods suits it?

On the command line: undrift compare -a fedavg,fedtrip --data csv --path visits.csv --label outcome --client hospital
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path

import numpy as np

import undrift

HOSPITALS = {"north": 0.8, "south": 0.2, "coast": 0.5}  # the share of patients with the outcome


def visits(path: Path) -> None:
    """A table as a hospital information system would write it, with a value missing here and there."""
    draw = np.random.default_rng(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["age", "pressure", "smoker", "hospital", "outcome"])
        for hospital, share in HOSPITALS.items():
            for ill in draw.random(200) < share:
                age = round(draw.normal(62 if ill else 48, 12))
                pressure = "" if draw.random() < 0.05 else round(draw.normal(150 if ill else 125, 15))
                smoker = "yes" if draw.random() < (0.5 if ill else 0.2) else "no"
                table.writerow([age, pressure, smoker, hospital, "ill" if ill else "well"])


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "visits.csv"
    visits(path)
    data = undrift.Dataset.from_csv(path, "outcome", client="hospital", missing="median")

print(
    undrift.compare(
        ["fedavg", "fedtrip"], data=data, partition="column", model="logistic", seeds="1..3", rounds=15, target=0.8
    )
)
