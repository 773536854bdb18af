"""Where clients run. ``create`` makes a runtime by name."""

from __future__ import annotations

from undrift.core.federation import Federation
from undrift.core.runtime import Runtime
from undrift.runtimes.serial import Serial


def create(name: str, federation: Federation, workers: int | None = None) -> Runtime:
    return Serial(federation)
