"""EMNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from numpy.typing import NDArray

from undrift.data import formats
from undrift.data.augment import FlipAffine
from undrift.data.dataset import Augmentation
from undrift.data.sources.files import File, Release
from undrift.data.sources.idx import Idx


class Emnist(Idx):
    """EMNIST balanced: 112,800 + 18,800 letters and digits, 47 classes, 28 x 28, upright; mean and deviation 0.5."""

    name = "emnist"
    title = "EMNIST balanced, letters and digits"
    homepage = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
    licence = "see its page"
    size = "see its page"
    folder = "EMNIST"
    classes = 47
    mean = (0.5,)
    spread = (0.5,)
    called = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
    files = tuple(
        (f"emnist-balanced-{part}-{kind}-ubyte.gz", "")
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    )
    augment: Annotated[
        Literal["none", "affine"], "training pictures: mirror, rotate, shift and scale (FedTrip), or none"
    ] = "affine"

    def releases(self) -> tuple[Release, ...]:
        raw, flat = super().releases()
        url = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
        archive = File("EMNIST/raw/gzip.zip", "md5:58c8d27c78d21e728a6bc7b3cc06412e", url)
        return Release("zip", (archive,)), raw, flat

    def arrays(self, root: Path, release: Release) -> list[tuple[NDArray[Any], Path]]:
        if release.name == "zip":
            path = release.files[0].at(root)
            found = [(formats.idx_from_zip(path, name), path / name) for name, _ in self.files]
        else:
            found = super().arrays(root, release)
        # Published sideways: rows and columns are exchanged.
        return [(a.transpose(0, 2, 1) if a.ndim == 3 else a, path) for a, path in found]

    def augmentation(self) -> Augmentation | None:
        return FlipAffine(10.0, 0.2, (0.8, 1.2), fill=self.fill(1)[0]) if self.augment == "affine" else None
