"""Digests, by which what is read can be told from what was written. Against accidents of disks, not against people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

NONE = "0" * 32  # of nothing
_text = json.JSONEncoder(separators=(",", ":"), default=repr).encode


class NotAsWritten(Exception):
    """What is stored is not what was written; says what."""


def seal(*values: Any) -> str:
    """The digest of plain values: numbers, texts, None, and lists of them."""
    return of_bytes(_text(values).encode())


def of_bytes(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def mixed(seals: Iterable[str]) -> str:
    """One digest for a set, in whatever order: what is mixed in twice is out again."""
    found = 0
    for one in seals:
        try:
            found ^= int(one, 16)
        except (TypeError, ValueError):
            raise NotAsWritten("a digest is none") from None
    return f"{found:032x}"
