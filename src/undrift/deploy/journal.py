"""A log that nobody can change unseen: one JSON object a line, each with the hash of the line before it.

Lines are only ever added, and are on the disk before ``add`` returns. Whoever changes, removes or inserts a line in the
middle breaks the chain, which ``verify`` finds. Lines taken away from the end leave a chain that is whole but shorter:
``head`` is what to keep elsewhere, and a site tells it to the coordinator with every answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput

BEGIN = "0" * 64  # the hash before the first line


@dataclass(frozen=True)
class Checked:
    """A chain that holds: how many lines, and the hash of the last."""

    lines: int
    head: str


class Journal:
    """Adds lines to a file for its owner alone. One process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        cut = self._cut_unfinished()
        checked = verify(path)
        self.head, self._lines = checked.head, checked.lines
        if cut:
            self.add("an unfinished line was cut off", bytes=cut)

    def add(self, what: str, **facts: Any) -> None:
        """Write that something happened. ``OSError`` if it could not be written; then it is as if it had not been."""
        with self._lock:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = {"line": self._lines + 1, "at": now, "what": what, **facts, "before": self.head}
            text = json.dumps(line, ensure_ascii=False).encode() + b"\n"
            end = os.fstat(self._file).st_size
            try:
                if os.write(self._file, text) != len(text):
                    raise OSError("the disk is full")
                os.fsync(self._file)
            except OSError:
                os.ftruncate(self._file, end)
                raise
            self.head, self._lines = _hash(text), self._lines + 1

    def close(self) -> None:
        os.close(self._file)

    def _cut_unfinished(self) -> int:
        """A line that a crash left without its end never was; how many bytes it had."""
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._file, whole)
        return len(content) - whole


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a journal, checked one by one. ``InvalidInput`` where the chain breaks."""
    return (line for line, _ in _checked(path))


def verify(path: Path) -> Checked:
    """Read a journal from its beginning; ``InvalidInput`` where the chain breaks."""
    hashes = [BEGIN, *(found for _, found in _checked(path))]
    return Checked(len(hashes) - 1, hashes[-1])


def _checked(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The lines, each with its hash."""
    before = BEGIN
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None
    whole = content[: content.rfind(b"\n") + 1]  # what comes after it is being written, or never was
    for number, text in enumerate(whole.splitlines(keepends=True), 1):
        try:
            line = json.loads(text)
            sound = line["line"] == number and line["before"] == before
        except (ValueError, KeyError, TypeError, RecursionError):
            sound = False
        if not sound:
            raise InvalidInput(f"{path}: line {number} does not follow from the one before: the log was changed there")
        before = _hash(text)
        yield line, before


def _hash(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()
