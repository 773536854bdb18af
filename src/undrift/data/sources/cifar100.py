"""CIFAR-100."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.data import formats, pickled
from undrift.data.bounds import content
from undrift.data.sources.cifar10 import Cifar10, Crop, CropHelp, cifar_release
from undrift.data.sources.files import Release


class Cifar100(Cifar10):
    """50,000 + 10,000 colour pictures, 32 x 32, 100 classes in 20 groups."""

    name = "cifar100"
    title = "CIFAR-100, colour pictures"
    size = "169 MB"
    mean = (0.5071, 0.4867, 0.4408)
    spread = (0.2675, 0.2565, 0.2761)
    augment: Annotated[Crop, CropHelp] = "half"
    labels: Annotated[Literal["fine", "coarse"], "100 classes or their 20 groups"] = "fine"

    def releases(self) -> tuple[Release, ...]:
        binary = (("train.bin", ""), ("test.bin", ""))
        python = (("train", "16019d7e3df5f24257cddd939b257f8d"), ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"))
        return (
            cifar_release("binary", "cifar-100-binary", binary, "cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8"),
            cifar_release("python", "cifar-100-python", python, "cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85"),
        )

    def count(self) -> int:
        return 100 if self.labels == "fine" else 20

    def names(self, root: Path, release: Release) -> tuple[str, ...]:
        """From the list that is published beside the pictures, where it is there."""
        folder, kind = release.files[0].at(root).parent, f"{self.labels}_label_names"
        try:
            if release.name == "binary":
                found = content(folder / f"{kind}.txt").decode().split()
            else:
                found = [name.decode() for name in pickled.read(content(folder / "meta"))[kind.encode()]]
        except (InvalidInput, KeyError, AttributeError, TypeError, UnicodeDecodeError):
            return ()
        return tuple(found) if len(found) == self.count() else ()

    def part(self, path: Path, release: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        if release == "binary":
            x, labels = formats.read_cifar_bin(path, 2)
            return x, formats.check_labels(labels[:, 1 if self.labels == "fine" else 0], self.count(), path)
        x, y = formats.read_cifar_pickle(path, f"{self.labels}_labels")
        return x, formats.check_labels(y, self.count(), path)
