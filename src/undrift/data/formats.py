"""Readers for published file formats: bytes in, arrays out. Know nothing of data sets or of where files come from.

Every reader says in one sentence, with the file's name (and row), what is wrong with a damaged file, and believes no
size that the bytes do not bear out.
"""

from __future__ import annotations

import gzip
import io
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.data import pickled
from undrift.data.bounds import content, regular, unpacked

_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path) -> NDArray[Any]:
    """An IDX file (MNIST's format), plain or gzipped."""
    return parse_idx(content(path), path)


def parse_idx(raw: bytes, path: Path) -> NDArray[Any]:
    packed = raw[:2] == b"\x1f\x8b"
    stream: gzip.GzipFile | io.BytesIO = gzip.GzipFile(fileobj=io.BytesIO(raw)) if packed else io.BytesIO(raw)
    try:
        head = stream.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] not in _IDX_TYPES:
            raise InvalidInput(f"{path}: it is not an IDX file")
        kind, axes = np.dtype(_IDX_TYPES[head[2]]), head[3]
        sizes = stream.read(4 * axes)
        if len(sizes) < 4 * axes:
            raise InvalidInput(f"{path}: it is cut short inside its header")
        shape = tuple(np.frombuffer(sizes, ">u4").tolist())
        claimed = math.prod(shape) * kind.itemsize
        if packed:
            unpacked(claimed, len(raw), path, "it")
        body = stream.read(min(claimed, len(raw)) + 1 if not packed else claimed + 1)
    except (EOFError, OSError, zlib.error):
        raise InvalidInput(f"{path}: the gzip data is cut short or damaged: download it again") from None
    if len(body) != claimed:
        length = "more" if len(body) > claimed else str(len(body))
        raise InvalidInput(f"{path}: it is cut short or damaged: {length} bytes of data do not make {shape}")
    return np.frombuffer(body, kind).reshape(shape)


def idx_from_zip(path: Path, member: str) -> NDArray[Any]:
    """An IDX file inside a zip, found by its name in whatever folder."""
    regular(path)
    with _zip(path, "the zip is cut short or damaged: download it again") as archive:
        found = [info for info in archive.infolist() if info.filename.rsplit("/", 1)[-1] == member]
        if not found:
            raise InvalidInput(f"{path}: it does not contain {member}")
        unpacked(found[0].file_size, found[0].compress_size, path, member)
        raw = archive.read(found[0])
    return parse_idx(raw, path / member)


@contextmanager
def _zip(path: Path, damaged: str) -> Iterator[zipfile.ZipFile]:
    """A zip to read from; whatever is wrong with it is one sentence."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except InvalidInput:
        raise
    except (OSError, ValueError, EOFError, RuntimeError, NotImplementedError, zipfile.BadZipFile, zlib.error):
        raise InvalidInput(f"{path}: {damaged}") from None


def read_npz(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The named arrays of an ``.npz`` (no pickles)."""
    regular(path)
    with _zip(path, "it is not an .npz file, or cut short or damaged") as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        for key in needed:
            if key not in members:
                raise InvalidInput(f"{path}: it has no array {key!r}, only {', '.join(members)}")
        return {key: _npy(archive, members[key], path, key) for key in (*needed, *optional) if key in members}


def names_in_npz(path: Path) -> list[str]:
    """The arrays of an ``.npz``, without reading them; none where it cannot be read."""
    try:
        regular(path)
        with _zip(path, "it is not an .npz file") as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except InvalidInput:
        return []


def _npy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path, name: str) -> NDArray[Any]:
    """One array. Its header is believed only where it agrees with the bytes that are there."""
    with archive.open(info) as file:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, kind = read_header(file)
        if kind.kind not in "biufSU":
            raise InvalidInput(f"{path}: {name} holds {kind}, not numbers or texts")
        size = math.prod(shape) * kind.itemsize
        if size != info.file_size - file.tell():
            raise InvalidInput(f"{path}: {name} claims the shape {shape}, which its bytes do not make: it is damaged")
        unpacked(size, info.compress_size, path, name)
        raw = bytearray(size)
        if file.readinto(raw) != size or file.read(1):  # type: ignore[attr-defined]
            raise ValueError
    return np.frombuffer(raw, kind).reshape(shape, order="F" if fortran else "C")


def read_cifar_bin(path: Path, label_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pictures (n, 3, 32, 32) and the label bytes (n, label_bytes) of a CIFAR binary file."""
    raw = np.frombuffer(content(path), np.uint8)
    row = label_bytes + 3072
    if len(raw) == 0 or len(raw) % row:
        raise InvalidInput(f"{path}: it is cut short: {len(raw)} bytes are no whole number of rows of {row}")
    rows = raw.reshape(-1, row)
    return rows[:, label_bytes:].reshape(-1, 3, 32, 32), rows[:, :label_bytes]


def read_cifar_pickle(path: Path, label_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pictures and labels of a CIFAR python file, by a reader that makes arrays and nothing else."""
    try:
        found = pickled.read(content(path))
    except InvalidInput as error:
        raise InvalidInput(f"{path}: it is damaged or holds more than arrays: {error}") from None
    try:
        data, listed = found[b"data"], found[label_key.encode()]
        if not isinstance(data, np.ndarray) or not all(type(label) is int for label in listed):  # no nested lists
            raise TypeError
        data, labels = data.reshape(-1, 3, 32, 32), np.array(listed, np.int64)
    except (KeyError, ValueError, TypeError, OverflowError):
        raise InvalidInput(f"{path}: it is not a CIFAR file, or cut short or damaged") from None
    if len(data) != len(labels):
        raise InvalidInput(f"{path}: {len(data)} pictures but {len(labels)} labels")
    return data, labels


def read_matrix(path: Path, columns: int | None = None) -> NDArray[np.float32]:
    """A text file of numbers between blanks, one row per line; ``nan`` is allowed here."""
    text = content(path)
    width = columns or len(text.split(b"\n", 1)[0].split())
    try:
        values = np.array(text.split(), np.float64)  # much faster than numpy.loadtxt
    except ValueError:
        values = np.empty(0)
    lines = text.count(b"\n") + (not text.endswith(b"\n"))
    if len(values) == 0 or len(values) != width * lines:
        raise _bad_line(text, path, width)
    return values.astype(np.float32).reshape(-1, width)


def _bad_line(text: bytes, path: Path, width: int) -> InvalidInput:
    """Find the line that is wrong."""
    for number, line in enumerate(text.splitlines(), 1):
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
