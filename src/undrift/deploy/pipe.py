"""The seam between undrift's protocol and an engine: bytes to sites, bytes or a reason back.

    call({site: bytes}, seconds) -> iterator of (site, bytes | Failure)

is all that the coordinator knows of a network, and ``answer(bytes) -> bytes`` all that a site knows of it. An engine's
job process, the *bridge*, stands beside the coordinator; its process at a site, the *relay*, beside the site process:

    coordinator -- Calls -- Unix socket -- bridge == engine == relay -- Unix socket -- Answers -- site process

``Calls`` and ``Answers`` listen, since they live long; bridge and relay connect, since they come and go with a job.
The socket is ``socket_file(kit)`` at both ends. Knows no engine, no tensors, no rounds: standard library alone.
"""

from __future__ import annotations

import logging
import queue
import secrets
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from undrift.deploy.wire import LARGEST, Broken, Closed, Failed, Late, Wire, at, check_peer, left, listen

PATIENCE = 10.0  # seconds for what needs no network and no work: a note, a connection on this machine
READY = ("ready", "no site process")  # what a relay says of itself
CROWD = 32  # messages that a site takes at once; more are refused

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why a site gave no answer, as the rest of a sentence: "site1: no answer within 30 s"."""

    reason: str


class Pipe(Protocol):
    """What an engine gives to the coordinator."""

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        """Send each site its message; give the answers as they come.

        Every site is given exactly once, at the latest when the seconds have passed. An answer is the site's bytes,
        whole and unchanged; everything else (refused, lost, late, engine gone) is a ``Failure``, and nothing is
        raised. Nothing is sent before the first ``next``. A message is given to a site once or not at all, except
        that a caller who repeats it must expect that both were received. Closing the iterator abandons what is open.
        Calls may overlap.
        """
        ...


class Direct:
    """A pipe that is a function call in this process, one site after the other: for tests and rehearsals."""

    def __init__(self, sites: Mapping[str, Callable[[bytes], bytes]]) -> None:
        self.sites = sites

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        for site, message in messages.items():
            if site not in self.sites:
                yield site, Failure("is not in this federation")
                continue
            try:
                yield site, self.sites[site](message)
            except Failed as refusal:
                yield site, Failure(str(refusal))


def socket_file(kit: Path) -> Path:
    """Where the process that a kit belongs to listens: the coordinator in the server's kit, a site in its own."""
    return Path(kit) / "pipe" / "undrift.sock"


class _Pending:
    """A message on its way: where its answer goes, and the connection that it travels on, once there is one."""

    def __init__(self, site: str, message: bytes, until: float, done: queue.SimpleQueue[tuple[str, bytes | Failure]]):
        self.site, self.message, self.until, self.done = site, message, until, done
        self.wire: Wire | None = None


