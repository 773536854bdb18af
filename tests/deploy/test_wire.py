"""Frames over a Unix socket: what is said arrives, what is not allowed ends the connection, nobody waits too long."""

from __future__ import annotations

import os
import random
import socket
import stat
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from undrift.deploy import wire
from undrift.deploy.wire import CHUNK, NOTE, Broken, Closed, Failed, Late, Wire, at, connect, listen

SOON = 10.0


@pytest.fixture
def pair() -> Iterator[tuple[Wire, Wire]]:
    a, b = (Wire(s) for s in socket.socketpair())
    with a, b:
        yield a, b


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_a_message_arrives_whole(pair: tuple[Wire, Wire], size: int) -> None:
    message = random.Random(size).randbytes(size)
    sender = threading.Thread(target=pair[0].send_message, args=(message, at(SOON)))
    sender.start()
    received = pair[1].receive_message(at(SOON))
    sender.join()
    assert received == message
    assert type(received) is bytes
    assert pair[0].sent == pair[1].received >= size


def test_a_failure_arrives_in_the_place_of_a_message_and_in_the_middle_of_one(pair: tuple[Wire, Wire]) -> None:
    pair[0].send_failure("the disk is full", at(SOON))
    with pytest.raises(Failed, match=r"^the disk is full$"):
        pair[1].receive_message(at(SOON))
    pair[0].send_size(10, at(SOON))
    pair[0].send_chunk(b"12345", at(SOON))
    pair[0].send_failure("lost the rest", at(SOON))
    with pytest.raises(Failed, match="lost the rest"):
        pair[1].receive_message(at(SOON))


def test_a_note_arrives(pair: tuple[Wire, Wire]) -> None:
    pair[0].send_note({"call": "ä", "seconds": 1.5}, at(SOON))
    assert pair[1].receive_note(at(SOON)) == {"call": "ä", "seconds": 1.5}


def frame(kind: int, length: int, payload: bytes, magic: bytes = b"udr1") -> bytes:
    return struct.pack(">4sBI", magic, kind, length) + payload


SIZE, DATA, FAILED, NOTED = 1, 2, 3, 4


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not the frames"),
        (frame(SIZE, 8, bytes(8), magic=b"udr9"), "not the frames"),
        (frame(9, 0, b""), "kind 9 where SIZE, FAILED"),
        (frame(DATA, 3, b"abc"), "kind 2 where SIZE, FAILED"),
        (frame(SIZE, 9, bytes(9)), "9 bytes; at most 8"),
        (frame(SIZE, 4, bytes(4)), "a size of 4 bytes"),
        (frame(SIZE, 8, struct.pack(">Q", 5001)), "5001 bytes; at most 5000"),
        (frame(SIZE, 8, struct.pack(">Q", 2**64 - 1)), "at most 5000"),
        (frame(SIZE, 8, struct.pack(">Q", 5)) + frame(DATA, 6, b"abcdef"), "6 bytes; at most 5"),
        (frame(SIZE, 8, struct.pack(">Q", 5)) + frame(DATA, 0, b""), "empty piece"),
        (frame(SIZE, 8, struct.pack(">Q", 5)) + frame(NOTED, 2, b"{}"), "kind 4 where DATA, FAILED"),
        (frame(FAILED, NOTE + 1, bytes(NOTE + 1)), f"at most {NOTE}"),
        (frame(SIZE, 8, struct.pack(">Q", 5)) + frame(DATA, 2**32 - 1, b"x"), "at most 5"),
        (frame(SIZE, 8, struct.pack(">Q", 5)) + frame(DATA, 3, b"abc")[:-1], "closed"),
    ],
)
def test_what_is_no_message_ends_the_connection(pair: tuple[Wire, Wire], said: bytes, sentence: str) -> None:
    pair[0].connection.sendall(said)
    pair[0].close()
    with pytest.raises(Broken, match=sentence):
        pair[1].receive_message(at(SOON), largest=5000)


@pytest.mark.parametrize("said", [b"no json", b"[1]", b"[" * 4000, b"\xff\xfe"])
def test_what_is_no_note_ends_the_connection(pair: tuple[Wire, Wire], said: bytes) -> None:
    pair[0].connection.sendall(frame(NOTED, len(said), said))
    with pytest.raises(Broken, match=r"not (a )?JSON"):
        pair[1].receive_note(at(SOON))


