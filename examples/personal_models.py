"""A model for every client: FedRep shares the body and keeps the heads. Does it beat staying alone (`local`)?"""

from __future__ import annotations

import undrift
from undrift.core.figure import GLOBAL, OWN_MEAN, OWN_WORST, PERSONAL, Figure
from undrift.data import PARTITIONERS

for name in ("fedavg", "fedrep", "local"):
    result = undrift.run(name, partition=PARTITIONERS["dirichlet"](alpha=0.1), clients=20, rounds=20, seed=1)
    model = PERSONAL if name != "fedavg" else GLOBAL
    figures = [result.history.curve(Figure(model, place))[1][-1] for place in (OWN_MEAN, OWN_WORST)]
    mean, worst = (f"{100 * value:.1f} %" for value in figures)
    print(f"{name:8} the {model} model on clients' own test data: {mean}, the worst tenth of them: {worst}")
