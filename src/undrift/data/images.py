"""Folders of pictures as arrays. Needs Pillow; knows nothing of data sets.

Pictures are decoded once, to one size, in sorted order of their paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.data.bounds import in_memory, regular

LARGEST = 50_000_000  # pixels of a picture: more is a mistake or an attack
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")


def read_images(paths: Sequence[Path], size: int, grey: bool) -> NDArray[np.uint8]:
    """The pictures as (n, channels, size, size), resized without keeping the aspect ratio."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise InvalidInput("reading pictures needs Pillow: pip install 'undrift[data]'") from None
    shape = (len(paths), 1 if grey else 3, size, size)
    in_memory(math.prod(shape), f"{len(paths)} pictures of {size} x {size} pixels", "all of them")
    out = np.empty(shape, np.uint8)
    for i, path in enumerate(paths):
        regular(path)
        try:
            with Image.open(path) as picture:
                if picture.width * picture.height > LARGEST:
                    raise InvalidInput(f"{path}: {picture.width} x {picture.height} pixels are more than can be meant")
                picture.load()
                scaled = picture.convert("L" if grey else "RGB")
        except InvalidInput:
            raise
        except Image.DecompressionBombError:
            raise InvalidInput(f"{path}: it claims more pixels than can be meant") from None
        except (OSError, UnidentifiedImageError, ValueError, SyntaxError, OverflowError, MemoryError):
            raise InvalidInput(f"{path}: this picture cannot be decoded (damaged or cut short)") from None
        if scaled.size != (size, size):
            scaled = scaled.resize((size, size), Image.Resampling.BILINEAR)
        pixels = np.asarray(scaled, np.uint8)
        out[i] = pixels[None] if grey else pixels.transpose(2, 0, 1)
    return out


def list_classes(folder: Path) -> tuple[list[str], list[Path], NDArray[np.int64]]:
    """Class names, picture paths and labels of ``folder/CLASS/*``."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder}: there is no such folder")
    names = sorted(d.name for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))
    if len(names) < 2:
        raise InvalidInput(f"{folder}: it must hold one folder of pictures per class, at least two")
    paths, labels = [], []
    for label, name in enumerate(names):
        found = sorted(f for f in (folder / name).rglob("*") if f.suffix.lower() in SUFFIXES)
        if not found:
            raise InvalidInput(f"{folder / name}: it holds no pictures ({', '.join(SUFFIXES)})")
        paths += found
        labels += [label] * len(found)
    return names, paths, np.array(labels, np.int64)


def normalise(
    pixels: NDArray[np.uint8], mean: Sequence[float] = (0.5,), spread: Sequence[float] = (0.5,)
) -> NDArray[np.float32]:
    """Pixels as floats, (value / 255 - mean) / spread per channel, without a second large copy."""
    shape = (1, -1) + (1,) * (pixels.ndim - 2)
    m, s = (np.asarray(v, np.float32).reshape(shape) for v in (mean, spread))
    out = pixels.astype(np.float32)
    out -= 255 * m
    out /= 255 * s
    return out
