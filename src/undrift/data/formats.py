"""Readers for published file formats: bytes in, arrays out. Know nothing of data sets or of where files come from.

Every reader says in one sentence, with the file's name, what is wrong with a damaged file.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput

_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path) -> NDArray[Any]:
    """An IDX file (MNIST's format), plain or gzipped."""
    raw = path.read_bytes()
    return parse_idx(raw, path)


def parse_idx(raw: bytes, path: Path) -> NDArray[Any]:
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error):
            raise InvalidInput(f"{path}: the gzip data is cut short or damaged: download it again") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise InvalidInput(f"{path}: it is not an IDX file")
    kind, axes = np.dtype(_IDX_TYPES[raw[2]]), raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", axes, 4)) if len(raw) >= 4 + 4 * axes else ()
    body = len(raw) - 4 - 4 * axes
    if not shape or body != int(np.prod(shape)) * kind.itemsize:
        raise InvalidInput(f"{path}: it is cut short or damaged: {body} bytes of data do not make {shape}")
    return np.frombuffer(raw, kind, offset=4 + 4 * axes).reshape(shape)


def read_npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The named arrays of an ``.npz`` (no pickles)."""
    if not path.is_file():
        raise InvalidInput(f"{path}: there is no such file")
    try:
        with np.load(path, allow_pickle=False) as archive:
            for key in needed:
                if key not in archive:
                    raise InvalidInput(f"{path}: it has no array {key!r}, only {', '.join(archive.files)}")
            return {key: archive[key] for key in (*needed, *optional) if key in archive}
    except InvalidInput:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(f"{path}: it is cut short or damaged ({error})") from None
