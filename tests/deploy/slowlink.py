"""Slow links on this machine: network namespaces, joined by TUN devices whose packets a thread delays, paces and drops.

For kernels without ``netem``. A link has two ends: one in the namespace of the server, one in that of its site; what
goes in at one end comes out of the other. Needs root, ``ip`` and ``/dev/net/tun``. Whatever was made is removed.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import random
import select
import shutil
import struct
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
LARGEST = 65536  # bytes of a packet
SERVER = "10.78.0.1"  # the server's address, on which all sites reach it


def obstacle() -> str:
    """Why links cannot be made here; nothing if they can."""
    if os.geteuid():
        return "network namespaces need root"
    if not Path("/dev/net/tun").exists() or shutil.which("ip") is None:
        return "network namespaces need ip (iproute2) and /dev/net/tun"
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    return "" if done.returncode == 0 else f"no network namespaces here: {done.stderr.strip()}"


@dataclass(frozen=True)
class Quality:
    """Of a link, in each direction."""

    delay: float = 0.020  # seconds
    rate: float = 50e6  # bits a second
    loss: float = 0.01  # share of packets
    queue: float = 0.250  # seconds that a packet may wait for its turn; then it is dropped


@dataclass
class _Way:
    """One direction of a link."""

    out: int  # the device that packets leave by
    free: float = 0.0  # when the link has sent what it has so far
    carried: int = 0
    lost: int = 0
    crowded: int = 0  # dropped because the queue was full


@dataclass
class SlowLinks:
    """A namespace for a server and one for each site. Use as a context; ``inside`` says how to run a program there."""

    sites: Sequence[str]
    host: str  # the name under which the sites find the server
    quality: Quality = field(default_factory=Quality)
    seed: int = 1

    def __post_init__(self) -> None:
        self._mark = f"udr{os.getpid()}"
        self._ways: dict[int, _Way] = {}
        self._names: list[str] = []
        self._stop, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def inside(self, name: str) -> list[str]:
        """Words before a command that is to run in the namespace of a site, or of the server (its host)."""
        return ["ip", "netns", "exec", self._space(name)]

    @property
    def packets(self) -> tuple[int, int, int]:
        """Carried, lost by chance, and dropped from full queues."""
        ways = self._ways.values()
        return sum(w.carried for w in ways), sum(w.lost for w in ways), sum(w.crowded for w in ways)

    def __enter__(self) -> SlowLinks:
        try:
            self._add(self.host)
            self._ip(self.host, "addr", "add", f"{SERVER}/32", "dev", "lo")
            for number, site in enumerate(self.sites, 1):
                self._add(site)
                self._join(number, site)
        except BaseException:
            self._remove()
            raise
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        os.write(self._wake, b"x")
        self._thread.join()
        self._remove()

    def _space(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _add(self, name: str) -> None:
        space = self._space(name)
        subprocess.run(["ip", "netns", "add", space], check=True)
        self._names.append(space)
        hosts = Path("/etc/netns") / space  # what `ip netns exec` shows as /etc/hosts there
        hosts.mkdir(parents=True)
        (hosts / "hosts").write_text(f"127.0.0.1 localhost\n{SERVER} {self.host}\n", encoding="utf-8")
        self._ip(name, "link", "set", "lo", "up")

    def _ip(self, name: str, *words: str) -> None:
        subprocess.run(["ip", "-n", self._space(name), *words], check=True)

    def _join(self, number: int, site: str) -> None:
        """A link between the server and a site, with a device at each end."""
        here, there = f"t{number}", f"u{number}"
        ends = self._device(self.host, here), self._device(site, there)
        for mine, other in (ends, ends[::-1]):
            self._ways[mine] = _Way(out=other)
        for name, device, last in ((self.host, here, 1), (site, there, 2)):
            self._ip(name, "addr", "add", f"10.78.{number}.{last}/30", "dev", device)
            self._ip(name, "link", "set", device, "up")
        self._ip(site, "route", "add", f"{SERVER}/32", "dev", there)

    def _device(self, name: str, device: str) -> int:
        """Open a TUN device inside a namespace; it stays there when this thread has left it."""
        with open("/proc/self/ns/net", "rb") as home, open(f"/run/netns/{self._space(name)}", "rb") as space:
            _enter(space.fileno())
            try:
                made = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
                fcntl.ioctl(made, TUNSETIFF, struct.pack("16sH14x", device.encode(), IFF_TUN | IFF_NO_PI))
            finally:
                _enter(home.fileno())
        return made

    def _carry(self) -> None:
        """Packets from end to end, each when it is due."""
        dice, waiting, number = random.Random(self.seed), list[tuple[float, int, int, bytes]](), 0
        poll = select.epoll()
        poll.register(self._stop, select.EPOLLIN)
        for end in self._ways:
            poll.register(end, select.EPOLLIN)
        while True:
            now = time.monotonic()
            pause = max(0.0, waiting[0][0] - now) if waiting else 1.0
            for end, _ in poll.poll(pause):
                if end == self._stop:
                    return
                with suppress(BlockingIOError):
                    while True:
                        packet, way = os.read(end, LARGEST), self._ways[end]
                        due = self._due(way, len(packet), dice)
                        if due is not None:
                            number += 1
                            heapq.heappush(waiting, (due, number, way.out, packet))
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, _, out, packet = heapq.heappop(waiting)
                with suppress(OSError):  # a device whose queue is full drops, as a link does
                    os.write(out, packet)

    def _due(self, way: _Way, length: int, dice: random.Random) -> float | None:
        """When a packet comes out at the other end; None if it does not."""
        now, quality = time.monotonic(), self.quality
        if dice.random() < quality.loss:
            way.lost += 1
            return None
        if way.free - now > quality.queue:
            way.crowded += 1
            return None
        way.free = max(way.free, now) + 8 * length / quality.rate
        way.carried += 1
        return way.free + quality.delay

    def _remove(self) -> None:
        for end in self._ways:
            os.close(end)
        for space in self._names:
            subprocess.run(["ip", "netns", "delete", space], check=False)
            shutil.rmtree(Path("/etc/netns") / space, ignore_errors=True)
        with suppress(OSError):
            Path("/etc/netns").rmdir()  # unless there is something of others in it
        os.close(self._stop)
        os.close(self._wake)


def _enter(namespace: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a namespace could not be entered")
