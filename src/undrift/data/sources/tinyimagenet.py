"""Tiny-ImageNet."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.core.settings import at_least
from undrift.data.augment import FlipCrop
from undrift.data.dataset import Augmentation, Dataset
from undrift.data.images import read_images
from undrift.data.sources.cifar10 import Crop, CropHelp
from undrift.data.sources.files import CACHE, File, Release
from undrift.data.sources.pictures import Pictures


class TinyImageNet(Pictures):
    """100,000 + 10,000 colour pictures, 64 x 64, 200 classes; the published validation part is the test set."""

    name = "tinyimagenet"
    title = "Tiny-ImageNet"
    homepage = "http://cs231n.stanford.edu/"
    licence = "see its page (ImageNet's terms)"
    size = "248 MB"
    pixels: Annotated[int, "resize to so many pixels a side", at_least(8)] = 64
    augment: Annotated[Crop, CropHelp] = "half"

    def releases(self) -> tuple[Release, ...]:
        folder = "tiny-imagenet-200"
        url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
        files = tuple(File(f"{folder}/{p}") for p in ("wnids.txt", "train", "val/images", "val/val_annotations.txt"))
        return (Release("folder", files, (File(f"{folder}.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de", url),)),)

    def augmentation(self) -> Augmentation | None:
        if self.augment == "none":
            return None
        pad = max(self.pixels // 8, 1)
        return FlipCrop(pad, self.fill(3), crop=1.0 if self.augment == "always" else 0.5)

    def read(self, root: Path, release: Release) -> Dataset:
        folder = root / "tiny-imagenet-200"
        names = (folder / "wnids.txt").read_text(encoding="utf-8").split()
        place = {name: i for i, name in enumerate(names)}
        paths, labels = [], []
        for name in names:
            found = sorted((folder / "train" / name / "images").glob("*.JPEG"))
            if not found:
                raise InvalidInput(f"{folder / 'train' / name / 'images'}: it holds no pictures")
            paths += found
            labels += [place[name]] * len(found)
        notes = folder / "val" / "val_annotations.txt"
        test_paths, test_labels = [], []
        for number, line in enumerate(notes.read_text(encoding="utf-8").splitlines(), 1):
            parts = line.split("\t")
            if len(parts) < 2 or parts[1] not in place:
                raise InvalidInput(f"{notes}: line {number} names no class of wnids.txt")
            test_paths.append(folder / "val" / "images" / parts[0])
            test_labels.append(place[parts[1]])
        x = self.decode(paths, root)
        x_test = self.decode(test_paths, root)
        return self.dataset(x, np.array(labels), x_test, np.array(test_labels), len(names), class_names=tuple(names))

    def decode(self, paths: Sequence[Path], root: Path) -> NDArray[np.float32]:
        """Pictures block by block, on disk when they are many: they need not fit into memory."""
        shape = (len(paths), 3, self.pixels, self.pixels)
        out: NDArray[np.float32]
        if np.prod(shape) > 1 << 28:
            (root / CACHE).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root / CACHE) as file:
                out = np.memmap(file, np.float32, "w+", shape=shape)
        else:
            out = np.empty(shape, np.float32)
        for i in range(0, len(paths), 1000):
            out[i : i + 1000] = self.scaled(read_images(paths[i : i + 1000], self.pixels, grey=False))
        return out
