"""NVFlare on this machine: an environment of its own, and a daemon that is kept running.

The environment has NVFlare and the few modules of undrift that its processes run (``CARRIED``): no torch, no core, no
algorithms. So the engine can be upgraded or thrown away without touching what trains. Needs no NVFlare where it is
imported.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from undrift.core.errors import InvalidInput
from undrift.deploy import kits

VERSIONS = "nvflare>=2.9,<2.10"  # tried: 2.9.0
CARRIED = ("__init__", "wire", "pipe", "relay", "bridge", "nvflare", "admin", "flower")
PACKAGE = '"""Of undrift, what the processes of an engine run."""\n'  # undrift's own would import what is not carried

_JOB = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # NVFlare names a job's folder so

logger = logging.getLogger(__name__)


def place() -> Path:
    """Where the engine's environment is: ``UNDRIFT_ENGINE``, or else a folder in the user's home."""
    named = os.environ.get("UNDRIFT_ENGINE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "undrift" / "engine"


def install(engine: Path) -> None:
    """Make the engine's environment, or bring an old one up to date. Needs the network, or a pip that needs none."""
    steps = [
        [sys.executable, "-m", "venv", str(engine)],
        [str(engine / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", VERSIONS],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            raise InvalidInput(f"the engine could not be installed in {engine}: {done.stderr.strip()[-500:]}")
    seed(engine)


def seed(engine: Path) -> None:
    """Copy what the engine's processes run into its environment."""
    target = _home(engine)
    fresh = target.with_name(f".undrift-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    (fresh / "deploy").mkdir(parents=True)
    for path, content in _carried().items():
        (fresh / path).write_bytes(content)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)


def check(engine: Path) -> None:
    """``InvalidInput`` if there is no engine at that place, or one of another undrift."""
    if not (engine / "bin" / "nvflare").exists():
        raise InvalidInput(f"no engine at {engine}: install it, or let UNDRIFT_ENGINE name the folder it is in")
    home = _home(engine)
    if any(not (home / path).exists() or (home / path).read_bytes() != mine for path, mine in _carried().items()):
        raise InvalidInput(f"the engine at {engine} belongs to another version of undrift: install it again")


def environment(engine: Path) -> dict[str, str]:
    """The environment variables of the engine's processes."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PATH": f"{engine / 'bin'}{os.pathsep}{kept.get('PATH', '')}", "PYTHONUNBUFFERED": "1"}


class Daemon:
    """The engine's daemon of a kit, started again whenever it ends. Use as a context.

    Its output goes to ``engine.log`` in the kit's folder. ``kit`` is a site's kit, or the coordinator's.
    """

    PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds before a daemon that ended early is started again
    EARLY = 60.0  # seconds

    def __init__(self, kit: Path, engine: Path) -> None:
        check(engine)
        self.coordinator = kits.about(kit)["role"] == "coordinator"
        self.kit = kit.resolve()
        self.folder = self.kit / "server" if self.coordinator else self.kit
        self.engine = engine
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = _lock(self.kit)
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Daemon:
        self._keeper.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def process(self) -> int | None:
        """The number of the daemon's process, while it runs."""
        running = self._process
        return running.pid if running is not None and running.poll() is None else None

    def stop(self) -> None:
        """End the daemon and its jobs."""
        self._stopped.set()
        self._end_all()
        self._keeper.join()
        self._end_all()
        self._lock.close()

    def _keep(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            self._end_all()  # what a daemon, or a keeper, that was killed has left behind
            self._clear()
            began = time.monotonic()
            with private(self.kit / "engine.log") as log:
                self._process = subprocess.Popen(
                    ["bash", str(self.folder / "startup" / "sub_start.sh"), "--once"],
                    cwd=self.folder,
                    env=environment(self.engine),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    umask=0o077,
                    start_new_session=True,  # Ctrl-C is for us; we end it in order
                )
            code = self._process.wait()
            failures = failures + 1 if time.monotonic() - began < self.EARLY else 0
            if not self._stopped.is_set():
                logger.warning("the engine of %s ended (exit code %s) and is started again", self.kit, code)
                self._stopped.wait(self.PAUSES[min(failures, len(self.PAUSES) - 1)])

    def _clear(self) -> None:
        """The engine holds no state: what jobs of an earlier daemon left behind only confuses."""
        for path in self.folder.iterdir():
            if path.is_dir() and _JOB.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        if self.coordinator:
            shutil.rmtree(self.folder / "store", ignore_errors=True)
            kits.settle(self.kit)

    def _end_all(self) -> None:
        for process in processes(self.folder):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)  # it has nothing to save


def private(path: Path) -> IO[bytes]:
    """A file to append to, for its owner alone."""
    return open(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def _lock(kit: Path) -> IO[bytes]:
    """What only one keeper of a kit can hold; it is let go of when the keeper ends, in whatever way."""
    try:
        import fcntl
    except ImportError:
        raise InvalidInput("a deployment needs Linux: this system has no locks that end with their process") from None
    lock = private(kit / "engine.lock")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise InvalidInput(f"the engine of {kit} is running already") from None
    return lock


def is_running(kit: Path) -> bool:
    """Whether some process keeps the engine of a kit running."""
    try:
        _lock(kit).close()
    except InvalidInput:
        return True
    return False


def processes(folder: Path) -> list[int]:
    """The engine's processes that work in a kit's folder: the daemon, and its jobs in sessions of their own."""
    name = os.fsencode(folder.resolve())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if name in words and any(word.startswith(b"nvflare.") for word in words):
                found.append(int(entry.name))
    return found


def _home(engine: Path) -> Path:
    found = sorted(engine.glob("lib/python3.*/site-packages"))
    if not found:
        raise InvalidInput(f"no engine at {engine}: install it, or let UNDRIFT_ENGINE name the folder it is in")
    return found[-1] / "undrift"


def _carried() -> dict[str, bytes]:
    """The files of the engine's copy of undrift."""
    deploy = Path(__file__).parent
    return {"__init__.py": PACKAGE.encode(), **{f"deploy/{n}.py": (deploy / f"{n}.py").read_bytes() for n in CARRIED}}
