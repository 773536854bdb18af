"""Uploads that are added up part by part: what differs from one sum is rounding, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance import problem
from conformance.test_conformance import assert_same_runs
from undrift import InvalidInput, cli
from undrift.algorithms import create
from undrift.core.federation import Federation
from undrift.core.partial import refuse_sums
from undrift.core.reduce import Reducer
from undrift.core.stages import Uploads
from undrift.runtimes.serial import Serial
from undrift.runtimes.sums import SumsHere
from undrift.runtimes.wrappers import Lossy
from worked import Played, crowd, play


def parted(here: Federation, name: str, rounds: int, together: int, **more: object) -> list[Played]:
    return play(here, name, rounds, runtime=lambda federation: SumsHere(federation, together), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("together", [1, 2, 3, 100])
def test_all_that_is_known_of_a_round_is_as_without(together: int) -> None:
    here, uploads = problem.federation("network"), Uploads(clip="median")
    mine, usual = (parted(here, "scaffold", 3, together, uploads=uploads), play(here, "scaffold", 3, uploads=uploads))
    assert_same_runs(mine, usual, tolerance=1e-5)
    for a, b in zip(mine, usual, strict=True):
        assert a.cohort.ids.tolist() == b.cohort.ids.tolist()
        assert a.cohort.steps.tolist() == b.cohort.steps.tolist()
        counters = ("bytes_up", "bytes_down", "gradients", "forwards", "head_gradients")
        for name in counters:
            assert getattr(a.spent, name) == getattr(b.spent, name)
        assert a.drift == pytest.approx(b.drift, rel=1e-4)
        assert a.notes == pytest.approx(b.notes, rel=1e-5)


def test_parts_follow_from_the_number_alone() -> None:
    here = problem.federation("network")
    one, two, three = (parted(here, "fedavg", 3, together)[-1].snapshot.server.x for together in (2, 2, 3))
    assert torch.equal(one, two)
    assert not torch.equal(one, three), "another number is another rounding"


@pytest.mark.parametrize("together", [1, 3, 7])
def test_an_absurd_update_is_rejected_though_its_part_is_summed(together: int) -> None:
    here = crowd(far=1e8)
    (usual,), (mine,) = play(here, "fedavg", 1), parted(here, "fedavg", 1, together)
    assert list(usual.rejected) == [3]
    assert mine.rejected == usual.rejected
    torch.testing.assert_close(mine.snapshot.server.x, usual.snapshot.server.x)


def test_a_long_update_that_may_count_counts() -> None:
    here = crowd(far=50.0)
    (usual,), (mine,) = play(here, "fedavg", 1), parted(here, "fedavg", 1, 3)
    assert mine.rejected == usual.rejected == {}
    assert sorted(mine.cohort.ids.tolist()) == list(range(7))
    torch.testing.assert_close(mine.snapshot.server.x, usual.snapshot.server.x)


def test_an_upload_that_is_not_finite_is_rejected_where_it_is() -> None:
    here = crowd(far=float("nan"))
    (usual,), (mine,) = play(here, "fedavg", 1), parted(here, "fedavg", 1, 3)
    assert mine.rejected == usual.rejected == {3: "x is not finite"}
    assert mine.kept.keys() == usual.kept.keys()
    torch.testing.assert_close(mine.snapshot.server.x, usual.snapshot.server.x)


def test_a_part_of_which_nothing_counts() -> None:
    here = crowd(far=float("nan"))
    (mine,) = parted(here, "fedavg", 1, 1)
    assert mine.kept.keys() == {0, 1, 2, 4, 5, 6}
    assert mine.cohort.ids.tolist() == [0, 1, 2, 4, 5, 6]


class Median(Reducer):
    def combined(self, rows: Tensor, weights: Tensor) -> Tensor:
        return rows.median(0).values


def test_what_has_to_arrive_client_by_client_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"takes every client.s x by itself.*leave ray_sum out"):
        refuse_sums(create("pfedmo"), Uploads())
    refuse_sums(create("feddane"), Uploads())  # its survey arrives client by client, its update need not
    with pytest.raises(InvalidInput, match="only means can be added up"):
        refuse_sums(create("fedavg"), Uploads.of(reducer=Median()))


def test_a_network_that_loses_uploads_needs_single_ones() -> None:
    with pytest.raises(InvalidInput, match="Lossy: uploads that were added up"):
        play(problem.federation("network"), "fedavg", 1, runtime=lambda here: Lossy(SumsHere(here, 2), 0.5))


def test_the_bits_at_home_are_those_of_serial_for_what_is_not_added_up() -> None:
    here = problem.federation("network")
    assert_same_runs(parted(here, "pfedmo", 2, 2), play(here, "pfedmo", 2, runtime=Serial))


def test_without_a_cluster_there_is_nothing_to_add_up_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["run", "--data", "digits", "--ray-sum", "4"]) == 2
    assert "ray_sum = 4" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
