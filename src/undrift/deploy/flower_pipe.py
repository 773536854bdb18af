"""A ``Pipe`` over Flower: the coordinator submits an app that names two installed ones, to a SuperLink that is there.

For those who run a SuperLink and SuperNodes already: undrift neither starts them nor makes their keys. Flower itself is
in another environment (``UNDRIFT_FLOWER``), with the few modules of undrift that its processes run. The app imports
them and has no more in it; that Flower would carry other code too is said in ``docs/deploy-flower.md``.
"""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from undrift.core.errors import InvalidInput
from undrift.deploy import engine as engines
from undrift.deploy import kits
from undrift.deploy.pipe import READY, Bridged, socket_file
from undrift.deploy.wire import at, left

VERSIONS = "flwr==1.41.0"  # tried; its interfaces change from one to the next
PROBE = 30.0  # seconds for a relay to answer: nodes look for messages every three, and start a process for each
AGAIN = 3.0  # seconds between two looks

PROJECT = """\
[project]
name = "undrift-relay"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "undrift"

[tool.flwr.app.components]
serverapp = "undrift_relay.apps:server"
clientapp = "undrift_relay.apps:client"

[tool.flwr.app.config]
token = ""
socket = ""
"""
APPS = "from undrift.deploy import flower\n\nclient = flower.client\nserver = flower.server\n"

logger = logging.getLogger(__name__)


def place() -> Path:
    """Where Flower's environment is: ``UNDRIFT_FLOWER``."""
    named = os.environ.get("UNDRIFT_FLOWER")
    if not named or not (Path(named) / "bin" / "flwr").exists():
        raise InvalidInput(
            f"no Flower at {named or 'hand'}: let UNDRIFT_FLOWER name the folder of an environment that has {VERSIONS}"
        )
    return Path(named)


class FlowerPipe(Bridged):
    """``call`` as in ``Pipe``, over an app that ``open`` makes sure of.

    ``kit`` is the coordinator's; ``superlink`` is the name of a connection in Flower's own configuration.
    """

    def __init__(self, kit: Path, flower: Path, superlink: str = "") -> None:
        engines.seed(flower)
        self._socket = socket_file(kit.resolve())
        super().__init__(kits.about(kit)["sites"], self._socket)
        self.flower, self.superlink = flower.resolve(), superlink

    def open(self, within: float, sites: Sequence[str] | None = None) -> dict[str, str]:
        """Make sure that the app runs; how far each site can be reached, as ``NVFlarePipe.open`` says it."""
        wanted = self.sites if sites is None else list(sites)
        until = at(within)
        reached = dict.fromkeys(wanted, "Flower's app could not be started")
        while missing := [site for site in wanted if reached[site] not in READY]:
            if self.calls.connected:
                reached |= self.calls.probe(missing, min(PROBE, max(left(until), 1.0)))
            else:
                self._submit(until)
            if not left(until) or self._closed.is_set() or all(reached[site] in READY for site in missing):
                break
            self._closed.wait(min(AGAIN, left(until)))
        return reached

    def mend(self, sites: Sequence[str], within: float) -> None:
        """A SuperNode that comes back is found by the app that runs; only an app that has ended is begun again."""
        if not self.calls.connected:
            self.open(min(within, 3 * PROBE), sites)

    def _submit(self, until: float) -> None:
        """Let Flower run the app, and wait for its bridge."""
        self.calls.hang_up()
        with tempfile.TemporaryDirectory() as folder:
            write_app(Path(folder))
            words = [self.flower / "bin" / "flwr", "run", folder, *([self.superlink] if self.superlink else [])]
            told = f'token="{self.calls.token}" socket="{self._socket}"'
            done = subprocess.run(
                [*map(str, words), "--run-config", told],
                env={**engines.environment(self.flower), "FLWR_TELEMETRY_ENABLED": "0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
        if done.returncode:
            logger.warning("Flower did not take the app: %s", " ".join((done.stderr or done.stdout).split())[-300:])
        else:
            self.calls.await_bridge(left(until))


def write_app(folder: Path) -> None:
    """The app's files: two names that are installed where they run."""
    package = folder / "undrift_relay"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "apps.py").write_text(APPS, encoding="utf-8")
