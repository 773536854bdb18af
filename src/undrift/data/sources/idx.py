"""Picture sets in four IDX files, as MNIST was published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.data import formats
from undrift.data.dataset import Dataset
from undrift.data.sources.files import File, Release
from undrift.data.sources.pictures import Pictures


class Idx(Pictures):
    """Four IDX files: training and test pictures and labels."""

    folder: ClassVar[str]
    files: ClassVar[tuple[tuple[str, str], ...]]  # name and md5: train images, train labels, test images, test labels
    url: ClassVar[str] = ""
    classes: ClassVar[int] = 10
    mean = (0.1307,)
    spread = (0.3081,)
    called: ClassVar[tuple[str, ...]] = ()

    def releases(self) -> tuple[Release, ...]:
        def listed(folder: str) -> tuple[File, ...]:
            return tuple(File(f"{folder}/{n}", f"md5:{d}" if d else "", self.url + n) for n, d in self.files)

        return Release("raw", listed(f"{self.folder}/raw")), Release("flat", listed(self.folder))

    def arrays(self, root: Path, release: Release) -> list[tuple[NDArray[Any], Path]]:
        return [(formats.read_idx(path), path) for path in (f.at(root) for f in release.files)]

    def read(self, root: Path, release: Release) -> Dataset:
        (x, px), (y, py), (x_test, pt), (y_test, pyt) = self.arrays(root, release)
        for images, labels, path in ((x, y, px), (x_test, y_test, pt)):
            if images.ndim != 3 or len(images) != len(labels):
                raise InvalidInput(f"{path}: {images.shape} pictures for {labels.shape} labels")
        return self.dataset(
            self.scaled(x[:, None]),
            formats.check_labels(y, self.classes, py),
            self.scaled(x_test[:, None]),
            formats.check_labels(y_test, self.classes, pyt),
            self.classes,
            class_names=self.called,
        )


class IdxOrParity(Idx):
    """MNIST and Fashion-MNIST: optionally with the labels made binary."""

    labels: Annotated[
        Literal["class", "parity"], "parity: even or odd (FedADM's SVM); partitions still go by class"
    ] = "class"

    def read(self, root: Path, release: Release) -> Dataset:
        made = super().read(root, release)
        if self.labels == "class":
            return made
        return self.dataset(
            made.x.numpy(),
            made.y.numpy() % 2,
            made.x_test.numpy(),
            made.y_test.numpy() % 2,
            2,
            strata=made.labels,
            strata_test=made.labels_test,
            class_names=("even", "odd"),
        )
