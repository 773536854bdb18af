"""What happens to uploads on their way: updates are bounded by stages, and absurd ones are rejected by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Linear

import undrift
from conformance.problem import federation
from undrift.algorithms import algorithms, create
from undrift.algorithms.fedexp import Up as Extrapolated
from undrift.algorithms.fedmrur import Up as Reaggregated
from undrift.algorithms.scaffold import Up as Corrected
from undrift.core.algorithm import Averaging, Broadcast, Displaced, Trained
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.loop import Loop, Round
from undrift.core.records import Each, Mean, Message, Nothing, Point, Upload, Vector
from undrift.core.reduce import Reply
from undrift.core.runtime import Runtime, Task
from undrift.core.stages import Clip, Uploads, passed, passed_one
from undrift.core.states import Memory
from undrift.core.update import unsaid
from undrift.ledger.store import Ledger
from undrift.runtimes.batched import Batched
from undrift.runtimes.processes import Processes
from undrift.runtimes.serial import Serial
from undrift.runtimes.threads import Threads
from undrift.runtimes.wrappers import Hostile, Lossy, Wrapper

RUNTIMES: dict[str, Callable[[Federation], Runtime]] = {
    "serial": Serial,
    "threads": lambda f: Threads(f, 2),
    "processes": lambda f: Processes(f, 2),
    "batched": Batched,
}


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def played(loop: Loop, count: int = 3) -> list[Round]:
    found, snapshot = [], loop.start()
    for _ in range(count):
        found.append(loop.play(snapshot))
        snapshot = found[-1].snapshot
    return found


def model(rounds: list[Round]) -> bytes:
    return rounds[-1].snapshot.server.tensors().encode()  # type: ignore[no-any-return]


# --- clip: worked numbers ---------------------------------------------------------------------------------------------


def test_a_point_is_clipped_towards_where_it_began() -> None:
    up, notes = passed_one([Clip(bound=2.5)], Trained(vector(4, 5)), Broadcast(vector(1, 1)))  # moved (3, 4), length 5
    torch.testing.assert_close(up.x, vector(2.5, 3), rtol=1e-15, atol=0)
    assert notes == {"clipped": 1.0}


def test_a_displacement_is_clipped_towards_zero() -> None:
    up, _ = passed_one([Clip(bound=1)], Displaced(vector(3, 4)), Broadcast(vector(100, 100)))
    torch.testing.assert_close(up.d, vector(0.6, 0.8), rtol=1e-15, atol=0)


def test_fields_of_an_update_are_bounded_together() -> None:
    up, _ = passed_one([Clip(bound=1)], Corrected(vector(3, 0), vector(0, 4)), Broadcast(vector(0, 0)))
    torch.testing.assert_close(up.dy, vector(0.6, 0), rtol=1e-15, atol=0)
    torch.testing.assert_close(up.dc, vector(0, 0.8), rtol=1e-15, atol=0)


def test_what_is_short_enough_stays_as_it_is() -> None:
    up = Trained(vector(4, 5))
    same, notes = passed_one([Clip(bound=5)], up, Broadcast(vector(1, 1)))
    assert same is up
    assert notes == {"clipped": 0.0}


def test_of_a_block_only_the_long_rows_change() -> None:
    start = torch.tensor([0.1, 0.2])
    ups = Trained(torch.tensor([[0.3, 0.7], [30.1, 40.2], [0.1, 0.2]]))
    done, notes = passed([Clip(bound=5)], ups, Broadcast(start), slice(0, 3))
    assert torch.equal(done.x[[0, 2]], ups.x[[0, 2]])
    torch.testing.assert_close(done.x[1], torch.tensor([3.1, 4.2]))
    assert notes["clipped"].tolist() == [0, 1, 0]


def test_where_every_client_begins_elsewhere_it_is_clipped_towards_that() -> None:
    class Own(Upload):
        x: Each[Point[Vector]]

    class Starts(Message):
        x: Each[Vector]

    down = Starts(torch.stack([vector(9, 9), vector(1, 1), vector(2, 2)]))
    done, _ = passed([Clip(bound=5)], Own(torch.stack([vector(2, 12), vector(1, 1)])), down, torch.tensor([2, 1]))
    torch.testing.assert_close(done.x, torch.stack([vector(2, 7), vector(1, 1)]), rtol=1e-15, atol=0)


def test_what_follows_from_an_update_is_worked_out_again() -> None:
    down = Broadcast(vector(0, 0))
    square, _ = passed_one([Clip(bound=2.5)], Extrapolated(vector(3, 4), vector(25)[0]), down)
    assert float(square.square) == pytest.approx(6.25, rel=1e-15)
    norm, _ = passed_one([Clip(bound=2.5)], Reaggregated(vector(3, 4), vector(5)[0]), down)
    assert float(norm.norm) == pytest.approx(2.5, rel=1e-15)


def test_the_bound_follows_the_median() -> None:
    clip = Clip(bound="median")
    assert clip.at({}) is None  # nothing is known yet
    first = clip.learnt({}, [4.0, 1.0, 2.0], {})
    assert first == {"clip bound": 2.0}
    assert clip.at(first) == Clip(bound=2.0)
    # Two of three were let through: more than half, so the bound shrinks by exp(-0.2 (2/3 - 1/2)).
    assert clip.learnt(first, [], {"clipped": 1 / 3})["clip bound"] == pytest.approx(2 * math.exp(-0.2 / 6), rel=1e-15)
    assert clip.learnt(first, [], {"clipped": 0.5}) == first
    assert clip.learnt(first, [], {"clipped": 1.0})["clip bound"] == pytest.approx(2 * math.exp(0.1), rel=1e-15)


# --- clip: in a run ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", algorithms())
def test_every_vector_of_an_upload_says_what_it_is(name: str) -> None:
    records = algorithms()[name].records()
    assert [unsaid(records[kind]) for kind in ("up", "survey") if kind in records] in ([[]], [[], []])


@pytest.mark.parametrize("name", sorted(set(algorithms()) - {"fedproto"}))
@pytest.mark.parametrize("runtime", ["serial", "batched"])
def test_a_bound_that_nothing_reaches_changes_no_bit(name: str, runtime: str) -> None:
    job = federation()
    job = job.pooled() if algorithms()[name].pools_data else job
    found = []
    with RUNTIMES[runtime](job) as made:
        for uploads in (Uploads(guard=None), Uploads(clip=1e30)):
            made.states = Memory()
            loop = Loop(job, create(name), made, min(4, job.population.size), uploads)
            found.append(model(played(loop)))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedexp", "pfedmo", "fedrep"])
@pytest.mark.parametrize("clip", [0.05, "median"])
def test_runtimes_agree_on_clipped_updates(name: str, clip: Any) -> None:
    job = federation()
    found: dict[str, list[Round]] = {}
    bits: dict[str, bytes] = {}
    for runtime, make in RUNTIMES.items():
        with make(job) as made:
            loop = Loop(job, create(name), made, 5, Uploads(clip=clip))
            found[runtime] = played(loop, 4)
            bits[runtime] = model(found[runtime])
    assert bits["serial"] == bits["threads"] == bits["processes"]
    for a, b in zip(found["serial"], found["batched"], strict=True):
        assert a.notes == pytest.approx(b.notes, rel=1e-4)
        for (field, value), (_, other) in zip(a.snapshot.server.items(), b.snapshot.server.items(), strict=True):
            torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-6, msg=field.name)
    shares = [r.notes["clipped"] for r in found["serial"] if "clipped" in r.notes]
    assert len(shares) == (4 if clip == 0.05 else 3)
    bounds = [r.notes.get("clip bound") for r in found["serial"]]
    assert max(shares) > 0 if clip == 0.05 else len(set(bounds)) == 4


def test_the_server_moves_by_no_more_than_the_bound() -> None:
    job = federation()
    loop = Loop(job, create("fedavg"), Serial(job), 6, Uploads(clip=0.01))
    start = loop.start()
    assert float((loop.play(start).snapshot.server.x - start.server.x).norm()) <= 0.01 * (1 + 1e-4)


def test_a_run_with_a_running_median_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def go(name: str, rounds: int, **more: Any) -> Any:
        return undrift.run(
            "fedavg", data="digits", clients=6, seed=2, rounds=rounds, ledger=tmp_path / "l.db", name=name,
            uploads=undrift.Uploads(clip="median"), **more,
        )  # fmt: skip

    whole = go("whole", 4)
    go("parts", 2)
    parts = go("parts", 4, resume=True)
    assert [row.notes for row in parts.history.rounds] == [row.notes for row in whole.history.rounds]
    assert all(torch.equal(a, b) for a, b in zip(whole.module.parameters(), parts.module.parameters(), strict=True))
    with pytest.raises(InvalidInput, match="the settings of the uploads differ"), Ledger(tmp_path / "l.db"):
        undrift.run("fedavg", data="digits", clients=6, seed=2, ledger=tmp_path / "l.db", name="parts", resume=True)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_there_must_be_something_to_clip() -> None:
    with pytest.raises(InvalidInput, match="FedProto uploads no update of a model: there is nothing to clip"):
        Uploads(clip=1).fit(create("fedproto"))
    Uploads(clip=1).fit(create("local"))  # which uploads nothing at all
    Uploads().fit(create("fedproto"))


class Silent(Upload):
    x: Mean[Vector]


class Mistaken(Upload):
    y: Mean[Point[Vector]]


def test_a_method_must_say_what_its_uploads_are() -> None:
    class Unsaid(Averaging[Nothing]):
        title = "Unsaid"

        @classmethod
        def records(cls) -> Any:
            return Averaging.records() | {"up": Silent}

    class Wrong(Unsaid):
        @classmethod
        def records(cls) -> Any:
            return Averaging.records() | {"up": Mistaken}

    Uploads().fit(Unsaid())
    with pytest.raises(InvalidInput, match="does not say whether x is a point or a displacement"):
        Uploads(clip=1).fit(Unsaid())
    with pytest.raises(InvalidInput, match="y is a point, but no such thing is sent down"):
        Uploads().fit(Wrong())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"clip": 0}, "a number > 0 or median"),
        ({"clip": "mean"}, "a number > 0 or median"),
        ({"guard": 0.5}, "a number >= 1"),
        ({"reducer": "meen"}, "did you mean 'mean'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Uploads.create(**values)


# --- the guard --------------------------------------------------------------------------------------------------------


class Loud(Wrapper):
    """One client sends an update that is a number of times as long as it should be."""

    def __init__(self, runtime: Runtime, times: float) -> None:
        super().__init__(runtime, 1.0)
        self.times = times

    def hits(self, reply: Reply, task: Task) -> bool:
        return reply.client == 2

    def change(self, reply: Reply, task: Task) -> Reply:
        start = task.down.x  # type: ignore[attr-defined]
        return replace(reply, up=Trained(start + self.times * (reply.up.x - start)))


class Missing(Lossy):
    def hits(self, reply: Reply, task: Task) -> bool:
        return reply.client == 2


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    ("times", "reason"),
    [(1e5, "more than 1000 times the median of the round"), (1e25, "reaches 1.7e+24, which is not plausible")],
)
def test_an_absurd_update_is_rejected_by_name_and_leaves_no_trace(runtime: str, times: float, reason: str) -> None:
    job = federation()
    with RUNTIMES[runtime](job) as made:
        loud, without = Loop(job, create("fedavg"), Loud(made, times), 6), Loop(job, create("fedavg"), Missing(made), 6)
        a, b = played(loud, 2), played(without, 2)
    assert [list(result.rejected) for result in a] == [[2], [2]]
    assert reason in a[0].rejected[2]
    assert [result.cohort.ids.tolist() for result in a] == [[0, 1, 3, 4, 5]] * 2
    assert a[-1].snapshot.server.encode() == b[-1].snapshot.server.encode()


def many(count: int = 300) -> Federation:
    """So many clients that not all of their updates are looked at."""
    few = federation()
    return replace(few, indices=np.arange(4 * count) % int(few.offsets[-1]), offsets=np.arange(count + 1) * 4)


class Far(Loud):
    """The last client is the loud one."""

    def hits(self, reply: Reply, task: Task) -> bool:
        return reply.client == 299


@pytest.mark.parametrize("runtime", ["serial", "batched"])
def test_of_many_clients_the_last_is_guarded_too(runtime: str) -> None:
    job = many()
    with RUNTIMES[runtime](job) as made:
        (loud,) = played(Loop(job, create("fedavg"), Far(made, 1e6), 300), 1)
        (plain,) = played(Loop(job, create("fedavg"), made, 300), 1)
    assert list(loud.rejected) == [299]
    assert plain.rejected == {}
    assert plain.cohort.size == 300


def test_blocks_of_many_clients_are_guarded_by_the_norms_that_they_bring() -> None:
    class Late(Batched):
        def replies(self, task: Task) -> Any:
            for block in super().replies(task):
                x = block.up.x.clone()  # type: ignore[union-attr]
                x[torch.from_numpy(block.clients == 299)] *= 1e9  # type: ignore[union-attr]
                yield replace(block, up=Trained(x), norms={"x": torch.linalg.vector_norm(x, dim=1)})

    job = many()
    with Late(job, block=100) as made:
        (result,) = played(Loop(job, create("fedavg"), made, 300), 1)
    assert list(result.rejected) == [299]
    assert result.cohort.size == 299


def test_a_model_that_begins_at_zero_can_be_learnt() -> None:
    job = many()
    start = Linear(12, 3)
    torch.nn.init.zeros_(start.weight)
    torch.nn.init.zeros_(start.bias)
    job = replace(job, module=start)
    for runtime in ("serial", "batched"):
        with RUNTIMES[runtime](job) as made:
            (result,) = played(Loop(job, create("fedavg"), made, 300), 1)
            assert result.rejected == {}
            assert result.cohort.size == 300
            (loud,) = played(Loop(job, create("fedavg"), Far(made, 1e6), 300), 1)
            assert list(loud.rejected) == [299]


class Block2(Batched):
    """Blocks in which one client's update is absurd."""

    def replies(self, task: Task) -> Any:
        for block in super().replies(task):
            x = block.up.x.clone()  # type: ignore[union-attr]
            x[torch.from_numpy(block.clients == 2)] *= 1e20  # type: ignore[union-attr]
            yield replace(block, up=Trained(x))


