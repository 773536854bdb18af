"""Files that appear whole or not at all, and never replace another one unasked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from undrift.core.errors import InvalidInput


def refuse_existing(path: str | Path, force: bool) -> None:
    path = Path(path)
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder: give the name of a file")
    if path.exists() and not force:
        raise InvalidInput(f"{path} exists already: choose another name, or let it be replaced (force)")


@contextmanager
def whole(path: Path, *, mode: int | None = None) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its name when the block ends well, and is then on the disk.

    With ``mode`` it is never open to more than that; without, it is as open as the user's files are.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # for its owner alone
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_mask() if mode is None else mode)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def written(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """The same for a file that a user asked for: its folder is made, and what goes wrong is a sentence."""
    path = Path(path)
    refuse_existing(path, force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as temporary:
            yield temporary
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from None


def _mask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    """The name is on the disk too, where the file system can promise it."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows: a folder cannot be opened there
        return
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
