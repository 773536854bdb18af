"""``watch``: real requests to a real server about a ledger that is being written."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ledgers import add_run, entry
from undrift.core.errors import InvalidInput
from undrift.ledger.store import Ledger
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
        assert ask(server, "/data.json", Host=f"localhost:{server.server_address[1]}")[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.2", "::", "example.org"])
def test_other_machines_need_a_token(book: Ledger, host: str) -> None:
    assert not is_local(host)
    with pytest.raises(InvalidInput, match="--token"):
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