def test_ten_thousand_mutated_messages_end_in_order(pair: tuple[Wire, Wire]) -> None:
    """None crashes, none hangs, none is taken for another message."""
    dice = random.Random(13)
    message = dice.randbytes(200)
    good = frame(SIZE, 8, struct.pack(">Q", 200)) + frame(DATA, 150, message[:150]) + frame(DATA, 50, message[150:])
    heads = {*range(17), *range(17, 26), *range(176, 185)}  # bytes that are not payload
    outcomes = set()
    for _ in range(10_000):
        said = bytearray(good)
        changed = dice.sample(range(len(said)), dice.randint(1, 4))
        for place in changed:
            said[place] ^= dice.randint(1, 255)
        said = said[: dice.randint(0, len(said))] if dice.random() < 0.3 else said
        a, b = (Wire(s) for s in socket.socketpair())
        with a, b:
            a.connection.sendall(said)
            a.close()
            try:
                received = b.receive_message(at(SOON), largest=10_000)
            except (Broken, Failed) as error:
                outcomes.add(type(error))
            else:
                outcomes.add(bytes)
                assert len(received) == 200 or heads & set(changed)
    assert outcomes <= {Broken, Closed, Failed, bytes}
    assert Late not in outcomes


def test_a_size_that_is_announced_takes_no_memory(pair: tuple[Wire, Wire]) -> None:
    import tracemalloc

    pair[0].connection.sendall(frame(SIZE, 8, struct.pack(">Q", 1 << 30)) + frame(DATA, CHUNK, b"x"))
    pair[0].close()
    tracemalloc.start()
    with pytest.raises(Broken):
        pair[1].receive_message(at(SOON))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * CHUNK


@pytest.mark.parametrize("said", [b"", b"udr1", frame(SIZE, 8, struct.pack(">Q", 5)) + frame(DATA, 5, b"ab")])
def test_reading_ends_at_the_deadline(pair: tuple[Wire, Wire], said: bytes) -> None:
    pair[0].connection.sendall(said)
    with pytest.raises(Late):
        pair[1].receive_message(at(0.05))


def test_a_deadline_is_for_the_whole_message_however_slowly_it_drips(pair: tuple[Wire, Wire]) -> None:
    stop = threading.Event()

    def drip() -> None:
        pair[0].send_size(1000, at(SOON))
        while not stop.wait(0.01):
            pair[0].send_chunk(b"x", at(SOON))

    thread = threading.Thread(target=drip)
    thread.start()
    with pytest.raises(Late):
        pair[1].receive_message(at(0.2))
    stop.set()
    thread.join()


def test_writing_ends_at_the_deadline(pair: tuple[Wire, Wire]) -> None:
    with pytest.raises(Late):
        pair[0].send_message(bytes(50 * CHUNK), at(0.05))  # nobody reads


def test_a_socket_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "pipe" / "undrift.sock"
    with listen(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir(mode=0o755)
    with pytest.raises(Broken, match="chmod 700"):
        listen(tmp_path / "pipe" / "undrift.sock")


def test_a_socket_that_is_in_use_is_refused_and_one_left_behind_replaced(tmp_path: Path) -> None:
    path = tmp_path / "pipe" / "undrift.sock"
    with listen(path), pytest.raises(Broken, match="somebody listens"):
        listen(path)
    assert path.exists()
    listen(path).close()


def test_a_path_of_any_length_will_do(tmp_path: Path) -> None:
    path = tmp_path / ("deep" * 40) / "pipe" / "undrift.sock"
    with listen(path) as listener, connect(path, at(SOON)) as here:
        there, _ = listener.accept()
        with Wire(there) as other:
            here.send_note({"hello": 1}, at(SOON))
            assert other.receive_note(at(SOON)) == {"hello": 1}


def test_nobody_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(Broken, match=r"nobody listens at .*undrift\.sock"):
        connect(tmp_path / "undrift.sock", at(SOON))


def test_a_call_that_nobody_takes_ends_at_the_deadline(tmp_path: Path) -> None:
    path = tmp_path / "pipe" / "undrift.sock"
    with listen(path), ExitStack() as queue:

        def call_in_a_row() -> None:
            for _ in range(500):  # more than may wait in line
                queue.enter_context(connect(path, at(0.1)))

        with pytest.raises(Late, match="nobody took the call"):
            call_in_a_row()


OTHER_USER = """
import os, socket, sys
path = sys.argv[1]
os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
s.connect(path)
print(s.recv(1) == b"", flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_is_sent_away() -> None:
    """Even where the modes of socket and folder would let it in."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipe" / "undrift.sock"
        with listen(path) as listener:
            for opened in (Path(folder), path.parent, path):
                opened.chmod(0o777)
            with subprocess.Popen([sys.executable, "-c", OTHER_USER, path], stdout=subprocess.PIPE, text=True) as other:
                connection, _ = listener.accept()
                with Wire(connection), pytest.raises(Broken, match="belongs to user 65534, not to 0"):
                    wire.check_peer(connection)
                assert other.stdout is not None
                assert other.stdout.read() == "True\n"
