"""The emulated link: it delays, paces and drops as it says, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from slowlink import SERVER, Quality, SlowLinks, obstacle

pytestmark = [pytest.mark.deploy, pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "-")]

SERVE = """
import socket
with socket.create_server(("10.78.0.1", 5000)) as server:
    print("ready", flush=True)
    line, _ = server.accept()
    while line.recv(65536):
        pass
    line.sendall(b"x")
"""
# The seconds of a connection, and of so many bytes until the other end has them all.
SEND = """
import json, socket, time
began = time.monotonic()
line = socket.create_connection(("center", 5000))
connected = time.monotonic() - began
line.sendall(bytes(500_000))
line.shutdown(socket.SHUT_WR)
line.recv(1)
print(json.dumps([connected, time.monotonic() - began]))
"""


def test_a_link_is_as_slow_as_it_says_and_nothing_is_left(tmp_path: Path) -> None:
    with SlowLinks(["near", "far"], "center", Quality(delay=0.02, rate=10e6, loss=0.05)) as links:
        with subprocess.Popen(
            [*links.inside("center"), sys.executable, "-c", SERVE], stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            words = [*links.inside("far"), sys.executable, "-c", SEND]
            done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        connected, all_there = json.loads(done.stdout)
        assert connected >= 0.04  # there and back
        assert all_there >= 0.04 + 500_000 * 8 / 10e6  # a lower bound: a busy machine only adds
        carried, lost, _ = links.packets
        assert carried > 500_000 / 1500
        assert 0 < lost < carried
        spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        assert spaces.count(links._mark) == 3
    spaces = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert links._mark not in spaces
    assert not list(Path("/etc").glob(f"netns/{links._mark}*"))
    assert SERVER not in subprocess.run(["ip", "addr"], capture_output=True, text=True).stdout
