"""Uploads that never arrive, and clients that send nonsense: what the run says of them, and what they cost."""

from __future__ import annotations

import undrift
from undrift.experiment.execute import Result, execute
from undrift.experiment.prepare import prepare_experiment
from undrift.experiment.recorder import InMemory
from undrift.runtimes.serial import Serial
from undrift.runtimes.wrappers import Hostile, Lossy

PLAN = {"algorithm": {"name": "scaffold"}, "data": {"name": "digits"}, "clients": 20, "participate": 10, "rounds": 20}


def played(wrapped: type[Lossy] | type[Hostile] | None = None, share: float = 0.0) -> Result:
    prepared = prepare_experiment(undrift.Experiment.build(PLAN, "the example"))
    serial = Serial(prepared.federation)
    runtime = serial if wrapped is None else wrapped(serial, share)
    return execute(prepared, InMemory(prepared), runtime=runtime)


for title, result in (
    ("all arrive", played()),
    ("a third is lost", played(Lossy, 1 / 3)),
    ("a fifth lies", played(Hostile, 1 / 5)),
):
    counted = sum(row.participants for row in result.history.rounds)
    refused = sum(row.rejected for row in result.history.rounds)
    print(f"{title}: {100 * result.accuracy:.1f} %; {counted} uploads counted, {refused} refused")
