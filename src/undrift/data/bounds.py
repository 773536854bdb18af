"""What a file says of its own size is checked before memory is taken for it; what is no file is not read at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from undrift.core.errors import InvalidInput

EXPANDS = 100  # times its own size that packed data may grow: pictures and tables grow 2 to 20 times
SMALL = 1 << 26  # bytes that need no question

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


def regular(path: Path) -> int:
    """The size of a file; a sentence for a pipe, a device or a folder, which might never end."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise InvalidInput(f"{path}: No such file or directory") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: it cannot be read ({error})") from None
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        raise InvalidInput(f"{path}: it is {kind}, not a file")
    return found.st_size


def content(path: Path) -> bytes:
    """All bytes of a file that fits into memory; no more than it had when it was looked at."""
    size = regular(path)
    in_memory(size, path, "it")
    with path.open("rb") as file:
        return file.read(size)


def memory() -> int:
    """The machine's memory in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 36  # systems that do not tell


def in_memory(size: int, where: object, what: str) -> None:
    """Refuse what this machine's memory cannot hold."""
    if size > memory():
        raise InvalidInput(f"{where}: {what} takes {amount(size)}, more than the memory of this machine")


def unpacked(size: int, packed: int, where: object, what: str) -> None:
    """Refuse data that claim to grow beyond reason, or beyond the memory of this machine."""
    if size > max(SMALL, EXPANDS * packed):
        raise InvalidInput(
            f"{where}: {what} claims to grow from {amount(packed)} to {amount(size)}, more than {EXPANDS} times: "
            "store it unpacked if that is meant"
        )
    in_memory(size, where, what)


def amount(size: int) -> str:
    """Bytes for people."""
    for factor, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB")):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,} bytes"
