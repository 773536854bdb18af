"""An engine's process at a site: takes a message in pieces, gives it to the site process, hands the answer back.

The bridge asks, the relay answers; an engine need only carry a request (a small dictionary with at most one piece of a
message) and its reply. A request may be repeated if its reply was lost: pieces are numbered, and the last one is
remembered. The relay holds a piece at a time, never a message, and no longer than the call's deadline.

    {"call", "push": n, "size", "data", "seconds", "piece", "wait"}  -> {} or, to the last piece, as to "pull": 0
    {"call", "pull": n, "wait"}  -> {"size", "data"}, or {"later": true} if the site is still at work
    {"call", "drop": true}  -> {}        {"probe": true}  -> {"there": "ready" or "no site process"}

and ``{"failed": reason}`` to any of them. Knows no engine and no tensors: standard library alone.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from undrift.deploy.pipe import CROWD, PATIENCE
from undrift.deploy.wire import CHUNK, LARGEST, Broken, Failed, Wire, at, connect, left

REMEMBERED = 4  # calls that are over, but whose last reply may yet be asked for again

Request = dict[str, Any]
Reply = dict[str, Any]


class Relay:
    """The calls under way at a site whose process listens at ``path``. ``handle`` may be called by any thread."""

    def __init__(self, path: Path, largest: int = LARGEST) -> None:
        self.path, self.largest = path, largest
        self._errands: dict[str, _Errand] = {}
        self._lock = threading.Lock()

    def handle(self, request: Request) -> Reply:
        """The reply to a request, whatever the request is."""
        try:
            if request.get("probe") is True:
                return {"there": self._there()}
            name = _field(request, "call", str)
            if request.get("drop") is True:
                self._forget(name)
                return {}
            errand = self._errand(name, request)
        except Broken as error:
            return {"failed": str(error)}
        with errand.lock:
            try:
                return errand.push(request) if "push" in request else errand.pull(request)
            except Failed as failure:
                reason = str(failure)
            except Broken as error:
                reason = f"the site process did not answer: {error}"
        self._forget(name)
        return {"failed": reason}

    def close(self) -> None:
        for name in list(self._errands):
            self._forget(name)

    def _there(self) -> str:
        try:
            connect(self.path, at(PATIENCE)).close()
        except Broken:
            return "no site process"
        return "ready"

    def _errand(self, name: str, request: Request) -> _Errand:
        with self._lock:
            for old in [n for n, e in self._errands.items() if not left(e.until)]:
                self._errands.pop(old).wire.close()
            if name in self._errands:
                return self._errands[name]
            if request.get("push") != 0:
                raise Broken("this call is not known here")
            for old in [n for n, e in self._errands.items() if e.finished][:-REMEMBERED]:
                self._errands.pop(old).wire.close()
            if len(self._errands) >= CROWD:
                raise Broken(f"is busy: {CROWD} calls are open")
            self._errands[name] = _Errand(self.path, request, self.largest)
            return self._errands[name]

    def _forget(self, name: str) -> None:
        with self._lock:
            errand = self._errands.pop(name, None)
        if errand is not None:
            errand.wire.close()


class _Errand:
    """One call: a connection to the site process, how far its message got, and the last piece of its answer."""

    def __init__(self, path: Path, request: Request, largest: int) -> None:
        seconds = _field(request, "seconds", float, 1e7)
        self.piece = _field(request, "piece", int, LARGEST)
        if self.piece < CHUNK or self.piece % CHUNK:
            raise Broken(f"pieces of {self.piece} bytes; whole frames of {CHUNK} are allowed")
        self.size = _field(request, "size", int, largest)
        self.largest = largest
        self.until = at(seconds)
        self.lock = threading.Lock()
        self.pushed = self.expected = self.given = 0  # bytes to the site; pieces from the bridge; pieces to it
        self.answer: int | None = None  # its size
        self.pulled = 0
        self.last: Reply = {}
        self.wire: Wire = connect(path, min(self.until, at(PATIENCE)))
        self.wire.send_note({"seconds": seconds}, self.until)
        self.wire.send_size(self.size, self.until)

    @property
    def finished(self) -> bool:
        return self.answer is not None and self.pulled == self.answer

    def push(self, request: Request) -> Reply:
        number = _field(request, "push", int)
        if number == self.expected:
            self._pass_on(_field(request, "data", bytes))
            self.expected += 1
        elif number != self.expected - 1:
            raise Broken(f"piece {number} of a message where {self.expected} is due")
        return self.pull(request | {"pull": 0}) if self.pushed == self.size else {}

    def _pass_on(self, data: bytes) -> None:
        if len(data) != min(self.piece, self.size - self.pushed):
            raise Broken("a piece of a message that has not the length agreed on")
        view = memoryview(data)
        try:
            for start in range(0, len(view), CHUNK):
                self.wire.send_chunk(view[start : start + CHUNK], self.until)
        except Broken:
            self.wire.receive_size(self.until)  # who closes the connection has often said why: ``Failed`` then
            raise
        self.pushed += len(data)

    def pull(self, request: Request) -> Reply:
        number = _field(request, "pull", int)
        if self.pushed < self.size:
            raise Broken("an answer was asked for before the message was complete")
        if self.given and number == self.given - 1:
            return self.last
        if number != self.given:
            raise Broken(f"piece {number} of an answer where {self.given} is due")
        if self.answer is None:
            if not self.wire.waiting(min(_field(request, "wait", float, 1e7), left(self.until))):
                return {"later": True}
            self.answer = self.wire.receive_size(self.until, self.largest)
        self.last = {"size": self.answer, "data": self._take(min(self.piece, self.answer - self.pulled))}
        self.given += 1
        if self.finished:
            self.wire.close()
        return self.last

    def _take(self, length: int) -> bytes:
        piece = bytearray()
        while len(piece) < length:
            piece += self.wire.receive_chunk(self.until, length - len(piece))
        self.pulled += length
        return bytes(piece)


def _field(request: Request, name: str, kind: type[Any], most: float | None = None) -> Any:
    """A field of a request, of the right kind and size; the bridge is not believed more than others."""
    value: Any = request.get(name)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise Broken(f"a request whose {name!r} is not of kind {kind.__name__}")
    if most is not None and not 0 <= float(value) <= most:
        raise Broken(f"a request whose {name!r} is {value}; 0 to {most:g} is allowed")
    return value
