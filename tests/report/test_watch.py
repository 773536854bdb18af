"""``watch``: real requests to a real server about a ledger that is being written."""

from __future__ import annotations

import json
import socket
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgers import add_run, entry
from undrift.core.errors import InvalidInput
from undrift.ledger.store import Ledger
from undrift.report import watch
from undrift.report.content import content
from undrift.report.watch import Follower, Server, is_local


@contextmanager
def served(path: Path, names: tuple[str, ...] = (), token: str | None = None) -> Iterator[Server]:
    follower = Follower(path, names)
    with Server(follower, "127.0.0.1", 0, token) as server:
        follower.start()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            follower.stop()


def ask(server: Server, path: str, **headers: str) -> tuple[int, bytes, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_address[1]}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        add_run(ledger, "fedavg", 1, [0.2, 0.5])
        yield ledger


def follow(server: Server, version: str) -> tuple[str, Any]:
    """Ask until there is something newer, as the page does."""
    waiting = threading.Event()
    for _ in range(200):
        status, body, headers = ask(server, f"/data.json?version={version}")
        if status == 200:
            return headers["X-Version"], json.loads(body)
        assert status == 204
        waiting.wait(0.05)
    raise AssertionError("nothing new came")


def test_a_new_round_and_a_new_run_appear(book: Ledger) -> None:
    run = add_run(book, "fedtrip", 1, [0.3], status="running", planned=5)
    with book.holding(run), served(book.path, ("*",)) as server:
        status, body, _ = ask(server, "/")
        assert status == 200
        assert b"data-live=" in body
        version, data = follow(server, "")
        assert [len(r["rounds"]) for r in data["runs"]] == [2, 1]
        assert data["runs"][1]["status"] == "running"
        assert ask(server, f"/data.json?version={version}")[0] == 204
        book.record(run, entry(2, 0.6))
        book.flush()
        version, data = follow(server, version)
        assert [len(r["rounds"]) for r in data["runs"]] == [2, 2]
        add_run(book, "scaffold", 1, [0.4])
        while len(data["runs"]) < 3:
            version, data = follow(server, version)
        assert data["runs"][2]["name"] == "scaffold-toy-seed1"


def test_without_a_name_the_latest_run_is_followed(book: Ledger) -> None:
    with served(book.path) as server:
        version, data = follow(server, "")
        assert [run["name"] for run in data["runs"]] == ["fedavg-toy-seed1"]
        add_run(book, "fedtrip", 1, [0.3])
        while [run["name"] for run in data["runs"]] != ["fedtrip-toy-seed1"]:
            version, data = follow(server, version)


def test_a_run_that_cannot_be_read_is_said_and_tried_again(book: Ledger) -> None:
    add_run(book, "fedtrip", 1, [0.3, 0.4])
    run = book.run("fedavg-toy-seed1")
    with closing(sqlite3.connect(book.path)) as db, served(book.path, ("*",)) as server:
        (good,) = db.execute("SELECT drift FROM rounds WHERE run = ? AND round = 2", (run.id,)).fetchone()
        version, data = follow(server, "")
        assert not data["trouble"]
        for text, names, trouble in (
            ("{", ["fedtrip-toy-seed1"], "fedavg-toy-seed1 could not be read"),
            (good, ["fedavg-toy-seed1", "fedtrip-toy-seed1"], ""),
        ):
            db.execute("UPDATE rounds SET drift = ? WHERE run = ? AND round = 2", (text, run.id))
            db.commit()
            book.set_status(run, "finished", f"damage: {text}")
            while [r["name"] for r in data["runs"]] != names:
                version, data = follow(server, version)
            assert trouble in data["trouble"]
            assert bool(trouble) == bool(data["trouble"])


def test_a_ledger_that_cannot_be_read_is_said_and_the_last_of_it_stays(book: Ledger) -> None:
    book.close()
    text = book.path.read_bytes()
    with served(book.path) as server:
        version, data = follow(server, "")
        book.path.write_bytes(b"this is no ledger" * 1000)
        while not data["trouble"]:
            version, data = follow(server, version)
        assert "could not be read" in data["trouble"]
        assert [r["name"] for r in data["runs"]] == ["fedavg-toy-seed1"]
        book.path.write_bytes(text)
        while data["trouble"]:
            version, data = follow(server, version)
        assert [r["name"] for r in data["runs"]] == ["fedavg-toy-seed1"]


