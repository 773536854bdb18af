"""Users' own files as sources, so that the command line and experiment files can name them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from undrift.core.settings import at_least
from undrift.data.dataset import Dataset
from undrift.data.formats import names_in_npz
from undrift.data.sources.base import Fraction, Source

Lazy = Annotated[bool, "decoded data lie in temporary files instead of memory: for data larger than memory"]


class _Own(Source):
    """A user's own file."""

    own = True
    path: Annotated[str, "the file or folder"]
    test_fraction: Fraction = 0.2

    def file(self, root: Path) -> Path:
        return _place(self.path, root)


def _place(path: str, root: Path) -> Path:
    """The path as given, or below the data root."""
    given = Path(path).expanduser()
    if given.exists() or not (root / given).exists():
        return given
    return root / given


class _Table(_Own):
    label: Annotated[str, "the column with the label"]
    client: Annotated[str | None, "the column with the client, for the partition 'column'"] = None
    test: Annotated[str | None, "a second file to test on; none: hold out test_fraction"] = None
    regression: Annotated[bool, "the label is a number to predict, not a class"] = False
    features: Annotated[str | None, "columns to use, with commas between; left out: all others"] = None
    drop: Annotated[str | None, "columns to leave out, with commas between"] = None
    missing: Annotated[
        Literal["refuse", "median", "mean"], "missing values: refuse them, or fill in the client's own median or mean"
    ] = "refuse"

    @classmethod
    def names_clients(cls, options: Mapping[str, Any], root: Path) -> bool:
        return bool(options.get("client"))

    def options(self) -> dict[str, Any]:
        held = {"test_fraction": self.test_fraction, "regression": self.regression, "missing": self.missing}
        columns = {"features": _columns(self.features) or None, "drop": _columns(self.drop)}
        return {"label": self.label, "client": self.client, "test": self.test, **columns, **held}


def _columns(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


class Csv(_Table):
    """A CSV file with a header: one row per sample, a label column, optionally a client column."""

    name = "csv"
    title = "your CSV file"
    delimiter: Annotated[str, "between two values"] = ","

    def load(self, root: Path) -> Dataset:
        return Dataset.from_csv(self.file(root), delimiter=self.delimiter, **self.options())


class Parquet(_Table):
    """A Parquet file: one row per sample, a label column, optionally a client column."""

    name = "parquet"
    title = "your Parquet file"
    lazy: Lazy = False

    def load(self, root: Path) -> Dataset:
        return Dataset.from_parquet(self.file(root), lazy=self.lazy, **self.options())


class Npz(_Own):
    """An .npz file with the arrays x and y, optionally x_test, y_test, client, client_test."""

    name = "npz"
    title = "your .npz file"
    regression: Annotated[bool, "y holds numbers to predict, not classes"] = False

    @classmethod
    def names_clients(cls, options: Mapping[str, Any], root: Path) -> bool:
        return "client" in names_in_npz(_place(str(options.get("path", "")), root))

    def load(self, root: Path) -> Dataset:
        return Dataset.from_npz(self.file(root), regression=self.regression, test_fraction=self.test_fraction)


class Npy(_Own):
    """A folder with x.npy and y.npy, optionally x_test.npy and so on: memory-mapped, for data larger than memory."""

    name = "npy"
    title = "your folder of .npy files"
    regression: Annotated[bool, "y holds numbers to predict, not classes"] = False

    @classmethod
    def names_clients(cls, options: Mapping[str, Any], root: Path) -> bool:
        return (_place(str(options.get("path", "")), root) / "client.npy").exists()

    def load(self, root: Path) -> Dataset:
        return Dataset.from_npy(self.file(root), regression=self.regression, test_fraction=self.test_fraction)


class Images(_Own):
    """A folder with one folder of pictures per class (or train/ and test/ with those)."""

    name = "images"
    title = "your folder of pictures"
    pixels: Annotated[int, "pictures are resized to so many pixels a side", at_least(8)] = 64
    grey: Annotated[bool, "one channel instead of three"] = False
    scale: Annotated[Literal["standard", "unit"], "pixels: standard (-1 to 1) or unit (0 to 1)"] = "standard"
    lazy: Lazy = False

    def load(self, root: Path) -> Dataset:
        options: dict[str, Any] = {"size": self.pixels, "grey": self.grey, "scale": self.scale, "lazy": self.lazy}
        return Dataset.from_image_folder(self.file(root), test_fraction=self.test_fraction, **options)
