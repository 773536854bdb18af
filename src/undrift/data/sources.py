"""The data sets undrift can load by name.

A source knows its files, its official address and licence, and how to make a ``Dataset`` of them. It knows nothing
of partitions or models.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar

from undrift.core.errors import InvalidInput, unknown
from undrift.core.settings import Settings, at_least, between
from undrift.data.dataset import Dataset


def data_root(explicit: Path | str | None = None) -> Path:
    """Where data sets live: the folder given, else ``UNDRIFT_DATA``, else the user's cache."""
    if explicit:
        return Path(explicit).expanduser()
    if os.environ.get("UNDRIFT_DATA"):
        return Path(os.environ["UNDRIFT_DATA"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "undrift" / "data"


class Source(Settings):
    """A data set by name, with its options."""

    name: ClassVar[str]
    title: ClassVar[str]
    homepage: ClassVar[str] = ""
    licence: ClassVar[str] = ""
    size: ClassVar[str] = ""
    model: ClassVar[str] = "mlp"  # the model to start with

    def load(self, root: Path) -> Dataset:
        raise NotImplementedError


class Digits(Source):
    """Handwritten digits, 8 x 8, embedded in scikit-learn: no download."""

    name = "digits"
    title = "Handwritten digits, 1,797 of 8 x 8"
    homepage = "https://archive.ics.uci.edu/dataset/80"
    licence = "CC BY 4.0"
    size = "embedded"
    model = "mlp"

    def load(self, root: Path) -> Dataset:
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise InvalidInput("the digits come with scikit-learn: pip install 'undrift[data]'") from None
        x, y = load_digits(return_X_y=True)
        return Dataset.from_arrays((x / 16).reshape(-1, 1, 8, 8), y, classes=10, name=self.name)


class _Own(Source):
    """A user's own file."""

    path: Annotated[str, "the file or folder"]
    test_fraction: Annotated[float, "share held out for testing", between(0, 1, open_low=True, open_high=True)] = 0.2

    def file(self, root: Path) -> Path:
        """The path as given, or below the data root."""
        given = Path(self.path).expanduser()
        if given.exists() or not (root / given).exists():
            return given
        return root / given


class Csv(_Own):
    """A CSV file with a header: one row per sample, a label column, optionally a client column."""

    name = "csv"
    title = "Your CSV file"
    label: Annotated[str, "the column with the label"]
    client: Annotated[str | None, "the column with the client, for the partition 'column'"] = None
    test: Annotated[str | None, "a second file to test on; none: hold out test_fraction"] = None
    regression: Annotated[bool, "the label is a number to predict, not a class"] = False
    delimiter: Annotated[str, "between two values"] = ","

    def load(self, root: Path) -> Dataset:
        return Dataset.from_csv(
            self.file(root),
            self.label,
            client=self.client,
            test=self.test,
            delimiter=self.delimiter,
            regression=self.regression,
            test_fraction=self.test_fraction,
        )


class Parquet(_Own):
    """A Parquet file: one row per sample, a label column, optionally a client column."""

    name = "parquet"
    title = "Your Parquet file"
    label: Annotated[str, "the column with the label"]
    client: Annotated[str | None, "the column with the client, for the partition 'column'"] = None
    test: Annotated[str | None, "a second file to test on; none: hold out test_fraction"] = None
    regression: Annotated[bool, "the label is a number to predict, not a class"] = False

    def load(self, root: Path) -> Dataset:
        return Dataset.from_parquet(
            self.file(root),
            self.label,
            client=self.client,
            test=self.test,
            regression=self.regression,
            test_fraction=self.test_fraction,
        )


class Npz(_Own):
    """An .npz file with the arrays x and y, optionally x_test, y_test, client, client_test."""

    name = "npz"
    title = "Your .npz file"
    regression: Annotated[bool, "y holds numbers to predict, not classes"] = False

    def load(self, root: Path) -> Dataset:
        return Dataset.from_npz(self.file(root), regression=self.regression, test_fraction=self.test_fraction)


class Images(_Own):
    """A folder with one folder of pictures per class (or train/ and test/ with those)."""

    name = "images"
    title = "Your folder of pictures"
    model = "lenet"
    pixels: Annotated[int, "pictures are resized to so many pixels a side", at_least(8)] = 64
    grey: Annotated[bool, "one channel instead of three"] = False

    def load(self, root: Path) -> Dataset:
        return Dataset.from_image_folder(
            self.file(root), size=self.pixels, grey=self.grey, test_fraction=self.test_fraction
        )


SOURCES: dict[str, type[Source]] = {kind.name: kind for kind in (Digits, Csv, Parquet, Npz, Images)}


def load(name: str, root: Path | str | None = None, **options: Any) -> Dataset:
    """``load("mnist")``, ``load("ucihar", form="features")``, ``load("csv", path="my.csv", label="y")``."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name].create(**options).load(data_root(root))
