"""Pictures with and without fire."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from undrift.core.errors import InvalidInput
from undrift.core.settings import at_least
from undrift.data.dataset import Dataset
from undrift.data.images import list_classes, read_images
from undrift.data.sources.files import File, Release
from undrift.data.sources.pictures import Pictures


class Fire(Pictures):
    """Pictures with and without fire (Dunnings and Breckon 2018): 224 x 224, resized."""

    name = "fire"
    title = "fire detection pictures"
    homepage = "https://doi.org/10.15128/r2d217qp536"
    licence = "see its page"
    size = "10.5 GB"
    pixels: Annotated[int, "resize to so many pixels a side", at_least(8)] = 64

    def releases(self) -> tuple[Release, ...]:
        folder = "fire-dataset-dunnings/images-224x224"
        url = "https://collections.durham.ac.uk/downloads/r2d217qp536"
        archive = File("fire-dataset-dunnings.zip", "md5:44c56cd3df8931c28b02910d35a4d105", url)
        return (Release("folder", (File(f"{folder}/train"), File(f"{folder}/test")), (archive,)),)

    def read(self, root: Path, release: Release) -> Dataset:
        parts = []
        for file in release.files:
            names, paths, labels = list_classes(file.at(root))
            if names != ["fire", "nofire"]:
                raise InvalidInput(f"{file.at(root)}: it must hold the folders fire and nofire, not {', '.join(names)}")
            parts.append((self.scaled(read_images(paths, self.pixels, grey=False)), 1 - labels))
        (x, y), (x_test, y_test) = parts
        return self.dataset(x, y, x_test, y_test, 2, class_names=("no fire", "fire"))
