"""Inputs that are read some at a time, and where the arrays made of them lie: in memory, or in files without names.

Arrays in files are memory-mapped: pages are read when they are looked at and given back when memory is short, so data
may be larger than memory. They hold the same bits as arrays in memory. A file has no name: nothing is left behind.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.data.bounds import amount, memory, regular
from undrift.data.images import list_classes, normalise, read_images

BLOCK = 1 << 24  # bytes that are worked on at a time


class Rows(ABC):
    """Inputs that can be asked for by their numbers."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of all of them: the first axis is the sample."""

    @abstractmethod
    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Some of them. Rows are asked for in increasing order."""

    def __len__(self) -> int:
        return self.shape[0]

    def whole(self) -> NDArray[Any]:
        return self.take(np.arange(len(self)))


def in_memory(shape: Sequence[int], kind: Any) -> NDArray[Any]:
    size = math.prod(shape) * np.dtype(kind).itemsize
    if size > memory():
        raise InvalidInput(f"the data take {amount(size)}, more than the memory of this machine: set lazy (--lazy)")
    return np.empty(shape, kind)


def in_files(shape: Sequence[int], kind: Any) -> NDArray[Any]:
    """An array in a file without a name, where temporary files are."""
    size = math.prod(shape) * np.dtype(kind).itemsize
    place = tempfile.gettempdir()
    if size > shutil.disk_usage(place).free:
        raise InvalidInput(f"{place}: {amount(size)} are needed for decoded data, more than is free: set TMPDIR")
    if size == 0:
        return np.empty(shape, kind)
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, kind, "w+", shape=tuple(shape))


Room = Callable[[Sequence[int], Any], NDArray[Any]]  # makes an empty array of a shape and type


def blocks(count: int, row: int) -> Iterator[slice]:
    """Stretches of ``count`` rows of so many bytes each, to be worked on one after the other."""
    step = max(BLOCK // max(row, 1), 1)
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


@dataclass(frozen=True)
class Mapped(Rows):
    """The rows of an array, usually a memory-mapped one."""

    array: NDArray[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.asarray(self.array[rows])


@dataclass(frozen=True)
class Pictures(Rows):
    """Picture files, decoded when they are asked for."""

    paths: Sequence[Path]
    size: int
    grey: bool
    mean: tuple[float, ...]
    spread: tuple[float, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), 1 if self.grey else 3, self.size, self.size)

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        return normalise(read_images([self.paths[i] for i in rows], self.size, self.grey), self.mean, self.spread)


class Samples(Rows):
    """The inputs of a map-style torch ``Dataset`` of (input, label) pairs."""

    def __init__(self, source: torch.utils.data.Dataset[Any], name: str) -> None:
        self.source, self.name = source, name
        try:
            self.count = len(source)  # type: ignore[arg-type]
        except TypeError:
            raise InvalidInput(f"{name}: a torch Dataset without a length cannot be split among clients") from None
        if self.count == 0:
            raise InvalidInput(f"{name}: the torch Dataset is empty")
        self.one = self.pair(0)[0].shape

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, *self.one)

    def pair(self, i: int) -> tuple[NDArray[Any], NDArray[Any]]:
        pair = self.source[i]
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            raise InvalidInput(f"{self.name}: a torch Dataset must give (input, label) pairs")
        x, y = (v.detach().cpu().numpy() if isinstance(v, torch.Tensor) else np.asarray(v) for v in pair)
        if i and x.shape != self.one:
            raise InvalidInput(f"{self.name}: sample {i} has shape {x.shape}, the first has {self.one}")
        return x, y

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        return np.stack([self.pair(i)[0] for i in rows.tolist()])

    def labels(self) -> NDArray[Any]:
        """All labels: every sample is made once for it."""
        return np.stack([self.pair(i)[1] for i in range(self.count)])

    def everything(self) -> tuple[NDArray[Any], NDArray[Any]]:
        pairs = [self.pair(i) for i in range(self.count)]
        return np.stack([x for x, _ in pairs]), np.stack([y for _, y in pairs])


def picture_folder(folder: Path, size: int, grey: bool, unit: bool) -> dict[str, Any]:
    """A folder of class folders (or its ``train`` and ``test``), as ``Dataset.from_arrays`` takes it."""
    mean, spread = ((0.0,), (1.0,)) if unit else ((0.5,), (0.5,))
    split = next((s for s in ("test", "val", "validation") if (folder / s).is_dir()), None)
    if not (folder / "train").is_dir() or split is None:
        names, paths, labels = list_classes(folder)
        pictures = Pictures(paths, size, grey, mean, spread)
        return {"x": pictures, "y": labels, "classes": len(names), "class_names": names}
    names, paths, labels = list_classes(folder / "train")
    names_test, paths_test, labels_test = list_classes(folder / split)
    if names_test != names:
        raise InvalidInput(f"{folder}: train has the classes {names}, {split} has {names_test}")
    return {
        "x": Pictures(paths, size, grey, mean, spread),
        "y": labels,
        "x_test": Pictures(paths_test, size, grey, mean, spread),
        "y_test": labels_test,
        "classes": len(names),
        "class_names": names,
    }


def mapped_folder(folder: Path) -> dict[str, Any]:
    """The arrays of a folder as ``Dataset.from_arrays`` takes them, the inputs memory-mapped."""
    found: dict[str, Any] = {}
    for name in ("x", "y", "x_test", "y_test", "client", "client_test"):
        path = folder / f"{name}.npy"
        if not path.exists():
            if name in ("x", "y"):
                raise InvalidInput(f"{folder}: it has no {name}.npy")
            continue
        regular(path)
        try:
            array = np.load(path, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError, TypeError, SyntaxError):
            raise InvalidInput(f"{path}: it is not an .npy file of numbers or texts, or it is cut short") from None
        if array.dtype.kind not in "biufSU":
            raise InvalidInput(f"{path}: it holds {array.dtype}, not numbers or texts")
        found[name] = Mapped(array) if name in ("x", "x_test") else np.array(array)
    return found
