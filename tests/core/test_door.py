"""The door, bullet by bullet: what is wrong with a message is said by name, and nothing but the message suffers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conformance import problem
from core.hostile import message
from undrift.algorithms import algorithms, create
from undrift.core.admit import Door
from undrift.core.algorithm import Averaging, Broadcast, Trained
from undrift.core.check import Rejected
from undrift.core.client import Judged
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.loop import Loop
from undrift.core.packing import pack
from undrift.core.records import Nothing
from undrift.core.reduce import Reply
from undrift.core.runtime import Exchanged, Task, settle
from undrift.core.states import Memory
from undrift.core.training import Training
from undrift.core.wire import take_apart
from undrift.runtimes.processes import Processes
from undrift.runtimes.serial import Serial
from worked import small


class Stage:
    """The first round of a method: its task, the honest replies, and a door for them."""

    def __init__(self, name: str, here: Federation | None = None, **settings: Any) -> None:
        here = here or problem.federation()
        self.runtime = Serial(here)
        self.loop = Loop(here, create(name, **settings), self.runtime, 3)
        self.before, cohort = self.loop.start(), self.loop._cohort(1)
        self.task = Task(
            self.loop.method, self.loop.method.broadcast(self.before.server, cohort), cohort, self.before.buffers
        )
        self.replies = list(self.runtime.replies(self.task))
        self.door = Door(self.runtime.expecting(self.task))

    def admit(self, change: Callable[[dict[str, Tensor], dict[str, Any]], Any], place: int = 1) -> Reply | Rejected:
        """What becomes of the reply at a place, after a change to what it says."""
        tensors, header = take_apart(self.replies[place])
        header = json.loads(json.dumps(header))
        change(tensors, header)
        return self.door.admit(self.replies[place].client, message(tensors, header))

    def settle(self, *replies: Reply | Rejected) -> Exchanged:
        return settle(self.task, replies, Memory(), self.runtime.expecting(self.task))


def batch_norm() -> Federation:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    return Federation(
        module=module,
        loss=nn.functional.cross_entropy,
        x=torch.randn(18, 5),
        y=torch.randint(0, 3, (18,)),
        indices=np.arange(18),
        offsets=np.array([0, 6, 12, 18]),
        training=Training(lr=0.1, batch_size=3, epochs=1),
        seed=2,
    )


def reason(found: Reply | Rejected) -> str:
    assert isinstance(found, Rejected), "it was admitted"
    return found.reason


def said(name: str, value: Any) -> Callable[[Any, dict[str, Any]], None]:
    """A change of the header; ``a.b`` is b in the table a."""

    def change(tensors: Any, header: dict[str, Any]) -> None:
        *outer, inner = name.split(".")
        (header[outer[0]] if outer else header)[inner] = value

    return change


def sent(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], Any], None]:
    return lambda tensors, header: tensors.update({name: change(tensors[name])})


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_honest_messages_come_in_as_they_are(name: str) -> None:
    here = problem.federation()
    stage = Stage(name, here.pooled() if create(name).pools_data else here) if create(name).exchanges == 1 else None
    for place, honest in enumerate(stage.replies if stage else []):
        found = stage.admit(lambda tensors, header: None, place)  # type: ignore[union-attr]
        assert isinstance(found, Reply), found
        assert found.up.encode() == honest.up.encode()
        assert found.state is not None
        assert honest.state is not None
        assert found.state.encode() == honest.state.encode()
        assert found.spent == honest.spent
        assert found.notes == honest.notes


# --- before anything is read ------------------------------------------------------------------------------------------


def test_a_message_that_is_too_long_is_not_read() -> None:
    stage = Stage("fedavg")
    assert "bytes" in reason(stage.door.admit(0, bytes(stage.door.longest + 1)))
    honest = pack(*take_apart(stage.replies[0]))
    assert len(honest) < stage.door.longest < len(honest) + 20_000


@pytest.mark.parametrize("depth", [10, 1000, 200_000])
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_header_in_a_header_in_a_header_is_not_read(depth: int, where: str) -> None:
    door = Stage("fedavg").door
    door.longest = door.longest_header = 10**7  # even where it is not too long
    nest = "[" * depth + "]" * depth
    text = f'{{"__metadata__":{{"undrift":{nest if where == "outside" else json.dumps(nest)}}}}}'.encode()
    assert "nested too deeply" in reason(door.admit(0, len(text).to_bytes(8, "little") + text))


@pytest.mark.parametrize(
    "data", [b"", b"x", bytes(8), b"\xff" * 8, b"\xff" * 100, b"{}", (2).to_bytes(8, "little") + b"{}"]
)
def test_bytes_that_are_no_message_are_rejected(data: bytes) -> None:
    assert isinstance(Stage("fedavg").door.admit(0, data), Rejected)


# --- what it says it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["client", "round", "samples", "steps", "spent", "notes", "up"])
def test_a_header_that_does_not_say_everything_is_rejected(missing: str) -> None:
    assert "its header does not say" in reason(Stage("fedavg").admit(lambda tensors, header: header.pop(missing)))


def test_parts_that_are_missing_or_too_many_are_rejected() -> None:
    stage = Stage("scaffold")
    assert "'up.dy' is missing" in reason(stage.admit(lambda tensors, header: tensors.pop("up.dy")))
    assert "'state.c' is missing" in reason(stage.admit(lambda tensors, header: tensors.pop("state.c")))
    more = stage.admit(lambda tensors, header: tensors.update({"up.z": torch.zeros(2)}))
    assert "'up.z' is not a part of it" in reason(more)


OTHER_TYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.float64,
]  # fmt: skip


@pytest.mark.parametrize("kind", OTHER_TYPES, ids=str)
@pytest.mark.parametrize("name", ["up.dy", "state.c"])
def test_a_type_other_than_the_models_is_rejected(name: str, kind: torch.dtype) -> None:
    stage = Stage("scaffold")
    try:
        found = stage.admit(sent(name, lambda value: value.to(kind)))
    except KeyError:
        pytest.skip("this safetensors has no such type")
    assert reason(found).endswith(f"is {str(kind).removeprefix('torch.')}, not float32") or "not a valid" in reason(
        found
    )


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64])
def test_whatever_type_a_single_number_has_the_servers_is_the_same(kind: torch.dtype) -> None:
    stage = Stage("fednova")
    found = stage.admit(sent("up.a", lambda a: a.to(kind)))
    assert isinstance(found, Reply), found
    done = stage.settle(stage.replies[0], found, stage.replies[2])
    assert done.up.a.dtype == torch.float64
    assert done.up.step.dtype == torch.float32


@pytest.mark.parametrize(
    "change", [lambda v: v[:1], lambda v: v[:0], lambda v: v[:-1], lambda v: v.unsqueeze(0), lambda v: v.repeat(2)]
)
@pytest.mark.parametrize("name", ["up.dy", "up.dc", "state.c"])
def test_a_shape_other_than_the_models_is_rejected(name: str, change: Callable[[Tensor], Tensor]) -> None:
    assert "has shape" in reason(Stage("scaffold").admit(sent(name, change)))


@pytest.mark.parametrize("follow", [True, False])
def test_a_shape_that_a_setting_decides_is_known_too(follow: bool) -> None:
    stage = Stage("feddyn", follow=follow)
    other = torch.zeros(0 if follow else 131)
    assert "moved has shape" in reason(stage.admit(sent("up.moved", lambda _: other)))


# --- its numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["up.dy", "up.dc", "state.c"])
def test_what_is_not_finite_is_rejected(name: str, value: float) -> None:
    found = Stage("scaffold").admit(sent(name, lambda v: torch.where(torch.arange(len(v)) == 3, value, v)))
    assert "is not finite" in reason(found)


@pytest.mark.filterwarnings("ignore:FedADM. a cohort of one:UserWarning")
@pytest.mark.parametrize("value", [1e30, -1e30, 1e11])
@pytest.mark.parametrize("name", sorted(set(algorithms()) - {"local"}))
def test_a_finite_upload_beyond_what_is_plausible_does_not_poison_a_method(name: str, value: float) -> None:
    """Alone in its round, so that no median of others could tell."""
    here, method = problem.federation(), create(name)
    here = here.pooled() if method.pools_data else here

    class Loud(Serial):
        def replies(self, task: Task) -> Iterator[Reply]:
            for reply in super().replies(task):
                up = reply.up.map(lambda f, v: torch.full_like(v, value) if v.is_floating_point() and v.ndim else v)
                yield replace(reply, up=up) if task.cohort.round == 1 else reply

    loop = Loop(here, method, Loud(here), 1)
    first = loop.play(loop.start())
    assert any(words in str(first.rejected) for words in ("which is not plausible", "does not divide"))
    assert first.skipped
    second = loop.play(first.snapshot)
    assert second.rejected == {}
    assert not second.skipped


@pytest.mark.parametrize(
    ("name", "field", "lie", "words"),
    [
        ("fedexp", "up.square", 1e12, "follows from the rest"),
        ("fedmrur", "up.norm", 1e6, "follows from the rest"),
        ("fednova", "up.a", 1e9, "a = 1e+09 after"),
        ("fednova", "up.a", -1.0, "a = -1 after"),
        ("fedadm", "up.known", 2.0, "known is no bit"),
        ("fedadm", "up.mu", -1.0, "negative"),
        ("fedproto", "up.n", 1e-30, "does not divide"),
        ("fedproto", "up.n", 1e6, "does not divide"),
    ],
)
def test_numbers_that_contradict_the_rest_are_rejected(name: str, field: str, lie: float, words: str) -> None:
    assert words in reason(Stage(name).admit(sent(field, lambda value: torch.full_like(value, lie))))


def test_more_right_than_there_are_is_rejected() -> None:
    numbers = [torch.tensor(value, dtype=torch.float64) for value in (5.0, 1.0, 4.0)]
    assert Judged(*numbers).doubt(10, 1) == "it claims 5 of 4 right"


def test_what_a_client_keeps_has_the_types_and_shapes_that_it_began_with() -> None:
    stage = Stage("moon")
    assert "its state h has shape" in reason(stage.admit(sent("state.h", lambda h: h[:, :-1])))
    assert "its state seen is not finite" in reason(stage.admit(sent("state.seen", lambda s: s * torch.nan)))
    assert "its state h is float64, not float32" in reason(stage.admit(sent("state.h", lambda h: h.double())))
    assert "not plausible" in reason(stage.admit(sent("state.h", lambda h: h + 1e30)))


@pytest.mark.parametrize("name", ["fedavg", "local"])  # who share their statistics, and who keep them
def test_batch_norm_statistics_are_there_whole_and_plausible(name: str) -> None:
    stage = Stage(name, batch_norm())
    assert isinstance(stage.admit(lambda tensors, header: None), Reply)
    floats, counts = "buffers.floats", "buffers.counts"
    assert "'buffers.floats' is missing" in reason(stage.admit(lambda tensors, header: tensors.pop(floats)))
    for size in (0, 1, 11, 13):
        assert "has shape" in reason(stage.admit(sent(floats, lambda value, n=size: value.new_zeros(n))))
    assert "is not finite" in reason(stage.admit(sent(floats, lambda value: value * torch.nan)))
    assert "not plausible" in reason(stage.admit(sent(floats, lambda value: value + 1e30)))
    assert "negative" in reason(stage.admit(sent(floats, lambda value: -value - 1)))
    assert "not plausible" in reason(stage.admit(sent(counts, lambda value: value - 10)))
    assert "not plausible" in reason(stage.admit(sent(counts, lambda value: value + 2**62)))


# --- its counters -----------------------------------------------------------------------------------------------------

COUNTERS = [-1, 0.5, 10**30, 10**400, 2**63, float("nan"), float("inf"), "7", None, True, [1], {"a": 1}]


@pytest.mark.parametrize("value", COUNTERS, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize(
    "name", ["round", "samples", "steps", "spent.gradients", "spent.forwards", "spent.head_gradients"]
)
def test_counters_are_whole_numbers_in_their_range(name: str, value: Any) -> None:
    assert reason(Stage("fedavg").admit(said(name, value)))


@pytest.mark.parametrize("value", [1e9, -1.0, float("nan"), float("inf"), 10**400, "1", None, True])
def test_nobody_works_for_longer_than_there_was_time(value: Any) -> None:
    assert "seconds of work" in reason(Stage("fedavg").admit(said("spent.seconds", value)))


def test_bytes_are_not_claimed_but_counted() -> None:
    stage = Stage("fedavg", batch_norm())
    assert "what it spent is not told" in reason(stage.admit(said("spent.bytes_up", -5)))
    found = stage.admit(lambda tensors, header: None)
    assert isinstance(found, Reply)
    assert found.buffers is not None
    assert found.spent.bytes_up == len(found.up.encode()) + len(found.buffers.encode())


@pytest.mark.parametrize(
    "notes",
    [
        [], 7, None, "x", {"a": "1"}, {"a": None}, {"a": True}, {"a": [1]}, {"a": 1e30}, {"a": 10**400}, {"": 1},
        {"a\nb": 1}, {"x" * 41: 1}, {f"n{i}": i for i in range(33)},
    ],
)  # fmt: skip
def test_notes_are_a_few_numbers_by_name(notes: Any) -> None:
    assert "note" in reason(Stage("fedavg").admit(said("notes", notes)))


def test_a_note_counts_where_most_have_made_it() -> None:
    stage = Stage("fedtrip")
    liar = stage.admit(said("notes", {"own": 5.0}))
    assert isinstance(liar, Reply)
    notes = stage.settle(stage.replies[0], liar, stage.replies[2]).cohort.notes
    assert set(notes) == {"xi"}


@pytest.mark.parametrize(
    "held", ["", "1", "1111", "2xy", "1" * 100_000, 7, None, ["1", "0", "1"], {"1": 1}, "000"], ids=lambda h: str(h)[:8]
)
def test_a_mask_that_fits_nothing_is_rejected(held: Any) -> None:
    assert reason(Stage("fedproto").admit(said("up", {"held": held})))


def test_a_short_message_cannot_ask_for_much_memory() -> None:
    """700 bytes: no rows, each of which would be gigabytes, of which all are left out."""
    stage = Stage("fedproto")

    def change(tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
        tensors["up.sums"], tensors["up.n"] = torch.zeros(0, 2**33), torch.zeros(0)
        header["up"] = {"held": "000"}

    tensors, header = take_apart(stage.replies[1])
    change(tensors, header)
    assert len(message({n: t for n, t in tensors.items() if n.startswith("up.")}, header)) < 740
    assert "sums has shape (0, 8589934592), not (0, 8)" in reason(stage.admit(change))


# --- who it is from ---------------------------------------------------------------------------------------------------


def test_a_message_in_anothers_name_is_its_senders_fault_and_the_other_counts() -> None:
    stage = Stage("fedavg")
    zero, one, two = stage.replies
    posing = stage.admit(said("client", zero.client))
    assert posing == Rejected(one.client, "it speaks in another client's name")
    done = stage.settle(posing, zero, two)
    assert done.cohort.ids.tolist() == [zero.client, two.client]
    assert list(done.rejected) == [one.client]


def test_a_good_answer_after_a_bad_one_counts() -> None:
    stage = Stage("fedavg")
    bad = Rejected(stage.replies[0].client, "it cannot be read")
    done = stage.settle(bad, *stage.replies)
    assert done.rejected == {}
    assert torch.equal(done.up.x, stage.settle(*stage.replies).up.x)


@pytest.mark.parametrize("second", ["same", "bad", "other"])
def test_a_second_answer_after_a_good_one_is_no_matter(second: str) -> None:
    stage = Stage("fedavg")
    first = stage.replies[0]
    again: Any = {
        "same": first,
        "bad": Rejected(first.client, "it cannot be read"),
        "other": replace(first, up=Trained(torch.zeros_like(first.up.x))),
    }[second]
    done = stage.settle(first, again, *stage.replies[1:], again)
    assert done.rejected == {}
    assert done.cohort.size == 3
    assert torch.equal(done.up.x, stage.settle(*stage.replies).up.x)


def test_a_crowd_does_not_wait_for_ever_for_a_good_answer_after_a_bad_one() -> None:
    here = small(sizes=[5] * 20)
    runtime = Serial(here)
    loop = Loop(here, create("fedavg"), runtime, 20)
    cohort = loop._cohort(1)
    task = Task(loop.method, loop.method.broadcast(loop.start().server, cohort), cohort)
    replies = list(runtime.replies(task))
    late = settle(task, [Rejected(0, "bad"), *replies[1:], replies[0]], Memory(), runtime.expecting(task))
    never = settle(task, replies[1:], Memory(), runtime.expecting(task))
    assert torch.equal(late.up.x, never.up.x)
    assert late.cohort.ids.tolist() == list(range(1, 20))


# --- through real processes -------------------------------------------------------------------------------------------


class Rogue(Averaging[Nothing]):
    """Client 1 uploads something else."""

    how: str = "type"

    def client_update(self, down: Broadcast, me: Nothing, local: Any) -> Any:
        x = local.descend(local.grad, down.x)
        if local.client == 1:
            x = {
                "type": lambda: x.bfloat16(),
                "complex": lambda: x.to(torch.complex64),
                "shape": lambda: x[:1],
                "nan": lambda: x * torch.nan,
                "huge": lambda: x + 1e30,
                "nothing": lambda: None,
            }[self.how]()
        return (Trained(x) if self.how != "pair" else x), me


WORDS = {
    "type": "x is bfloat16, not float32",
    "complex": "x is complex64, not float32",
    "shape": "x has shape (1,), not (131,)",
    "nan": "x is not finite",
    "huge": "x reaches 1e+30, which is not plausible",
}


@pytest.mark.parametrize("runtime", [Serial, lambda here: Processes(here, 1)], ids=["serial", "processes"])
@pytest.mark.parametrize("how", WORDS)
def test_a_bad_upload_never_ends_a_run(runtime: Any, how: str) -> None:
    here = problem.federation()
    with runtime(here) as made:
        loop = Loop(here, Rogue(how=how), made, 6)
        first = loop.play(loop.start())
        second = loop.play(first.snapshot)
    for played in (first, second):
        assert played.rejected == {1: WORDS[how]}
        assert played.cohort.ids.tolist() == [0, 2, 3, 4, 5]
        assert played.snapshot.server.x.dtype == torch.float32
        assert torch.isfinite(played.snapshot.server.x).all()


@pytest.mark.parametrize(
    ("how", "words"), [("nothing", "returns nothing as x, not a tensor"), ("pair", "not a Tensor")]
)
def test_a_method_that_returns_no_upload_gets_a_sentence(how: str, words: str) -> None:
    here = problem.federation()
    loop = Loop(here, Rogue(how=how), Serial(here), 6)
    with pytest.raises(InvalidInput, match=words):
        loop.play(loop.start())
