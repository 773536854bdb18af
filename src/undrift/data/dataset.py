"""``Dataset``: a whole data set as tensors, made once and then only indexed.

Knows nothing of clients' shares (that is ``partition``), of training or of where published data sets live on
disk (that is ``sources``). Everything a user brings along becomes a ``Dataset`` through one of its constructors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.data.build import InvalidFile, Missing, Part, fields
from undrift.data.rows import Rows, Samples, in_files, in_memory, mapped_folder, picture_folder
from undrift.data.tables import Table, open_parquet, read_csv, read_parquet


class Augmentation(Protocol):
    """A random change of a batch of inputs, a pure function of the batch and the key."""

    def __call__(self, batch: Tensor, key: int, /) -> Tensor: ...


@dataclass(frozen=True)
class Dataset:
    """Training and test samples of one task. The first axis of ``x`` and ``y`` is the sample."""

    name: str
    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int | None  # None: regression, y holds float targets
    client: NDArray[Any] | None = None  # natural client (subject, patient, column) of each training sample
    client_test: NDArray[Any] | None = None
    augment: Augmentation | None = None
    class_names: tuple[str, ...] = ()  # one per class; their numbers where nobody named them
    strata: NDArray[np.int64] | None = None  # what partitioners go by where it is not y (the digit, when y is even/odd)
    strata_test: NDArray[np.int64] | None = None
    feature_names: tuple[str, ...] = ()  # of tables

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise InvalidInput(f"{self.name}: {len(x)} {part} inputs but {len(y)} labels")
        if len(self.x) == 0:
            raise InvalidInput(f"{self.name}: it has no training samples")
        if self.x.shape[1:] != self.x_test.shape[1:]:
            shapes = f"{tuple(self.x.shape[1:])} and {tuple(self.x_test.shape[1:])}"
            raise InvalidInput(f"{self.name}: training and test inputs differ in shape: {shapes}")
        named, classes = len(self.class_names), self.classes or 0
        if named > classes:
            raise InvalidInput(f"{self.name}: {named} names for {classes} classes")
        numbers = tuple(str(i) for i in range(named, classes))
        object.__setattr__(self, "class_names", (*self.class_names, *numbers))

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    def as_numbers(self) -> Dataset:
        """The data set with inputs that are whole numbers as floats, for models that take no others."""
        if self.x.dtype.is_floating_point:
            return self
        return replace(self, x=self.x.float(), x_test=self.x_test.float())

    @property
    def outputs(self) -> int:
        """How many numbers a model gives per sample: one per class, or one per target."""
        return self.classes if self.classes is not None else math.prod(self.y.shape[1:])

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """What label-based partitioners go by, or None for regression."""
        if self.strata is not None:
            return self.strata
        return None if self.classes is None else self.y.numpy().astype(np.int64, copy=False)

    @property
    def labels_test(self) -> NDArray[np.int64] | None:
        if self.strata_test is not None:
            return self.strata_test
        return None if self.classes is None else self.y_test.numpy().astype(np.int64, copy=False)

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of ``labels``: of the classes, or the numbers of what partitioners go by instead."""
        if self.strata is None:
            return self.class_names
        return tuple(str(i) for i in range(int(self.strata.max()) + 1))

    @property
    def fingerprint(self) -> str:
        """A hash of the content and of the augmentation."""
        return hashlib.sha256(f"{self.content} {self.augment!r}".encode()).hexdigest()[:16]

    @cached_property
    def content(self) -> str:
        """A hash of samples, labels and natural clients; made once, and kept with decoded caches."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y, self.x_test, self.y_test):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(np.ascontiguousarray(tensor.numpy()).view(np.uint8).data if tensor.numel() else b"")
        for labels in (self.client, self.client_test, self.strata, self.strata_test):
            digest.update(b"-" if labels is None else "\n".join(map(str, labels.tolist())).encode())
        return digest.hexdigest()

    @classmethod
    def from_arrays(
        cls,
        x: ArrayLike | Tensor | Rows,
        y: ArrayLike | Tensor,
        x_test: ArrayLike | Tensor | Rows | None = None,
        y_test: ArrayLike | Tensor | None = None,
        *,
        client: ArrayLike | None = None,
        client_test: ArrayLike | None = None,
        classes: int | None = None,
        class_names: Sequence[str] = (),
        regression: bool = False,
        missing: Missing = "refuse",
        standardise: bool = False,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "arrays",
        augment: Augmentation | None = None,
        lazy: bool = False,
    ) -> Dataset:
        """A data set from arrays or tensors.

        Without a test set a share of ``test_fraction`` of the samples is held out: of each client where there is a
        client column, else of each class. Labels may be whole numbers from 0 on or texts (numbered in sorted order).
        With ``missing`` NaNs are replaced by the median or mean of the client's own training rows. With ``lazy`` what
        has to be made lies in temporary files instead of memory: the same bits, for data larger than memory.
        """
        train = Part.of(x, y, client)
        test = None if x_test is None or y_test is None else Part.of(x_test, y_test, client_test)
        options: dict[str, Any] = {"classes": classes, "regression": regression, "standardise": standardise}
        options["room"] = in_files if lazy else in_memory
        made = fields(train, test, missing=missing, test_fraction=test_fraction, seed=seed, **options)
        if class_names:
            made["class_names"] = tuple(class_names)
        return cls(name, augment=augment, **made)

    @classmethod
    def from_torch(
        cls,
        train: torch.utils.data.Dataset[Any],
        test: torch.utils.data.Dataset[Any] | None = None,
        *,
        name: str = "torch",
        lazy: bool = False,
        **options: Any,
    ) -> Dataset:
        """A data set from a map-style torch ``Dataset`` of (input, label) pairs, read once, here.

        With ``lazy`` it is read twice, first for the labels alone, and lies in temporary files instead of memory.
        """
        arrays: list[Any] = []
        for source in (train,) if test is None else (train, test):
            samples = Samples(source, name)
            arrays += (samples, samples.labels()) if lazy else samples.everything()
        return cls.from_arrays(*arrays, name=name, lazy=lazy, **options)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        label: str,
        *,
        client: str | None = None,
        test: str | Path | None = None,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        delimiter: str = ",",
        **options: Any,
    ) -> Dataset:
        """A data set from a CSV file with a header.

        Every column but label, client and those dropped is a feature, unless ``features`` lists them. A column of texts
        becomes one column of zeros and ones for each of its texts. ``missing="median"`` (or ``"mean"``) fills gaps from
        the client's own training rows.
        """

        def read(file: str | Path) -> Table:
            return read_csv(Path(file), delimiter)

        return _from_tables(read, path, label, client, test, features, drop, options)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        label: str,
        *,
        client: str | None = None,
        test: str | Path | None = None,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        lazy: bool = False,
        **options: Any,
    ) -> Dataset:
        """The same from a Parquet file (needs pyarrow). With ``lazy`` one row group is in memory at a time."""
        options["room"] = in_files if lazy else in_memory

        def read(file: str | Path) -> Table:
            return open_parquet(Path(file)) if lazy else read_parquet(Path(file))

        return _from_tables(read, path, label, client, test, features, drop, options)

    @classmethod
    def from_npz(cls, path: str | Path, **options: Any) -> Dataset:
        """A data set from an ``.npz``: ``x``, ``y``; optionally ``x_test``, ``y_test``, ``client``, ``client_test``."""
        from undrift.data.formats import read_npz

        path = Path(path)
        arrays: dict[str, Any] = read_npz(path, ("x", "y"), ("x_test", "y_test", "client", "client_test"))
        options.setdefault("name", path.stem)
        with InvalidFile(path):
            return cls.from_arrays(**arrays, **options)

    @classmethod
    def from_npy(cls, path: str | Path, **options: Any) -> Dataset:
        """A data set from a folder with ``x.npy`` and ``y.npy`` (and ``x_test.npy`` and so on, as in an ``.npz``).

        The inputs are memory-mapped: read when they are looked at, never all at once.
        """
        path = Path(path)
        options.setdefault("name", path.name)
        with InvalidFile(path):
            return cls.from_arrays(**mapped_folder(path), lazy=True, **options)

    @classmethod
    def from_image_folder(
        cls,
        path: str | Path,
        *,
        size: int = 64,
        grey: bool = False,
        scale: Literal["standard", "unit"] = "standard",
        lazy: bool = False,
        **options: Any,
    ) -> Dataset:
        """A data set from ``path/CLASS/*.png`` (or jpg), or ``path/train/CLASS/..`` and ``path/test/CLASS/..``.

        Pixels are brought to -1 to 1, or to 0 to 1 with ``scale="unit"``. With ``lazy`` pictures are decoded into
        temporary files instead of memory.
        """
        path = Path(path)
        options.setdefault("name", path.name)
        found = picture_folder(path, size, grey, scale == "unit")
        if not lazy:
            found |= {key: rows.whole() for key, rows in found.items() if isinstance(rows, Rows)}
        return cls.from_arrays(**found, lazy=lazy, **options)


def _from_tables(
    read: Callable[[str | Path], Table],
    path: str | Path,
    label: str,
    client: str | None,
    test: str | Path | None,
    features: Sequence[str] | None,
    drop: Sequence[str],
    options: Mapping[str, Any],
) -> Dataset:
    values: dict[str, Any] = {"standardise": True, "name": Path(path).stem, **options}
    gaps, numeric = values.get("missing", "refuse") != "refuse", bool(values.get("regression"))
    owner = (client,) if client else ()
    table = read(path)
    table.check(label, *owner, *(features or ()), *drop)
    used = [c for c in features or table.columns if c not in (label, *owner, *drop)]
    if not used:
        raise InvalidInput(f"{path}: no feature columns beside the label {label!r}")
    columns = [table.column(name) for name in used]

    def part(table: Table) -> Part:
        table.check(label, *owner, *used)
        y = table.numbers(label) if numeric else table.values(label)
        return Part(table.features(columns, gaps=gaps), y, table.values(client) if client else None)

    names = tuple(name for column in columns for name in column.features)
    name, augment = values.pop("name"), values.pop("augment", None)
    with InvalidFile(Path(path)):
        made = fields(part(table), part(read(test)) if test else None, first_row=2, names=names, **values)
    return Dataset(name, augment=augment, feature_names=names, **made)
