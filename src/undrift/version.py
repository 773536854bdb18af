"""Which undrift this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed


def version() -> str:
    """The installed version; ``unknown`` where undrift runs from a folder that was never installed."""
    try:
        return _installed("undrift")
    except PackageNotFoundError:
        return "unknown"


__version__ = version()