class Calls:
    """The coordinator's end. Use as a context; ``token`` is what the bridge of the present job must show.

    ``sent`` and ``received`` count the bytes on the socket by site.
    """

    def __init__(self, path: Path, largest: int = LARGEST) -> None:
        self.largest = largest
        self.sent: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.token = secrets.token_hex(16)
        self._bridge: Wire | None = None
        self._pending: dict[str, _Pending] = {}
        self._change = threading.Condition()  # guards the four above
        self._closed = False
        self._path = path
        self._listener = listen(path)
        threading.Thread(target=_accept, args=(self._listener, self._welcome), daemon=True).start()

    def __enter__(self) -> Calls:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; the bridge's job ends by itself."""
        self._closed = True
        _stop(self._listener, self._path)
        self.hang_up("the coordinator has stopped")

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes on the socket so far, to and from all sites."""
        with self._change:
            return self.sent.total(), self.received.total()

    @property
    def connected(self) -> bool:
        """Whether a bridge is there."""
        return self._bridge is not None

    def await_bridge(self, seconds: float) -> bool:
        """Whether a bridge is there, or comes within so many seconds."""
        with self._change:
            return self._change.wait_for(lambda: self._bridge is not None, seconds)

    def hang_up(self, reason: str = "the engine's job was ended") -> None:
        """Let the bridge go, which ends its job; what is open fails, and only a bridge with a new token is let in."""
        with self._change:
            self.token = secrets.token_hex(16)
            bridge = self._bridge
        if bridge is not None:
            self._lost(bridge, reason)

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        """As ``Pipe.call`` says."""
        return self._call(messages, seconds, {})

    def probe(self, sites: list[str], seconds: float) -> dict[str, str]:
        """How far each site can be reached: ``ready``, ``no site process``, or the reason why not even its relay."""
        answers = self._call(dict.fromkeys(sites, b""), seconds, {"probe": True})
        return {site: a.reason if isinstance(a, Failure) else a.decode("utf-8", "replace") for site, a in answers}

    def _call(
        self, messages: Mapping[str, bytes], seconds: float, extra: Mapping[str, bool]
    ) -> Iterator[tuple[str, bytes | Failure]]:
        until = at(seconds)
        done: queue.SimpleQueue[tuple[str, bytes | Failure]] = queue.SimpleQueue()
        calls = {secrets.token_hex(16): _Pending(s, m, until, done) for s, m in messages.items()}
        try:
            for name, pending in calls.items():
                self._send_out(name, pending, dict(extra))
            open_sites = set(messages)
            while open_sites:
                try:
                    site, answer = done.get(timeout=left(until))
                except queue.Empty:
                    break
                open_sites.discard(site)
                yield site, answer
            for site in [s for s in messages if s in open_sites]:
                yield site, Failure(f"no answer within {seconds:g} s")
        finally:
            for name in calls:
                self._drop(name)

    def _send_out(self, name: str, pending: _Pending, note: dict[str, object]) -> None:
        """Ask the bridge to open a line for a message."""
        with self._change:
            bridge = self._bridge
            if bridge is None:
                pending.done.put((pending.site, Failure("the engine's job is not running")))
                return
            self._pending[name] = pending
            note |= {"call": name, "site": pending.site, "seconds": left(pending.until)}
            try:
                bridge.send_note(note, at(PATIENCE))
                return
            except Broken:
                pass
        self._lost(bridge, "the engine's job has ended")

    def _drop(self, name: str) -> None:
        with self._change:
            pending = self._pending.pop(name, None)
        if pending is not None and pending.wire is not None:
            pending.wire.close()

    def _welcome(self, wire: Wire) -> None:
        """A connection: a bridge that stays, or the line of one call."""
        note = wire.receive_note(at(PATIENCE))
        if "token" in note:
            self._attend_bridge(wire, note["token"])
        elif isinstance(note.get("call"), str):
            self._attend_line(wire, note["call"])
        else:
            raise Broken("a note that is of no use here")

    def _attend_bridge(self, wire: Wire, token: object) -> None:
        with self._change:
            if self._closed or self._bridge is not None or token != self.token:
                raise Broken("this bridge belongs to another job")
            self._bridge = wire
            self._change.notify_all()
        while not wire.waiting(60.0):
            pass  # a bridge says nothing after its greeting: what can be read is its end
        self._lost(wire, "the engine's job has ended")

    def _lost(self, bridge: Wire, reason: str) -> None:
        with self._change:
            if self._bridge is not bridge:
                return
            self._bridge = None
            open_calls, self._pending = self._pending, {}
            self._change.notify_all()
        bridge.close()
        for pending in open_calls.values():
            pending.done.put((pending.site, Failure(reason)))
            if pending.wire is not None:
                pending.wire.close()

    def _attend_line(self, wire: Wire, name: str) -> None:
        with self._change:
            pending = self._pending.get(name)
            if pending is None or pending.wire is not None:
                raise Broken("a line for a call that is not open")
            pending.wire = wire
        answer: bytes | Failure | None
        try:
            wire.send_message(pending.message, pending.until)
            answer = wire.receive_message(pending.until, self.largest)
        except Failed as failure:
            answer = Failure(str(failure))
        except Late:
            answer = None  # who waits for it says so, in the same words for every site
        except Broken as error:
            answer = Failure(f"lost on its way: {error}")
        with self._change:
            mine = self._pending.pop(name, None)
            self.sent[pending.site] += wire.sent
            self.received[pending.site] += wire.received
        if mine is not None and answer is not None:
            pending.done.put((pending.site, answer))


class Answers:
    """A site's end: every message is given to ``answer``, and what it returns is sent back. Use as a context.

    ``answer`` may be called by several threads at once. It refuses by raising ``Failed`` with a sentence, which is
    told to the coordinator; of any other error only its kind is told, and the rest goes to this site's log alone.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes], largest: int = LARGEST) -> None:
        self.answer, self.largest = answer, largest
        self._places = threading.BoundedSemaphore(CROWD)
        self._path = path
        self._listener = listen(path)
        threading.Thread(target=_accept, args=(self._listener, self._attend), daemon=True).start()

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening; answers under way are finished."""
        _stop(self._listener, self._path)

    def _attend(self, wire: Wire) -> None:
        note = wire.receive_note(at(PATIENCE))
        seconds = note.get("seconds")
        if not isinstance(seconds, int | float) or not 0 < seconds < 1e7:
            raise Broken("a call without a deadline")
        until = at(seconds)
        if not self._places.acquire(blocking=False):
            wire.send_failure(f"is busy: it has {CROWD} messages to answer", until)
            return
        try:
            self._answer(wire, until)
        finally:
            self._places.release()

    def _answer(self, wire: Wire, until: float) -> None:
        try:
            reply = self.answer(wire.receive_message(until, self.largest))
        except Failed as refusal:
            wire.send_failure(str(refusal), until)
        except Late:
            raise
        except Broken as error:
            wire.send_failure(f"cannot read the message: {error}", until)
        except Exception as error:
            logger.exception("a message could not be answered")
            wire.send_failure(f"had an error of its own ({type(error).__name__}); its log has more", until)
        else:
            wire.send_message(reply, until)


def _accept(listener: socket.socket, attend: Callable[[Wire], None]) -> None:
    """Take connections of this user's processes, each in a thread of its own, until the listener is closed."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_attend, args=(connection, attend), daemon=True).start()


def _attend(connection: socket.socket, attend: Callable[[Wire], None]) -> None:
    with Wire(connection) as wire:
        try:
            check_peer(connection)
            attend(wire)
        except Closed:
            pass  # somebody looked whether we are there
        except Broken as error:
            logger.warning("a connection was ended: %s", error)


def _stop(listener: socket.socket, path: Path) -> None:
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone does not
    listener.close()
    path.unlink(missing_ok=True)


class Bridged:
    """A ``Pipe`` over an engine's job, whose bridge calls at a socket. Who inherits says how the job is begun; use as a
    context."""

    def __init__(self, sites: Sequence[str], socket: Path) -> None:
        self.sites = list(sites)
        self.calls = Calls(socket)
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        self.calls.close()

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        """As ``Pipe.call`` says."""
        return self.calls.call(messages, seconds)

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes on the socket so far, to and from all sites."""
        return self.calls.traffic