def test_an_absurd_update_is_rejected_out_of_a_block() -> None:
    job = federation()
    with Block2(job) as made:
        (result,) = played(Loop(job, create("fedavg"), made, 6), 1)
    assert list(result.rejected) == [2]
    plain = played(Loop(job, create("fedavg"), Missing(Batched(job)), 6), 1)[0]
    torch.testing.assert_close(result.snapshot.server.x, plain.snapshot.server.x)


def test_an_update_within_the_bounds_counts() -> None:
    job = federation()
    (result,) = played(Loop(job, create("fedavg"), Loud(Serial(job), 100), 6), 1)
    assert result.rejected == {}
    (result,) = played(Loop(job, create("fedavg"), Loud(Serial(job), 1e5), 6, Uploads(guard=None)), 1)
    assert result.rejected == {}
    (result,) = played(Loop(job, create("fedavg"), Loud(Serial(job), 100), 6, Uploads(guard=20)), 1)
    assert list(result.rejected) == [2]


def test_an_update_no_longer_than_the_model_is_not_absurd_among_those_that_have_converged() -> None:
    job = federation(lr=1e-9)
    loop = Loop(job, create("fedavg"), Loud(Serial(job), 1e6), 6)
    assert played(loop, 1)[0].rejected == {}


def test_the_survey_is_guarded_too() -> None:
    class Shout(Missing):
        def change(self, reply: Reply, task: Task) -> Any:
            if task.kind != "survey":
                return reply
            return replace(reply, up=reply.up.map(lambda field, value: value * 1e20))

    job = federation()
    (result,) = played(Loop(job, create("feddane"), Shout(Serial(job)), 6), 1)
    assert list(result.rejected) == [2]
    assert result.cohort.ids.tolist() == [0, 1, 3, 4, 5]


def test_hostile_clients_that_exaggerate_are_rejected() -> None:
    job = federation()
    results = played(Loop(job, create("scaffold"), Hostile(Serial(job), 0.2, lie="scale"), 6), 6)
    assert sum(len(result.rejected) for result in results) > 0
    assert all(float(result.snapshot.server.x.norm()) < 100 for result in results)