def test_reading_while_others_write_never_fails(book: Ledger, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> int:
        seeds = 1
        with Ledger(book.path) as mine:
            while not stop.is_set():
                seeds += 1
                add_run(mine, "fedavg", seeds, [0.1, 0.2, 0.3])
        return seeds

    with ThreadPoolExecutor(2) as pool, Ledger(book.path) as reader:
        writers = [pool.submit(write), pool.submit(write)]
        try:
            for _ in range(15):
                with reader.reading():
                    runs = reader.runs()
                    found = content(reader, runs)
                assert [len(run["rounds"]) for run in found["runs"]] == [run.rounds for run in runs]
        finally:
            stop.set()
        assert sum(writer.result() for writer in writers) > 2


def test_a_connection_ends_and_there_are_only_so_many(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "CONNECTIONS", 2)
    monkeypatch.setattr(watch, "LIFE", 2.0)
    with served(book.path) as server, ExitStack() as open_:
        address = ("127.0.0.1", int(server.server_address[1]))
        slow = [open_.enter_context(socket.create_connection(address, timeout=20)) for _ in range(2)]
        for connection in slow:
            connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")  # and no more
        with socket.create_connection(address, timeout=20) as third:
            assert third.recv(100).startswith(b"HTTP/1.1 503")
        assert [connection.recv(100) for connection in slow] == [b"", b""]  # ended by the server
        waiting = threading.Event()
        while (status := ask(server, "/data.json")[0]) == 503:  # their threads end after them
            waiting.wait(0.05)
        assert status == 200


def test_only_the_runs_that_were_asked_for(book: Ledger) -> None:
    add_run(book, "fedtrip", 1, [0.3])
    with served(book.path, ("fedt",)) as server:
        assert [r["name"] for r in follow(server, "")[1]["runs"]] == ["fedtrip-toy-seed1"]
    with pytest.raises(InvalidInput, match="unknown run"):
        Follower(book.path, ["nothing"])


def test_fifty_pages_at_once(book: Ledger) -> None:
    with served(book.path) as server, ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: ask(server, "/data.json")[0], range(200)))
    assert answers == [200] * 200


def test_it_only_reads(book: Ledger) -> None:
    before = book.path.read_bytes()
    with served(book.path) as server:
        for method in ("POST", "PUT", "DELETE"):
            request = urllib.request.Request(server.url, data=b"x", method=method)
            with pytest.raises(urllib.error.HTTPError) as error:
                urllib.request.urlopen(request, timeout=20)
            error.value.close()
            assert error.value.code == 501
        assert ask(server, "/../../etc/passwd")[0] == 404
        assert ask(server, "/ledger.sqlite")[0] == 404
    assert book.path.read_bytes() == before


def test_without_the_token_nothing_is_shown(book: Ledger) -> None:
    token = "a long enough token".replace(" ", "-")
    with served(book.path, token=token) as server:
        for path, headers in (
            ("/", {}),
            ("/data.json", {}),
            ("/?token=wrong", {}),
            ("/", {"Authorization": "Bearer wrong"}),
        ):
            status, body, _ = ask(server, path, **headers)
            assert status == 403
            assert b"fedavg" not in body
        assert ask(server, f"/?token={token}")[0] == 200
        assert ask(server, "/data.json", Authorization=f"Bearer {token}")[0] == 200
        assert server.url.endswith(f"?token={token}")


def test_another_site_cannot_read_it_through_a_name_that_points_here(book: Ledger) -> None:
    with served(book.path) as server:
        assert ask(server, "/data.json", Host="evil.example")[0] == 403
        for name in ("localhost", "127.0.0.1", "127.5.6.7", "[::1]"):
            assert ask(server, "/data.json", Host=f"{name}:{server.server_address[1]}")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "::", "example.org"])
def test_other_machines_need_a_token(book: Ledger, host: str) -> None:
    assert not is_local(host)
    with pytest.raises(InvalidInput, match="give a token"):
        Server(Follower(book.path, []), host, 0, None)


def test_a_port_that_is_taken_is_a_sentence(book: Ledger) -> None:
    follower = Follower(book.path, [])
    with Server(follower, "127.0.0.1", 0, None) as first, pytest.raises(InvalidInput, match="cannot be listened on"):
        Server(follower, "127.0.0.1", int(first.server_address[1]), None)


def test_headers_forbid_framing_and_foreign_scripts(book: Ledger) -> None:
    with served(book.path) as server:
        _, _, headers = ask(server, "/")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
