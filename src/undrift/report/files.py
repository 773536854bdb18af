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
        raise InvalidInput(f"{path} exists already: choose another name, or replace it with --force")


@contextmanager
def written(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its name when the block ends well."""
    path = Path(path)
    refuse_existing(path, force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}") from None
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()
