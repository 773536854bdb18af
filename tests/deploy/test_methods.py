"""Every method of the table over the protocol: the bits of the simulation, with data and states at the sites alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from together import bits, coordinated, direct, rounds, sites_of
from torch import nn

from conformance import problem
from conformance.rows_momentum import ROWS as MOMENTUM
from conformance.rows_regularised import ROWS as REGULARISED
from conformance.table import Row
from undrift.algorithms import create
from undrift.core.loop import Loop
from undrift.core.stages import Uploads
from undrift.runtimes.serial import Serial

ROUNDS = 4
SOME = 3
ROWS = [row for row in (*MOMENTUM, *REGULARISED) if not create(row.name, **row.settings).pools_data]


def simulated(row: Row) -> Any:
    return problem.federation(**row.training)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_method_has_the_bits_of_the_simulation(row: Row, tmp_path: Path) -> None:
    method = create(row.name, **row.settings)
    here = Loop(simulated(row), method, Serial(simulated(row)), SOME)
    there = coordinated(simulated(row), method, direct(sites_of(tmp_path, simulated(row))), participate=SOME)
    for mine, theirs in zip(rounds(here, ROUNDS), rounds(there, ROUNDS), strict=True):
        assert bits(mine) == bits(theirs)
        assert mine.cohort.ids.tolist() == theirs.cohort.ids.tolist()
        assert mine.spent.bytes_up == theirs.spent.bytes_up


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mime", "fedrep"])
def test_the_running_statistics_of_batch_norm_travel_too(name: str, tmp_path: Path) -> None:
    plain = problem.federation()
    inputs, classes = plain.x[0].numel(), plain.layout.classes
    module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, classes))
    whole, method = replace(plain, module=module), create(name)
    here = Loop(whole, method, Serial(whole), SOME)
    there = coordinated(whole, method, direct(sites_of(tmp_path, whole)), participate=SOME)
    for mine, theirs in zip(rounds(here, ROUNDS), rounds(there, ROUNDS), strict=True):
        assert bits(mine) == bits(theirs)
    assert mine.snapshot.buffers.encode() != here.start().buffers.encode()


@pytest.mark.parametrize("name", ["fedavg", "scaffold"])
@pytest.mark.parametrize("clip", [0.05, "median"])
def test_updates_are_clipped_at_the_sites(name: str, clip: Any, tmp_path: Path) -> None:
    whole, method = problem.federation(), create(name)
    here = Loop(whole, method, Serial(whole), SOME, Uploads(clip=clip))
    there = coordinated(whole, method, direct(sites_of(tmp_path, whole)), participate=SOME, uploads={"clip": clip})
    for mine, theirs in zip(rounds(here, ROUNDS), rounds(there, ROUNDS), strict=True):
        assert bits(mine) == bits(theirs)
        assert mine.notes.items() <= theirs.notes.items()
    assert "clipped" in mine.notes
