"""One process per run: a byte of a file beside the ledger per run. The lock ends with the process, however that ends.

Knows files and the systems' ways to lock a byte, nothing of what is in a ledger.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def _lock(fd: int, byte: int) -> None:
        os.lseek(fd, byte, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int, byte: int) -> None:
        os.lseek(fd, byte, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(fd: int, byte: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)

    def _unlock(fd: int, byte: int) -> None:
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, byte)


class LockFile:
    """The locks of one ledger. POSIX drops all of a process's locks on a file when it closes it anywhere, so a process
    opens each lock file once and keeps it."""

    open_files: dict[Path, LockFile] = {}  # noqa: RUF012

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o644)
        self.mine: set[int] = set()

    @classmethod
    def of(cls, ledger: Path) -> LockFile:
        """The same for all the names that a ledger has: a link to it is locked with it."""
        real = ledger.resolve()
        path = real.with_name(real.name + "-lock")
        if path not in cls.open_files:
            cls.open_files[path] = cls(path)
        return cls.open_files[path]

    def take(self, run: int) -> bool:
        if run in self.mine:
            return False
        try:
            _lock(self._fd, run)
        except OSError:
            return False
        self.mine.add(run)
        return True

    def take_soon(self, run: int) -> bool:
        """Whoever only looks (``is_taken``) has the lock for a moment: try again before giving up."""
        for pause in (0.01, 0.05, 0.2):
            if self.take(run):
                return True
            time.sleep(pause)
        return self.take(run)

    def release(self, run: int) -> None:
        _unlock(self._fd, run)
        self.mine.discard(run)


def is_taken(ledger: Path, run: int) -> bool:
    """Is a process at work on this run now? Nobody is where a lock cannot even be made."""
    try:
        lock = LockFile.of(ledger)
    except OSError:
        return False
    if run in lock.mine:
        return True
    if lock.take(run):
        lock.release(run)
        return False
    return True
