"""A ``Pipe`` over NVFlare: the coordinator submits a job that carries nothing, and rolls it when sites come and go.

NVFlare itself is in another environment: commands to its server go through ``undrift.deploy.admin``, messages through
the bridge, which is the job's process on this machine. A job is alive as long as its bridge is connected; what
NVFlare's server says of a job is not relied on, since after a restart it calls a lost one RUNNING.
"""

from __future__ import annotations

import json
import logging
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.deploy import engine as engines
from undrift.deploy import kits
from undrift.deploy.bridge import LEFT_OUT
from undrift.deploy.pipe import READY, Bridged, socket_file
from undrift.deploy.wire import at, left

PROBE = 0.7  # seconds; a request before a site's job process is up waits out its whole deadline
MENDING = 90.0  # seconds until a job that was begun must be reached

logger = logging.getLogger(__name__)


class NVFlarePipe(Bridged):
    """``call`` as in ``Pipe``, over the job that ``open`` makes sure of.

    ``kit`` is the coordinator's, whose engine's daemon must be running (``engine.Daemon``). A site that was away when
    the job began, or was lost since, is not reached by this job again: ``roll`` begins another. ``call`` never does
    so by itself; it says "the engine's job is not running" or "is not in the engine's job".
    """

    def __init__(self, kit: Path, engine: Path) -> None:
        engines.check(engine)
        super().__init__(kits.about(kit)["sites"], socket_file(kit / "server"))
        self._admin = _Admin(kit / "admin", engine)

    def close(self) -> None:
        super().close()
        self._admin.close()

    def connected(self) -> dict[str, float]:
        """The sites whose engines are connected to the server, and when they gave their last sign of life."""
        answer = self._admin.ask({"do": "sites"})
        return dict(answer["ok"]) if "ok" in answer else {}

    def open(self, within: float, sites: list[str] | None = None) -> dict[str, str]:
        """Make sure that a job runs; how far each site can be reached: ``ready``, ``no site process``, or why not.

        A job that runs is kept. A new one is begun when the engines of all the sites (of the federation, unless named)
        are connected, or half of the seconds have passed: the others are left out of it.
        """
        wanted = self.sites if sites is None else sites
        until = at(within)
        if not self.calls.connected:
            self._await_engines(wanted, at(within / 2))
        reached = dict.fromkeys(wanted, "the engine's job could not be started")
        while missing := [site for site in wanted if reached[site] not in READY]:
            if all(reached[site] == LEFT_OUT for site in missing) or not left(until) or self._closed.is_set():
                break
            if self.calls.connected:
                again = at(PROBE)
                reached |= self.calls.probe(missing, PROBE)
                if any(reached[site] not in READY for site in missing):
                    self._pause(again)
            elif not self._submit(until):
                self._pause(at(1.0))
        return reached

    def roll(self, within: float, sites: list[str] | None = None) -> dict[str, str]:
        """End the job and begin another; returns as ``open`` does."""
        self.calls.hang_up()
        return self.open(within, sites)

    def mend(self, sites: Sequence[str], within: float) -> None:
        """Do what can be done about sites that are not reached: begin a job, or roll one that they are not in."""
        within = min(within, MENDING)
        if not self.calls.connected:
            self.open(within)
            return
        reached = self.calls.probe(list(sites), 3 * PROBE)
        if any(reached[site] not in READY for site in set(sites) & set(self.connected())):
            self.roll(within)

    def _await_engines(self, sites: list[str], until: float) -> None:
        while not set(sites) <= set(self.connected()):
            if not left(until):
                logger.warning("not connected: %s", ", ".join(sorted(set(sites) - set(self.connected()))))
                return
            self._pause(at(0.5))

    def _submit(self, until: float) -> bool:
        """Submit a job, and wait for its bridge. A job whose submission was lost is refused by its old token."""
        self.calls.hang_up()
        with tempfile.TemporaryDirectory() as folder:
            write_job(Path(folder), self.calls.token)
            answer = self._admin.ask({"do": "submit", "job": folder})
        if "ok" not in answer:
            logger.warning("the engine's job could not be submitted: %s", answer["failed"])
            return False
        while left(until):
            if self.calls.await_bridge(min(2.0, left(until))):
                return True
            status = self._admin.ask({"do": "status", "job": answer["ok"]}).get("ok", "unknown")
            if status not in ("SUBMITTED", "DISPATCHED", "APPROVED", "RUNNING"):
                logger.warning("the engine's job ended before it began: %s", status)
                return False
        return False

    def _pause(self, until: float) -> None:
        """What comes next can only be asked for again; the end of the pipe ends the wait."""
        self._closed.wait(left(until))


class _Admin:
    """The process that speaks to NVFlare's server, started again when it has ended."""

    def __init__(self, kit: Path, engine: Path) -> None:
        self.kit, self.engine = kit, engine
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                return self._ask(command)
            except (OSError, ValueError) as error:
                self._end()
                return {"failed": f"the engine's administration has ended ({self._last_words() or error})"}

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        if self._process is None or self._process.poll() is not None:
            with engines.private(self.kit / "admin.log") as log:
                self._process = subprocess.Popen(
                    [str(self.engine / "bin" / "python"), "-m", "undrift.deploy.admin", str(self.kit.resolve())],
                    cwd=self.kit,
                    env=engines.environment(self.engine),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    umask=0o077,
                    start_new_session=True,
                )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(command) + "\n")
        stdin.flush()
        answer = json.loads(stdout.readline())
        if not isinstance(answer, dict) or not {"ok", "failed"} & set(answer):
            raise ValueError("no reply")
        return answer

    def _last_words(self) -> str:
        log = self.kit / "admin.log"
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def write_job(folder: Path, token: str) -> None:
    """The job's files: two classes by name, and the token by which the coordinator knows its bridge."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    meta = {"name": "undrift", "resource_spec": {}, "min_clients": 1, "deploy_map": {"app": ["@ALL"]}}
    rest: dict[str, Any] = {"task_data_filters": [], "task_result_filters": [], "components": []}
    bridge = {"id": "undrift", "path": kits.BRIDGE, "args": {"token": token}}
    relay = {"tasks": ["*"], "executor": {"path": kits.RELAY, "args": {}}}
    files: dict[Path, dict[str, Any]] = {
        folder / "meta.json": meta,
        config / "config_fed_server.json": {"format_version": 2, "workflows": [bridge], **rest},
        config / "config_fed_client.json": {"format_version": 2, "executors": [relay], **rest},
    }
    for path, content in files.items():
        path.write_text(json.dumps(content, indent=2), encoding="utf-8")
