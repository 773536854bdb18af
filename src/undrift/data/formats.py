"""Readers for published file formats: bytes in, arrays out. Know nothing of data sets or of where files come from.

Every reader says in one sentence, with the file's name (and row), what is wrong with a damaged file.
"""

from __future__ import annotations

import gzip
import io
import pickle
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
    return parse_idx(path.read_bytes(), path)


def parse_idx(raw: bytes, path: Path) -> NDArray[Any]:
    if raw[:2] == b"\x1f\x8b":
        try:
            raw = gzip.decompress(raw)
        except (EOFError, OSError, zlib.error):
            raise InvalidInput(f"{path}: the gzip data is cut short or damaged: download it again") from None
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _IDX_TYPES:
        raise InvalidInput(f"{path}: it is not an IDX file")
    kind, axes = np.dtype(_IDX_TYPES[raw[2]]), raw[3]
    if len(raw) < 4 + 4 * axes:
        raise InvalidInput(f"{path}: it is cut short inside its header")
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", axes, 4))
    body = len(raw) - 4 - 4 * axes
    if body != int(np.prod(shape)) * kind.itemsize:
        raise InvalidInput(f"{path}: it is cut short or damaged: {body} bytes of data do not make {shape}")
    return np.frombuffer(raw, kind, offset=4 + 4 * axes).reshape(shape)


def idx_from_zip(path: Path, member: str) -> NDArray[Any]:
    """An IDX file inside a zip, found by its name in whatever folder."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = [n for n in archive.namelist() if n.rsplit("/", 1)[-1] == member]
            if not found:
                raise InvalidInput(f"{path}: it does not contain {member}")
            raw = archive.read(found[0])
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise InvalidInput(f"{path}: the zip is cut short or damaged: download it again") from None
    return parse_idx(raw, path / member)


def read_npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The named arrays of an ``.npz`` (no pickles)."""
    if not path.is_file():
        raise InvalidInput(f"{path}: there is no such file")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for key in needed:
                if key not in archive:
                    raise InvalidInput(f"{path}: it has no array {key!r}, only {', '.join(archive.files)}")
            return {key: archive[key] for key in (*needed, *optional) if key in archive}
    except InvalidInput:
        raise
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error):
        raise InvalidInput(f"{path}: it is not an .npz file, or cut short or damaged") from None


def read_cifar_bin(path: Path, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (n, 3, 32, 32) and the label bytes (n, label_bytes) of a CIFAR binary file."""
    raw = np.fromfile(path, np.uint8)
    row = label_bytes + 3072
    if len(raw) == 0 or len(raw) % row:
        raise InvalidInput(f"{path}: it is cut short: {len(raw)} bytes are no whole number of rows of {row}")
    rows = raw.reshape(-1, row)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, :label_bytes]


class _ArraysOnly(pickle.Unpickler):
    """Unpickles dictionaries, lists, texts and NumPy arrays, and refuses everything else."""

    allowed = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not allowed")
        if module == "numpy.core.multiarray":
            module = "numpy._core.multiarray"
        return super().find_class(module, name)


def read_cifar_pickle(path: Path, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures and labels of a CIFAR python file, through an unpickler that makes arrays only."""
    try:
        content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        data = np.asarray(content[b"data"], np.uint8).reshape(-1, 3, 32, 32)
        labels = np.asarray(content[label_key.encode()], np.int64)
    except pickle.UnpicklingError as error:
        raise InvalidInput(f"{path}: it is damaged or holds more than arrays ({error})") from None
    except (KeyError, ValueError, TypeError, EOFError, AttributeError, IndexError, UnicodeDecodeError, ImportError):
        raise InvalidInput(f"{path}: it is not a CIFAR file, or cut short or damaged") from None
    if len(data) != len(labels):
        raise InvalidInput(f"{path}: {len(data)} pictures but {len(labels)} labels")
    return data, labels


def read_matrix(path: Path, columns: int | None = None) -> NDArray[np.float32]:
    """A text file of numbers between blanks, one row per line; ``nan`` is allowed here."""
    with path.open("rb") as file:
        first = file.readline().split()
    width = columns or len(first)
    text = path.read_bytes()
    try:
        values = np.array(text.split(), np.float64)  # much faster than numpy.loadtxt
    except ValueError:
        values = np.empty(0)
    lines = text.count(b"\n") + (not text.endswith(b"\n"))
    if len(values) == 0 or len(values) != width * lines:
        raise _bad_line(path, width)
    return values.astype(np.float32).reshape(-1, width)


def _bad_line(path: Path, width: int) -> InvalidInput:
    """Find the line that is wrong."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            parts = line.split()
            if len(parts) != width:
                return InvalidInput(f"{path}: line {number} has {len(parts)} values, not {width}")
            try:
                [float(p) for p in parts]
            except ValueError:
                return InvalidInput(f"{path}: line {number} holds something that is not a number")
    return InvalidInput(f"{path}: it is empty")


def read_labels(path: Path, low: int, high: int) -> NDArray[np.int64]:
    """One whole number per line, within a range."""
    values = read_matrix(path, 1)[:, 0]
    bad = ~((values >= low) & (values <= high) & (values == np.floor(values)))
    if bad.any():
        row = int(bad.argmax())
        raise InvalidInput(f"{path}: line {row + 1} has the label {values[row]:g}: labels are {low} to {high}")
    return values.astype(np.int64)


def check_labels(labels: NDArray[Any], classes: int, path: Path) -> NDArray[np.int64]:
    """Labels as int64, refused with file and row when outside 0..classes-1."""
    labels = np.asarray(labels).astype(np.int64)
    bad = (labels < 0) | (labels >= classes)
    if bad.any():
        row = int(bad.argmax())
        raise InvalidInput(f"{path}: row {row} has the label {int(labels[row])}: labels are 0 to {classes - 1}")
    return labels


def check_finite(values: NDArray[Any], path: Path) -> None:
    """Refuse a value that is not finite, with file and row (from 1)."""
    bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if bad.any():
        raise InvalidInput(f"{path}: line {int(bad.argmax()) + 1} holds a value that is not a finite number")
