"""OrganAMNIST, OrganCMNIST and OrganSMNIST: one collection of CT scans, sliced three ways."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.data import formats
from undrift.data.build import InvalidFile, hold_out
from undrift.data.dataset import Dataset
from undrift.data.sources.base import Fraction
from undrift.data.sources.files import File, Release
from undrift.data.sources.pictures import Pictures


class _Organ(Pictures):
    """MedMNIST v2: slices of abdominal CT scans, 28 x 28, 11 organs; mean and deviation 0.5."""

    homepage = "https://medmnist.com/"
    licence = "CC BY 4.0"
    digest: ClassVar[str]
    validation_part: Annotated[Literal["unused", "train"], "what the published validation part is for"] = "unused"
    split: Annotated[
        Literal["official", "pooled"], "the published test part; or all parts pooled, and test_fraction of each class"
    ] = "official"
    test_fraction: Fraction = 0.2

    def releases(self) -> tuple[Release, ...]:
        file, url = f"{self.name}.npz", "https://zenodo.org/records/10519652/files/"
        return tuple(Release(f or "flat", (File(f + file, self.digest, url + file),)) for f in ("medmnist/", ""))

    def read(self, root: Path, release: Release) -> Dataset:
        path = release.files[0].at(root)
        pooled = self.split == "pooled"
        parts = ("train", "test", *(("val",) if pooled or self.validation_part == "train" else ()))
        arrays = formats.read_npz(path, [f"{p}_{kind}" for p in parts for kind in ("images", "labels")])
        with InvalidFile(path):
            images, labels = {}, {}
            for p in parts:
                images[p], labels[p] = arrays[f"{p}_images"], arrays[f"{p}_labels"].reshape(-1)
                if images[p].shape != (len(labels[p]), 28, 28):
                    raise InvalidInput(f"{p}_images has the shape {images[p].shape} for {len(labels[p])} labels")
                labels[p] = formats.check_labels(labels[p], 11, path)
        x, y = (np.concatenate([found[p] for p in parts]) for found in (images, labels))
        held = np.repeat([p == "test" for p in parts], [len(labels[p]) for p in parts])
        if pooled:
            held = hold_out(y, self.test_fraction, 0)
        train, test = (self.scaled(x[chosen, None]) for chosen in (~held, held))
        return self.dataset(train, y[~held], test, y[held], 11, class_names=ORGANS)


ORGANS = (
    "bladder", "left femur", "right femur", "heart", "left kidney", "right kidney", "liver", "left lung", "right lung",
    "pancreas", "spleen",
)  # fmt: skip


class OrganA(_Organ):
    """Axial slices: 34,561 + 17,778."""

    name = "organamnist"
    title = "OrganAMNIST, axial CT slices"
    size = "38 MB"
    digest = "md5:68e3f8846a6bd62f0c9bf841c0d9eacc md5:866b832ed4eeba67bfb9edee1d5544e6"


class OrganC(_Organ):
    """Coronal slices: 12,975 + 8,216."""

    name = "organcmnist"
    title = "OrganCMNIST, coronal CT slices"
    size = "16 MB"
    digest = "md5:0afa5834fb105f7705a7d93372119a21"


class OrganS(_Organ):
    """Sagittal slices: 13,932 + 8,827."""

    name = "organsmnist"
    title = "OrganSMNIST, sagittal CT slices"
    size = "16 MB"
    digest = "md5:e5c39f1af030238290b9557d9503af9d"
