"""Which undrift this is."""

from __future__ import annotations

from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as _installed


def version() -> str:
    """The installed version; ``unknown`` where undrift runs from a folder that was never installed."""
    try:
        return _installed("undrift")
    except PackageNotFoundError:
        return "unknown"


def versions() -> str:
    """This and what it stands on, for ``--version`` and reports of bugs."""
    import platform

    parts = [f"undrift {version()}", f"Python {platform.python_version()}"]
    for name in ("torch", "numpy"):
        with suppress(PackageNotFoundError):
            parts.append(f"{name} {_installed(name)}")
    return ", ".join([*parts, f"{platform.system()} {platform.machine()}"])


__version__ = version()
