"""Decoded data sets on disk: made once, then mapped into memory by every process that loads them.

Nothing is ever half-written: a cache is made in a temporary folder and moves into place in one step.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift.data.dataset import Augmentation, Dataset
from undrift.data.sources.files import CACHE, Release, atomic_write

VERSION = 2  # of the decoded form: raise it when a reader changes what it makes
ARRAYS = ("x", "y", "x_test", "y_test", "client", "client_test", "strata", "strata_test")


def cached(root: Path, key: str, augment: Augmentation | None, make: Callable[[], Dataset]) -> Dataset:
    """The decoded data set as memory-mapped arrays, made on first use.

    All processes that load the same data share its pages. Where the data root cannot be written, it is made in memory.
    """
    folder = root / CACHE / key
    found = _open(folder, augment)
    if found is not None:
        return found
    made = make()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".decode-"))
    except OSError:
        return made
    try:
        for name in ARRAYS:
            value = getattr(made, name)
            if value is not None:
                _save(scratch / f"{name}.npy", value.numpy() if isinstance(value, torch.Tensor) else value)
        about = {
            "name": made.name,
            "classes": made.classes,
            "class_names": made.class_names,
            "feature_names": made.feature_names,
        }
        atomic_write(scratch / "about.json", json.dumps({**about, "content": made.content}))
        if folder.exists():  # incomplete or from an interrupted clean-up
            shutil.rmtree(folder)
        os.replace(scratch, folder)
    except OSError:  # full disk, or another process was faster
        shutil.rmtree(scratch, ignore_errors=True)
    return _open(folder, augment) or made


def _save(path: Path, values: np.ndarray[Any, Any]) -> None:
    with path.open("wb") as file:
        np.save(file, values, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())


def _open(folder: Path, augment: Augmentation | None) -> Dataset | None:
    try:
        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        # "c": pages are shared until written to, and nobody writes; torch wants writable memory
        arrays = {n: np.load(folder / f"{n}.npy", mmap_mode="c") for n in ARRAYS if (folder / f"{n}.npy").exists()}
        values: dict[str, Any] = {
            n: torch.from_numpy(a) if n in ARRAYS[:4] else np.asarray(a) for n, a in arrays.items()
        }
        values |= {name: tuple(about[name]) for name in ("class_names", "feature_names")}
        made = Dataset(about["name"], classes=about["classes"], augment=augment, **values)
        made.__dict__["content"] = about["content"]  # known, so the data need not be read to know it again
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not there, or not complete: it will be made again
    return made


def key_of(name: str, settings: dict[str, Any], release: Release, root: Path) -> str:
    """Changes with the options, with the files and with the readers."""
    marks = []
    for file in release.files:
        stat = file.at(root).stat()
        marks.append([file.path, stat.st_size, stat.st_mtime_ns])
    text = json.dumps([VERSION, name, settings, release.name, marks], sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
