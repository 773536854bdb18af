"""CIFAR-10."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.data import formats
from undrift.data.augment import FlipCrop
from undrift.data.dataset import Augmentation, Dataset
from undrift.data.sources.files import File, Release
from undrift.data.sources.pictures import Pictures

Crop = Literal["none", "always", "half"]
CropHelp = "training pictures: always mirror (p 0.5) and crop (FedTrip), half: crop with p 0.5 too (FedMRUR), or none"


class Cifar10(Pictures):
    """50,000 + 10,000 colour pictures, 32 x 32, 10 classes; ImageNet's mean and deviation, as in FedTrip."""

    name = "cifar10"
    title = "CIFAR-10, colour pictures"
    homepage = "https://www.cs.toronto.edu/~kriz/cifar.html"
    licence = "none stated; cite Krizhevsky 2009"
    size = "170 MB"
    mean = (0.485, 0.456, 0.406)
    spread = (0.229, 0.224, 0.225)
    augment: Annotated[Crop, CropHelp] = "always"

    def releases(self) -> tuple[Release, ...]:
        binary = (
            ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
            ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
            ("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )
        python = (
            ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ("test_batch", "40351d587109b95175f43aff81a1287e"),
        )
        return (
            cifar_release(
                "binary", "cifar-10-batches-bin", binary, "cifar-10-binary", "c32a1d4ab5d03f1284b67883e8d87530"
            ),
            cifar_release(
                "python", "cifar-10-batches-py", python, "cifar-10-python", "c58f30108f718f92721af3b95e74349a"
            ),
        )

    def augmentation(self) -> Augmentation | None:
        if self.augment == "none":
            return None
        return FlipCrop(4, self.fill(3), crop=1.0 if self.augment == "always" else 0.5)

    def part(self, path: Path, release: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        if release == "binary":
            x, labels = formats.read_cifar_bin(path, 1)
            return x, formats.check_labels(labels[:, 0], 10, path)
        x, y = formats.read_cifar_pickle(path, "labels")
        return x, formats.check_labels(y, 10, path)

    def read(self, root: Path, release: Release) -> Dataset:
        parts = [self.part(f.at(root), release.name) for f in release.files]
        x, y = np.concatenate([p[0] for p in parts[:-1]]), np.concatenate([p[1] for p in parts[:-1]])
        x_test, y_test = parts[-1]
        return self.dataset(
            self.scaled(x), y, self.scaled(x_test), y_test, self.count(), class_names=self.names(root, release)
        )

    def count(self) -> int:
        return 10

    def names(self, root: Path, release: Release) -> tuple[str, ...]:
        return ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar_release(name: str, folder: str, files: Sequence[tuple[str, str]], archive: str, digest: str) -> Release:
    tar = f"{archive}.tar.gz"
    return Release(
        name,
        tuple(File(f"{folder}/{n}", f"md5:{d}" if d else "") for n, d in files),
        (File(tar, f"md5:{digest}", f"https://www.cs.toronto.edu/~kriz/{tar}"),),
    )
