"""Downloads, against a real server on this machine."""

from __future__ import annotations

import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from undrift.core.errors import InvalidInput
from undrift.data import SOURCES, Dataset, fetch, load
from undrift.data.sources.base import Published
from undrift.data.sources.files import File, Release

CONTENT = np.random.default_rng(0).bytes(3_000_000)


class Server(ThreadingHTTPServer):
    files: dict[str, bytes]
    asked: list[str | None]
    stop_after: int | None = None
    ranges = True


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        content = self.server.files.get(self.path)
        span = self.headers.get("Range")
        self.server.asked.append(span)
        if content is None:
            self.send_error(404)
            return
        start = int(span.removeprefix("bytes=").rstrip("-")) if span and self.server.ranges else 0
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = self.server.stop_after
        self.wfile.write(content[start:] if stop is None else content[start : start + stop])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.files, made.asked = {"/data.bin": CONTENT}, []
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


class Example(Published):
    """A data set of one file of bytes."""

    name = "example"
    title = "example"
    release: ClassVar[Release]

    def releases(self) -> tuple[Release, ...]:
        return (self.release,)

    def read(self, root: Path, release: Release) -> Dataset:
        raw = np.frombuffer((root / release.files[0].path).read_bytes(), np.uint8)[:20]
        return Dataset.from_arrays(raw[:, None], np.arange(20) % 2, name=self.name)


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


@pytest.fixture
def example(server: Server, monkeypatch: pytest.MonkeyPatch) -> type[Example]:
    monkeypatch.setitem(SOURCES, "example", Example)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(
        Example, "release", Release("one", (File("sub/data.bin", md5(CONTENT), f"{address}/data.bin"),)), raising=False
    )
    return Example


