"""Records: bytes and back, sizes, rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from undrift.core.records import Each, Had, Mean, Message, Scalar, State, Upload, Vector, unpack


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
