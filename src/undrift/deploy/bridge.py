"""An engine's process beside the coordinator: takes messages from it and carries them to the sites' relays.

One connection to the coordinator lasts as long as the job; on it the coordinator announces calls, and for each of them
the bridge opens a line of its own, on which the message comes and the answer goes. A message is carried in pieces, a
piece at a time. Requests are repeated when their reply is lost, so that a connection that the engine mends costs no
call; a relay that stays silent fails its call long before the deadline. Knows no engine: standard library alone.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from undrift.deploy.pipe import PATIENCE
from undrift.deploy.relay import Reply, Request
from undrift.deploy.wire import CHUNK, LARGEST, Broken, Failed, Wire, at, connect, left

LEFT_OUT = "is not in the engine's job: it was away when the job began"

logger = logging.getLogger(__name__)


class Ask(Protocol):
    """What an engine must be able to do: carry a request to a site's relay, and its reply back.

    None if there was no reply within the seconds; ``Failed`` if there cannot be one, with the reason.
    """

    def __call__(self, site: str, request: Request, seconds: float) -> Reply | None: ...


@dataclass(frozen=True)
class Pace:
    """How an engine likes its requests. ``Pace(piece=LARGEST, wait=inf)``: one request a call, for slow starters."""

    piece: int = 64 * CHUNK  # bytes of a message in a request; whole frames, so that no end need cut one
    wait: float = 5.0  # seconds that a relay may hold a request back while its site is at work
    grace: float = 10.0  # seconds more until a request counts as lost
    tries: int = 3  # of one request


USUAL = Pace()


class Bridge:
    """Serves the coordinator that listens at ``path`` until either of them ends."""

    def __init__(self, path: Path, token: str, ask: Ask, pace: Pace = USUAL) -> None:
        self.path, self.ask, self.pace = path, ask, pace
        self._control = connect(path, at(PATIENCE))
        self._control.send_note({"token": token}, at(PATIENCE))

    def run(self, stopped: Callable[[], bool]) -> None:
        """Carry calls until the coordinator hangs up, or ``stopped`` says so."""
        with self._control:
            while not stopped():
                if not self._control.waiting(0.5):
                    continue
                try:
                    note = self._control.receive_note(at(PATIENCE))
                except Broken as error:
                    logger.info("the coordinator has gone: %s", error)
                    return
                threading.Thread(target=self._serve, args=(note,), daemon=True).start()

    def _serve(self, note: dict[str, Any]) -> None:
        until = at(float(note["seconds"]))
        try:
            with connect(self.path, until) as line:
                line.send_note({"call": note["call"]}, until)
                self._carry(str(note["site"]), line, until, bool(note.get("probe")))
        except Broken as error:
            logger.info("a call to %s was given up: %s", note.get("site"), error)

    def _carry(self, site: str, line: Wire, until: float, probe: bool) -> None:
        errand = _Errand(self.ask, self.pace, site, line, until)
        try:
            if probe:
                line.receive_message(until)
                line.send_message(errand.probe().encode(), until)
            else:
                errand.bring(errand.send())
        except Failed as failure:
            line.send_failure(str(failure), until)
        except Broken:
            errand.drop()
            raise


class _Errand:
    """One message to one site, and its answer."""

    def __init__(self, ask: Ask, pace: Pace, site: str, line: Wire, until: float) -> None:
        self.ask, self.pace, self.site, self.line, self.until = ask, pace, site, line, until
        self.name = secrets.token_hex(8)
        self.complete = False  # the message has come from the coordinator, which now says nothing but that it left

    def probe(self) -> str:
        there = self.once({"probe": True}).get("there")
        if not isinstance(there, str):
            raise Failed("its relay does not answer")
        return there

    def send(self) -> Reply:
        """Push the message; the reply to its last piece, which may have the beginning of the answer."""
        size = self.line.receive_size(self.until)
        done = number = 0
        while True:
            piece = self._piece(min(self.pace.piece, size - done))
            done += len(piece)
            self.complete = done == size
            reply = self.insist({"push": number, "size": size, "data": piece, "piece": self.pace.piece})
            if self.complete:
                return reply
            number += 1

    def _piece(self, length: int) -> bytes:
        piece = bytearray()
        while len(piece) < length:
            piece += self.line.receive_chunk(self.until, length - len(piece))
        return bytes(piece)

    def bring(self, reply: Reply) -> None:
        """Pull the answer, and pass it on."""
        number = done = 0
        size: int | None = None
        while size is None or done < size:
            while "later" in reply:
                reply = self.insist({"pull": number})
            total, data = reply.get("size"), reply.get("data")
            if type(total) is not int or type(data) is not bytes or not 0 <= total <= LARGEST:
                raise Failed("its relay gave a reply that is none")
            if size is None:
                size = total
                self.line.send_size(size, self.until)
            if total != size or len(data) != min(self.pace.piece, size - done):
                raise Failed("its relay gave a piece of another length than agreed on")
            for start in range(0, len(data), CHUNK):
                self.line.send_chunk(memoryview(data)[start : start + CHUNK], self.until)
            done += len(data)
            number += 1
            if done < size:
                reply = self.insist({"pull": number})

    def insist(self, request: Request) -> Reply:
        """The reply to a request, which is repeated if it was lost."""
        for _ in range(self.pace.tries):
            reply = self.once(request)
            if self.complete and self.line.waiting(0):
                raise Broken("the coordinator has given the call up")
            if reply:
                return reply
        raise Failed("its relay does not answer")

    def once(self, request: Request) -> Reply:
        remaining = left(self.until)
        if not remaining:
            raise Broken("the deadline has passed")
        wait = min(self.pace.wait, remaining)
        request = {"call": self.name, "seconds": remaining, "wait": wait, **request}
        reply = self.ask(self.site, request, min(wait + self.pace.grace, remaining))
        if reply is None:
            return {}
        if "failed" in reply:
            raise Failed(str(reply["failed"]))
        return reply or {"taken": True}

    def drop(self) -> None:
        """Let the relay forget the call. Nothing is lost if this does not arrive: calls end at their deadline."""
        with suppress(Failed):
            self.ask(self.site, {"call": self.name, "drop": True}, 0.0)