def test_downloads_checks_and_loads(example: type[Example], tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    fetch("example", tmp_path, lambda *progress: seen.append(progress))
    assert (tmp_path / "sub/data.bin").read_bytes() == CONTENT
    assert seen[-1] == ("sub/data.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert len(load("example", tmp_path)) == 16


def test_what_is_there_is_not_downloaded_again(example: type[Example], server: Server, tmp_path: Path) -> None:
    fetch("example", tmp_path)
    fetch("example", tmp_path)
    assert len(server.asked) == 1


def test_goes_on_where_it_broke_off(example: type[Example], server: Server, tmp_path: Path) -> None:
    server.stop_after = 1_000_000
    with pytest.raises(InvalidInput, match="broke off at 1000000 of 3000000 bytes; run it again to go on"):
        fetch("example", tmp_path)
    assert not (tmp_path / "sub/data.bin").exists()
    server.stop_after = None
    fetch("example", tmp_path)
    assert server.asked == [None, "bytes=1000000-"]
    assert (tmp_path / "sub/data.bin").read_bytes() == CONTENT


def test_server_that_cannot_go_on_starts_over(example: type[Example], server: Server, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/data.bin.part").write_bytes(b"x" * 500)
    server.ranges = False
    fetch("example", tmp_path)
    assert (tmp_path / "sub/data.bin").read_bytes() == CONTENT


def test_complete_part_is_taken(example: type[Example], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/data.bin.part").write_bytes(CONTENT)
    fetch("example", tmp_path)
    assert (tmp_path / "sub/data.bin").read_bytes() == CONTENT


def test_wrong_checksum_leaves_nothing(example: type[Example], server: Server, tmp_path: Path) -> None:
    server.files["/data.bin"] = CONTENT[:-1] + b"?"
    with pytest.raises(InvalidInput, match=r"published is md5:.*: it was thrown away"):
        fetch("example", tmp_path)
    assert list((tmp_path / "sub").iterdir()) == []


def test_not_found_names_the_file_and_the_place(example: type[Example], server: Server, tmp_path: Path) -> None:
    server.files.clear()
    with pytest.raises(InvalidInput, match="answers 404; put there by hand") as caught:
        fetch("example", tmp_path)
    assert str(tmp_path / "sub/data.bin") in str(caught.value)


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_without_internet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{closed_port()}"
    files = tuple(File(f"sub/{name}", "", f"{address}/{name}") for name in ("a.gz", "b.gz"))
    monkeypatch.setitem(SOURCES, "example", Example)
    monkeypatch.setattr(Example, "release", Release("two", files), raising=False)
    with pytest.raises(InvalidInput, match="cannot be reached") as caught:
        fetch("example", tmp_path)
    for name in ("a.gz", "b.gz"):
        assert str(tmp_path / "sub" / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


class TestArchives:
    def offer(self, server: Server, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
        server.files["/all"] = content
        address = f"http://127.0.0.1:{server.server_address[1]}/all"
        release = Release("all", (File("folder/data.bin"),), (File("all.archive", md5(content), address),))
        monkeypatch.setitem(SOURCES, "example", Example)
        monkeypatch.setattr(Example, "release", release, raising=False)

    @pytest.mark.parametrize("pack", [tar_of, zip_of])
    def test_unpacked_into_place(self, server: Server, monkeypatch: Any, tmp_path: Path, pack: Any) -> None:
        self.offer(server, monkeypatch, pack({"folder/data.bin": CONTENT, "folder/readme": b"hello"}))
        fetch("example", tmp_path)
        assert (tmp_path / "folder/data.bin").read_bytes() == CONTENT
        assert sorted(p.name for p in tmp_path.iterdir()) == [".undrift", "all.archive", "folder"]

    def test_zip_in_a_zip(self, server: Server, monkeypatch: Any, tmp_path: Path) -> None:
        self.offer(server, monkeypatch, zip_of({"inner.zip": zip_of({"folder/data.bin": CONTENT})}))
        fetch("example", tmp_path)
        assert (tmp_path / "folder/data.bin").read_bytes() == CONTENT

    def test_tar_that_writes_outside_is_refused(self, server: Server, monkeypatch: Any, tmp_path: Path) -> None:
        self.offer(server, monkeypatch, tar_of({"../../escaped": b"!", "folder/data.bin": b"x"}))
        with pytest.raises(InvalidInput, match="cannot be unpacked"):
            fetch("example", tmp_path / "root")
        assert [p.name for p in tmp_path.iterdir()] == ["root"]

    def test_zip_that_writes_outside_stays_inside(self, server: Server, monkeypatch: Any, tmp_path: Path) -> None:
        self.offer(server, monkeypatch, zip_of({"../../escaped": b"!", "folder/data.bin": b"x"}))
        fetch("example", tmp_path / "root")
        assert [p.name for p in tmp_path.iterdir()] == ["root"]

    def test_archive_that_is_none(self, server: Server, monkeypatch: Any, tmp_path: Path) -> None:
        self.offer(server, monkeypatch, b"not an archive")
        with pytest.raises(InvalidInput, match=r"all\.archive: it cannot be unpacked"):
            fetch("example", tmp_path)
        assert not (tmp_path / "folder").exists()

    def test_other_archive_put_there_by_hand(self, server: Server, monkeypatch: Any, tmp_path: Path) -> None:
        self.offer(server, monkeypatch, zip_of({"folder/data.bin": CONTENT}))
        (tmp_path / "all.archive").write_bytes(zip_of({"folder/data.bin": b"something else"}))
        with pytest.raises(InvalidInput, match=r"all\.archive: its checksum is not md5:"):
            fetch("example", tmp_path)
        assert not (tmp_path / "folder").exists()

    def test_archive_put_there_by_hand(self, server: Server, monkeypatch: Any, tmp_path: Path) -> None:
        content = zip_of({"folder/data.bin": CONTENT})
        self.offer(server, monkeypatch, content)
        (tmp_path / "all.archive").write_bytes(content)
        fetch("example", tmp_path)
        assert server.asked == []
        assert (tmp_path / "folder/data.bin").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("digits", "embedded"), ("csv", "your CSV file"), ("mnst", "did you mean")]
)
def test_nothing_to_fetch(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        fetch(name, tmp_path)
