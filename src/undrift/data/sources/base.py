"""``Source``: a data set by name. ``Published``: one that lives in files with known names, addresses and checksums."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from undrift.core.errors import InvalidInput
from undrift.core.settings import Settings, between
from undrift.data.dataset import Augmentation, Dataset
from undrift.data.sources import cache, files
from undrift.data.sources.files import Release

Fraction = Annotated[float, "share held out for testing", between(0, 1, open_low=True, open_high=True)]


class Source(Settings):
    """A data set by name, with its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    homepage: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    size: ClassVar[str] = ""  # of what is downloaded
    own: ClassVar[bool] = False  # a user's file, not a published data set
    natural: ClassVar[bool] = False  # it comes with its clients: people, patients, hospitals

    def load(self, root: Path) -> Dataset:
        raise NotImplementedError

    @classmethod
    def names_clients(cls, options: Mapping[str, Any], root: Path) -> bool:
        """Do the data say who the clients are? Then the partition ``column`` is the one that is meant."""
        return cls.natural


class Published(Source):
    """A data set in files: found in one of its releases, checked, decoded once, kept as memory-mapped arrays."""

    verify: Annotated[bool, "refuse files whose checksum is not the published one"] = True

    def releases(self) -> tuple[Release, ...]:
        """The forms it is published in, the one to download first."""
        raise NotImplementedError

    def read(self, root: Path, release: Release) -> Dataset:
        raise NotImplementedError

    def augmentation(self) -> Augmentation | None:
        return None

    def find(self, root: Path) -> Release:
        """The release that is there, or a sentence that says what is missing."""
        releases = self.releases()
        for release in releases:
            if not release.missing(root):
                return release
        best = min(releases, key=lambda release: len(release.missing(root)) / len(release.files))
        missing = best.missing(root)
        if len(missing) < len(best.files):
            raise InvalidInput(f"{self.name}: {', '.join(missing)} is missing in {root}")
        wanted = ", ".join(f.path for f in releases[0].files[:4]) + (" and so on" if len(releases[0].files) > 4 else "")
        raise InvalidInput(f"{self.name} is not in {root}: run `undrift data fetch {self.name}`, or put there {wanted}")

    def load(self, root: Path) -> Dataset:
        release = self.find(root)
        if self.verify:
            files.verify(release, root)
        options = {k: v for k, v in self.values().items() if k not in ("verify", "augment")}  # change no array
        key = cache.key_of(self.name, options, release, root)
        return cache.cached(root, key, self.augmentation(), lambda: self.read(root, release))

    def dataset(self, x: Any, y: Any, x_test: Any, y_test: Any, classes: int, **more: Any) -> Dataset:
        """A ``Dataset`` of these arrays, as this source names and augments it."""
        a, b, c, d = (torch.from_numpy(np.ascontiguousarray(each)) for each in (x, y, x_test, y_test))
        return Dataset(self.name, a, b, c, d, classes, augment=self.augmentation(), **more)
