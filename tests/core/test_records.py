"""Records: bytes and back, sizes, rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from undrift.core.records import (
    Each,
    Had,
    Mean,
    Message,
    PerClass,
    Scalar,
    State,
    Sum,
    Table,
    Upload,
    Vector,
    pack,
    unpack,
)


class Server(State):
    x: Vector
    rounds: int
    rate: float
    done: bool
    table: Tensor


class Down(Message):
    x: Had[Vector]
    own: Each[Vector]
    tau: int


class Up(Upload):
    dy: Mean[Vector]
    a: Each[Scalar]


class Classwise(Upload):
    sums: Sum[Table]
    n: Sum[PerClass]
    x: Mean[Vector]


@given(
    st.lists(st.floats(allow_nan=False, width=32), max_size=20),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.booleans(),
)
def test_encoding_keeps_every_bit(values: list[float], rounds: int, rate: float, done: bool) -> None:
    record = Server(torch.tensor(values), rounds, rate, done, torch.arange(6).view(2, 3))
    data = record.encode()
    back = Server.decode(data)
    assert torch.equal(back.x, record.x)
    assert back.x.dtype == record.x.dtype
    assert (back.rounds, back.rate, back.done) == (rounds, rate, done)
    assert torch.equal(back.table, record.table)
    assert record.nbytes() == len(data)


def test_a_row_is_what_one_client_gets_and_had_fields_are_not_sent() -> None:
    x, rows = torch.ones(3), torch.arange(6.0).view(2, 3)
    mine = Down(x, rows, 4).row(1)
    assert torch.equal(mine.own, rows[1])
    data = mine.encode()
    assert b'"x"' not in data
    back = Down.decode(data, had=Server(x, 1, 1.0, True, x))
    assert torch.equal(back.x, x)
    assert back.tau == 4


def test_the_size_on_the_wire_does_not_depend_on_values() -> None:
    assert len({Down(torch.ones(3), torch.ones(3), tau).nbytes() for tau in (1, 10, 10**6)}) == 1


def test_the_schema_says_how_fields_travel() -> None:
    assert [(f.name, f.axes, f.travel) for f in Up.schema()] == [("dy", ("d",), "mean"), ("a", (), "each")]


@pytest.mark.parametrize("data", [b"", b"\x00" * 7, b"\xff" * 40, b'\x10\x00\x00\x00\x00\x00\x00\x00{"a":1}'])
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a valid message"):
        unpack(data)


# --- rows of classes that a client does not hold ----------------------------------------------------------------------


def classwise(counts: list[int], width: int = 4) -> Classwise:
    n = torch.tensor(counts, dtype=torch.float32)
    return Classwise(n.unsqueeze(1) * torch.arange(width), n, torch.ones(3))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 3))
def test_an_upload_has_rows_of_the_clients_own_classes_alone(counts: list[int], width: int) -> None:
    record = classwise(counts, width)
    held = sum(count > 0 for count in counts)
    assert [len(record.sent()[0][name]) for name in ("sums", "n", "x")] == [held, held, 3]
    data = record.encode()
    assert record.nbytes() == len(data)
    back = Classwise.decode(data)
    for (_, mine), (_, theirs) in zip(record.items(), back.items(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.dtype == theirs.dtype


def test_a_class_whose_features_are_zero_is_still_held() -> None:
    record = Classwise(torch.zeros(3, 2), torch.tensor([0.0, 5.0, 0.0]), torch.ones(1))
    assert record.sent()[0]["sums"].shape == (1, 2)
    assert torch.equal(Classwise.decode(record.encode()).n, record.n)


def test_every_class_left_out_saves_its_row() -> None:
    few, many = classwise([1, 0, 0, 0, 0], 64).nbytes(), classwise([1, 1, 1, 1, 1], 64).nbytes()
    assert many - few == pytest.approx(4 * 4 * (64 + 1), abs=16)  # the header counts the rows, and is padded


def test_sizes_of_many_records_at_once() -> None:
    records = [classwise(counts) for counts in ([1, 0, 2], [1, 1, 1], [0, 0, 0])]
    stacked = Classwise(
        *(torch.stack(rows) for rows in zip(*([v for _, v in r.items()] for r in records), strict=True))
    )
    assert stacked.sizes(3) == [len(record.encode()) for record in records]
    plain = Up(torch.ones(3, 5), torch.ones(3))
    assert plain.sizes(3) == [len(Up(torch.ones(5), torch.ones(())).encode())] * 3


def test_states_and_messages_keep_all_rows() -> None:
    class Held(State):
        sums: Table

    assert Held(torch.zeros(3, 2)).sent()[0]["sums"].shape == (3, 2)


def test_rows_that_do_not_fit_the_header_are_refused() -> None:
    tensors, _ = classwise([1, 0, 1]).sent()
    with pytest.raises(ValueError, match="not a valid message: sums has 2 rows"):
        Classwise.decode(pack(tensors, {"held": "111"}))


def test_tables_of_a_wrong_shape_travel_as_they_are_so_that_the_server_can_object() -> None:
    bad = Classwise(torch.zeros(()), torch.zeros(3), torch.ones(1))
    assert Classwise.decode(bad.encode()).sums.shape == ()


def test_on_another_device_are_the_vectors_and_not_the_single_numbers() -> None:
    record = Server(torch.zeros(3), 5, 0.1, True, torch.tensor(2.0)).to("meta")
    assert record.x.device.type == "meta"
    assert record.table.device.type == "cpu"
    assert record.rounds == 5
