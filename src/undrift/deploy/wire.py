"""Messages of any length over a Unix socket, between processes of one user on one machine.

A frame is a magic word, a kind, a length and so many bytes, never more than ``CHUNK``. A message is a frame with its
size, then frames with its bytes; or one frame with the reason why there is none. A note is a small JSON object, with
which the two ends arrange what comes next. Nothing is believed before it is checked: an unknown kind, a length over
the limit or a byte too many ends the connection, and memory is taken as bytes arrive, not as they are announced.

Knows nothing of engines, sites, or what the bytes mean.
"""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from io import BytesIO
from pathlib import Path
from typing import Any

CHUNK = 1 << 16  # bytes in a frame; only the last of a message may have fewer
LARGEST = 1 << 30  # bytes in a message, unless a limit is given
NOTE = 4096  # bytes in a note, and in the reason of a failure

_FRAME = struct.Struct(">4sBI")
_SIZE = struct.Struct(">Q")
_MAGIC = b"udr1"
_PATH_LIMIT = 100  # a socket's name has room for 104 bytes or more, according to the system


class Broken(ConnectionError):
    """The other end has gone, is somebody else, or does not speak as agreed. The connection is of no more use."""


class Late(Broken):
    """The deadline has passed."""


class Closed(Broken):
    """The other end has closed the connection between two frames."""


class Failed(Exception):
    """The other end could not give a message, and says why."""


class Kind(IntEnum):
    SIZE = 1
    DATA = 2
    FAILED = 3
    NOTE = 4


def at(seconds: float) -> float:
    """The moment so many seconds from now, as ``Wire`` wants it."""
    return time.monotonic() + seconds


def left(until: float) -> float:
    """Seconds until a moment; never less than zero."""
    return max(0.0, until - time.monotonic())


