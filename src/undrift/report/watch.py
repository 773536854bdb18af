"""``undrift watch``: the report of a ledger that is being written, served to browsers on this machine.

Reads and never writes: only GET is answered. Who is not on this machine needs a token. Pages ask for news once a second
rather than hold a connection, since a browser opens only a few to one server.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import ipaddress
import json
import socket
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from undrift.analysis.selection import selected
from undrift.core.errors import InvalidInput
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.report.content import Reader, explained, nothing
from undrift.report.page import page, policy

LOOK = 0.4  # seconds between looks at the ledger
AGAIN = 5.0  # and at the latest: that a process has died does not change the ledger
SHORTEST_TOKEN = 12
CONNECTIONS = 128  # at the same time; one more is told to come back
LIFE = 60.0  # seconds that a connection may last in all, however slowly it speaks
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Follower:
    """The latest content of a ledger, worked out once for all who ask."""

    def __init__(self, path: Path, names: Sequence[str], target: float | None = None) -> None:
        self.path, self._names, self._target = path, names, target
        if names:
            with Ledger(path) as ledger:
                selected(ledger, names)  # a name that means nothing is said at once
        self._latest: tuple[str, bytes] = ("", b"")
        self._page: tuple[str, bytes] = ("", b"")
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def latest(self) -> tuple[str, bytes]:
        """The version and the compressed JSON."""
        with self._lock:
            return self._latest

    def page(self) -> bytes:
        """The compressed page with the latest content in it."""
        version, packed = self.latest()
        if self._page[0] != version:
            text = page(json.loads(gzip.decompress(packed)), live=version)
            self._page = version, gzip.compress(text.encode(), 3)
        return self._page[1]

    def _follow(self) -> None:
        """Look again and again. Whatever goes wrong is said on the page, and the next look may go well."""
        while not self._stop.is_set():
            try:
                self._look()
            except Exception as error:
                self._fail(error)
                self._stop.wait(LOOK)

    def _look(self) -> None:
        """Follow the ledger for as long as it can be read."""
        with (
            closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as news,
            Ledger(self.path) as ledger,
        ):
            reader, seen, looked = Reader(ledger, forgiving=True), -1, 0.0
            while not self._stop.is_set():
                (version,) = news.execute("PRAGMA data_version").fetchone()
                began = time.monotonic()
                if version != seen or began - looked > AGAIN:
                    seen, looked = version, began
                    with ledger.reading():
                        values = reader.content(self._runs(ledger), target=self._target, coarse=True)
                    self._update(values)
                self._stop.wait(max(LOOK, time.monotonic() - began))

    def _runs(self, ledger: Ledger) -> list[Run]:
        return selected(ledger, self._names) if ledger.runs() else []

    def _fail(self, error: Exception) -> None:
        """The last content that was read, with what went wrong since."""
        known = self.latest()[1]
        values = json.loads(gzip.decompress(known)) if known else nothing(self.path)
        self._update(values | {"trouble": f"the ledger could not be read: {explained(error)}; trying again"})

    def _update(self, values: dict[str, Any]) -> None:
        text = json.dumps(values, separators=(",", ":"), allow_nan=False)
        version = hashlib.sha256(text.replace(values["made"], "").encode()).hexdigest()[:16]
        if version != self._latest[0]:
            packed = gzip.compress(text.encode(), 3)
            with self._lock:
                self._latest = version, packed
        self._ready.set()


class Server(ThreadingHTTPServer):
    """The server of one ledger."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, follower: Follower, host: str, port: int, token: str | None) -> None:
        self.follower, self.token = follower, token
        self.began: dict[Any, float] = {}  # open connections
        self.local = is_local(host)
        if not self.local and not token:
            raise InvalidInput(f"{host} is not this machine alone: give a token that readers must have")
        if token is not None and len(token) < SHORTEST_TOKEN:
            raise InvalidInput(f"the token must have at least {SHORTEST_TOKEN} characters, so that it is not guessed")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise InvalidInput(f"{host}:{port} cannot be listened on: {getattr(error, 'strerror', error)}") from None

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/" + (f"?token={self.token}" if self.token else "")

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self.began) >= CONNECTIONS:
            with suppress(OSError):
                request.sendall(BUSY)
            self.shutdown_request(request)
            return
        self.began[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.began.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections that have lasted too long: a shut socket wakes the thread that waits for it."""
        for request, began in list(self.began.items()):
            if time.monotonic() - began > LIFE:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who closes the page in the middle of an answer is no error of ours."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and its data."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "undrift"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = parse_qs(asked.query)
        if not self._is_allowed(query):
            self._answer(HTTPStatus.FORBIDDEN, b"this page needs the token that undrift watch printed\n", "text/plain")
        elif asked.path == "/":
            self._answer(HTTPStatus.OK, self.server.follower.page(), "text/html; charset=utf-8", packed=True)
        elif asked.path == "/data.json":
            version, packed = self.server.follower.latest()
            if query.get("version") == [version]:
                self._answer(HTTPStatus.NO_CONTENT, b"", "application/json", version=version)
            else:
                self._answer(HTTPStatus.OK, packed, "application/json", packed=True, version=version)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such page\n", "text/plain")

    def _is_allowed(self, query: dict[str, list[str]]) -> bool:
        if self.server.token:
            header = self.headers.get("Authorization", "").removeprefix("Bearer ")
            given = query.get("token", [header])[0]
            return hmac.compare_digest(given.encode(), self.server.token.encode())
        # Without a token only this machine may ask, and only by its own name: a foreign site whose name was made to
        # point here must not read the page through the user's browser.
        return is_local(urlsplit(f"//{self.headers.get('Host', '')}").hostname or "")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, *, packed: bool = False, version: str = "") -> None:
        if packed and "gzip" not in self.headers.get("Accept-Encoding", ""):
            body, packed = gzip.decompress(body), False
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if packed:
            self.send_header("Content-Encoding", "gzip")
        if version:
            self.send_header("X-Version", version)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", f"{policy()}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if time.monotonic() - self.server.began.get(self.connection, 0.0) > LIFE / 2:
            self.send_header("Connection", "close")  # in good time, so that nobody is cut off in the middle
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing on the terminal for every request."""


def is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
