"""Networks that lose, delay or falsify uploads: what counts is what arrives and is sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.problem import federation
from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from undrift.core.loop import Loop
from undrift.runtimes.batched import Batched
from undrift.runtimes.processes import Processes
from undrift.runtimes.serial import Serial
from undrift.runtimes.wrappers import Hostile, Lossy, Slow
from worked import Played, next_round


def rounds(runtime: Any, count: int = 6, name: str = "scaffold") -> list[Played]:
    loop = Loop(runtime.federation, create(name), runtime, 6)
    snapshot, played = loop.start(), []
    for _ in range(count):
        played.append(next_round(loop, snapshot))
        snapshot = played[-1].snapshot
    return played


def test_lost_uploads_are_missing_and_nothing_else() -> None:
    played = rounds(Lossy(Serial(federation()), drop=0.4))
    sizes = [result.cohort.size for result in played]
    assert 0 < sum(sizes) < 36
    for result in played:
        assert set(result.kept) == set(result.cohort.ids.tolist())
        assert result.rejected == {}


def test_which_upload_is_lost_does_not_depend_on_the_runtime() -> None:
    job = federation()
    serial = rounds(Lossy(Serial(job), drop=0.4))
    with Processes(job, 2) as runtime:
        other = rounds(Lossy(runtime, drop=0.4))
    batched = rounds(Lossy(Batched(job), drop=0.4))
    for a, b, c in zip(serial, other, batched, strict=True):
        assert a.cohort.ids.tolist() == b.cohort.ids.tolist() == c.cohort.ids.tolist()
        assert torch.equal(a.snapshot.server.x, b.snapshot.server.x)


def test_a_round_without_uploads_is_skipped() -> None:
    before, *_ = played = rounds(Lossy(Serial(federation()), drop=1.0), 2)
    assert all(result.skipped for result in played)
    assert torch.equal(before.snapshot.server.x, played[-1].snapshot.server.x)
    assert played[-1].snapshot.round == 2


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ("nan", "not finite"),
        ("shape", "has shape (7, 7)"),
        ("weight", "samples"),
        ("round", "belongs to round"),
        ("kind", "it is a dict"),
    ],
)
def test_a_lie_is_rejected_and_the_round_goes_on_as_without_the_client(lie: str, reason: str) -> None:
    job = federation()
    played = rounds(Hostile(Serial(job), share=0.4, lie=lie))
    told = {client: why for result in played for client, why in result.rejected.items()}
    assert told
    assert all(reason in why for why in told.values())
    for result in played:
        assert set(result.rejected) | set(result.cohort.ids.tolist()) == set(range(6))
        assert not set(result.rejected) & set(result.kept)
        assert torch.isfinite(result.snapshot.server.x).all()


def test_liars_choose_different_lies() -> None:
    played = rounds(Hostile(Serial(federation()), share=0.8), 8)
    assert len({why.split()[0] for result in played for why in result.rejected.values()}) > 1


def test_late_uploads_count_as_if_they_were_in_time() -> None:
    job = federation()
    late, serial = rounds(Slow(Serial(job), share=0.5, delay=0.0)), rounds(Serial(job))
    assert all(torch.equal(a.snapshot.server.x, b.snapshot.server.x) for a, b in zip(late, serial, strict=True))


def test_a_wrapper_delegates_the_rest() -> None:
    inner = Processes(federation(), 1)
    with Hostile(Lossy(inner)) as runtime:
        assert runtime.name == "hostile(lossy(processes))"
        assert runtime.federation is inner.federation
    assert inner._handles == {}


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_outside_its_range_is_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match="Lossy"):
        Lossy(Serial(federation()), share)
