"""A site that answers nonsense: the coordinator goes on with the others, and says what was wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from together import coordinated, direct, names, rounds, sites_of

from conformance import problem
from core.hostile import mutated
from undrift.algorithms import create
from undrift.core.packing import unpack
from undrift.deploy import protocol
from undrift.deploy.coordinator import Rules
from undrift.deploy.pipe import Failure, Pipe

LIAR = 1


class Lying:
    """A pipe on which one site's answers to tasks are changed at random."""

    def __init__(self, pipe: Pipe, site: str, seed: int) -> None:
        self.pipe, self.site, self.draw = pipe, site, np.random.default_rng(seed)
        self.lies = 0

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        for site, answer in self.pipe.call(messages, seconds):
            if site == self.site and isinstance(answer, bytes) and unpack(answer)[1]["kind"] == "reply":
                self.lies += 1
                yield site, mutated(self.draw, *unpack(answer), answer)
            else:
                yield site, answer


def lied_to(folder: Path, name: str, seed: int, count: int) -> None:
    whole, method = problem.federation(), create(name)
    pipe = Lying(direct(sites_of(folder, whole)), names(whole)[LIAR], seed)
    rules = Rules(deadline=60.0, quorum=whole.population.size - 1)
    loop = coordinated(whole, method, pipe, rules)
    honest = {client for client in range(whole.population.size) if client != LIAR}
    start = loop.start().server
    rejected = 0
    for played in rounds(loop, count):
        assert honest <= set(played.cohort.ids.tolist()) <= honest | {LIAR}
        assert set(played.rejected) <= {LIAR}
        rejected += len(played.rejected)
        for (spec, after), (_, before) in zip(played.snapshot.server.items(), start.items(), strict=True):
            if isinstance(before, torch.Tensor) and spec.axes is not None:
                assert (after.dtype, after.shape) == (before.dtype, before.shape)
                assert torch.isfinite(after).all()
    assert pipe.lies >= count // 2
    assert rejected > 0


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedexp"])
def test_a_site_that_answers_nonsense_harms_nobody(tmp_path: Path, name: str) -> None:
    lied_to(tmp_path, name, seed=3, count=12)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(10, 20))
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedexp", "feddyn", "fednova", "mime"])
def test_a_site_that_answers_nonsense_for_long_harms_nobody(tmp_path: Path, name: str, seed: int) -> None:
    lied_to(tmp_path, name, seed, count=100)


@pytest.mark.parametrize("depth", [10, 100, 700, 990, 5000, 100_000])
@pytest.mark.parametrize("inside", [True, False])
def test_a_message_however_deep_is_refused_and_no_more(depth: int, inside: bool) -> None:
    nest = "[" * depth + "]" * depth
    text = (json.dumps({"__metadata__": {"undrift": nest}}) if inside else f'{{"a":{nest}}}').encode()
    with pytest.raises(protocol.Refusal, match="cannot read the message"):
        protocol.look(len(text).to_bytes(8, "little") + text)