class Wire:
    """One connection. Every wait ends at the moment ``until``; ``sent`` and ``received`` count bytes, frames included.

    Reading and writing may be done by two threads, each of them by one at a time.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.sent = 0
        self.received = 0

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; whoever waits on it, at either end, is woken."""
        with suppress(OSError):  # the other end was first
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    # Messages.

    def send_message(self, message: bytes | memoryview, until: float) -> None:
        self.send_size(len(message), until)
        view = memoryview(message)
        for start in range(0, len(view), CHUNK):
            self.send_chunk(view[start : start + CHUNK], until)

    def receive_message(self, until: float, largest: int = LARGEST) -> bytes:
        """A whole message. ``Failed`` if the other end has none to give."""
        size = self.receive_size(until, largest)
        whole = BytesIO()  # gives its bytes away without a copy
        while whole.tell() < size:
            whole.write(self.receive_chunk(until, size - whole.tell()))
        return whole.getvalue()

    def send_size(self, size: int, until: float) -> None:
        self._send(Kind.SIZE, _SIZE.pack(size), until)

    def receive_size(self, until: float, largest: int = LARGEST) -> int:
        kind, payload = self._receive(until, {Kind.SIZE: _SIZE.size, Kind.FAILED: NOTE})
        if kind == Kind.FAILED:
            raise Failed(payload.decode("utf-8", "replace"))
        if len(payload) != _SIZE.size:
            raise Broken(f"a size of {len(payload)} bytes; {_SIZE.size} are allowed")
        size: int = _SIZE.unpack(payload)[0]
        if size > largest:
            raise Broken(f"a message of {size} bytes; at most {largest} are allowed")
        return size

    def send_chunk(self, chunk: bytes | memoryview, until: float) -> None:
        self._send(Kind.DATA, chunk, until)

    def receive_chunk(self, until: float, largest: int) -> bytes:
        """The next bytes of a message of which ``largest`` are still to come."""
        kind, payload = self._receive(until, {Kind.DATA: min(CHUNK, largest), Kind.FAILED: NOTE})
        if kind == Kind.FAILED:
            raise Failed(payload.decode("utf-8", "replace"))
        if not payload:
            raise Broken("an empty piece of a message")
        return payload

    def send_failure(self, reason: str, until: float) -> None:
        self._send(Kind.FAILED, reason.encode()[:NOTE], until)

    # Notes.

    def send_note(self, note: dict[str, Any], until: float) -> None:
        self._send(Kind.NOTE, json.dumps(note).encode(), until)

    def receive_note(self, until: float) -> dict[str, Any]:
        _, payload = self._receive(until, {Kind.NOTE: NOTE})
        try:
            note = json.loads(payload)
        except (ValueError, RecursionError):
            raise Broken("a note that is not JSON") from None
        if not isinstance(note, dict):
            raise Broken("a note that is not a JSON object")
        return note

    def waiting(self, seconds: float) -> bool:
        """Whether something can be read, or the other end has gone; waits so long for it."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    # Frames.

    def _send(self, kind: Kind, payload: bytes | memoryview, until: float) -> None:
        for part in (_FRAME.pack(_MAGIC, kind, len(payload)), payload):
            with self._in_time(until):
                self.connection.sendall(part)
            self.sent += len(part)

    def _receive(self, until: float, allowed: dict[Kind, int]) -> tuple[Kind, bytes]:
        """A frame of one of the allowed kinds, none longer than its limit."""
        magic, number, length = _FRAME.unpack(self._read(_FRAME.size, until))
        if magic != _MAGIC:
            raise Broken("these are not the frames of an undrift pipe")
        kind = next((k for k in allowed if k == number), None)
        if kind is None:
            raise Broken(f"a frame of kind {number} where {', '.join(k.name for k in allowed)} is due")
        if length > allowed[kind]:
            raise Broken(f"a frame of {length} bytes; at most {allowed[kind]} are allowed here")
        return kind, self._read(length, until)

    def _read(self, length: int, until: float) -> bytes:
        data = bytearray(length)
        view = memoryview(data)
        while view:
            with self._in_time(until):
                count = self.connection.recv_into(view)
            if not count:
                raise (Closed if len(view) == length == _FRAME.size else Broken)("the connection was closed")
            view = view[count:]
            self.received += count
        return bytes(data)

    @contextmanager
    def _in_time(self, until: float) -> Iterator[None]:
        try:
            self.connection.settimeout(max(left(until), 1e-6))
            yield
        except TimeoutError:
            raise Late("the deadline has passed") from None
        except OSError as error:
            raise Broken(f"the connection was lost ({error.strerror or error})") from None


def connect(path: Path, until: float) -> Wire:
    """A connection to the socket at ``path``, whose owner must be this process's user."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # A socket with a timeout of Python's would not wait its turn where many call at once: the kernel's does.
        seconds = max(left(until), 1e-3)
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        with _within_reach(path) as name:
            connection.connect(name)
        check_peer(connection)
    except BlockingIOError:
        connection.close()
        raise Late(f"nobody took the call at {path} in time") from None
    except Broken:
        connection.close()
        raise
    except OSError as error:
        connection.close()
        raise Broken(f"nobody listens at {path} ({error.strerror or error})") from None
    return Wire(connection)


def listen(path: Path) -> socket.socket:
    """A listening socket at ``path``, for this user only: the socket 0600, its folder 0700.

    ``Broken`` if the folder is open to others or somebody listens there already; a socket left behind is replaced.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = path.parent.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise Broken(f"the folder {path.parent} must be yours alone: chmod 700 it")
    if path.exists():
        try:
            connect(path, at(1.0)).close()
        except Late:
            raise Broken(f"somebody listens at {path} already") from None
        except Broken:
            path.unlink(missing_ok=True)
        else:
            raise Broken(f"somebody listens at {path} already")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _within_reach(path) as name:
            listener.bind(name)
        path.chmod(0o600)  # until here the folder kept others out
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise Broken(f"cannot listen at {path} ({error.strerror or error})") from None
    return listener


def check_peer(connection: socket.socket) -> None:
    """``Broken`` if the process at the other end belongs to another user, or the system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        raise Broken("this system does not tell whose process is at the other end of a socket: Linux does")
    credentials = struct.Struct("3i")
    _, user, _ = credentials.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size))
    if user != os.getuid():
        raise Broken(f"the process at the other end belongs to user {user}, not to {os.getuid()}")


@contextmanager
def _within_reach(path: Path) -> Iterator[str]:
    """A name for ``path`` that a socket has room for: kits may lie deep in a file system."""
    if len(os.fsencode(path)) <= _PATH_LIMIT:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
