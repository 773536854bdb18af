"""Where clients run. ``create`` makes a runtime by name."""

from __future__ import annotations

from undrift.core.errors import InvalidInput, unknown
from undrift.core.federation import Federation
from undrift.core.runtime import Runtime

RUNTIMES = ("auto", "serial", "processes")


def create(name: str, federation: Federation, workers: int | None = None) -> Runtime:
    """A runtime by name; ``workers`` is the number of worker processes, where there are any."""
    if name not in RUNTIMES:
        raise unknown("runtime", name, RUNTIMES)
    if workers is not None and workers < 1:
        raise InvalidInput(
            f"workers = {workers}: at least 1 worker process is needed; the serial runtime works in this process"
        )
    if name == "processes":
        from undrift.runtimes.processes import Processes

        return Processes(federation, workers)
    from undrift.runtimes.serial import Serial

    return Serial(federation)


__all__ = ["RUNTIMES", "create"]
