"""``Dataset``: a whole data set as tensors, made once and then only indexed.

Knows nothing of clients' shares (that is ``partition``), of training or of where published data sets live on
disk (that is ``sources``). Everything a user brings along becomes a ``Dataset`` through one of its constructors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from undrift.core import rng
from undrift.core.errors import InvalidInput, unknown


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
    class_names: tuple[str, ...] = ()
    strata: NDArray[np.int64] | None = None  # what partitioners go by where it is not y (the digit, when y is even/odd)
    strata_test: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        for part, x, y in (("training", self.x, self.y), ("test", self.x_test, self.y_test)):
            if len(x) != len(y):
                raise InvalidInput(f"{self.name}: {len(x)} {part} inputs but {len(y)} labels")
        if len(self.x) == 0:
            raise InvalidInput(f"{self.name}: it has no training samples")
        if self.x.shape[1:] != self.x_test.shape[1:]:
            shapes = f"{tuple(self.x.shape[1:])} and {tuple(self.x_test.shape[1:])}"
            raise InvalidInput(f"{self.name}: training and test inputs differ in shape: {shapes}")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

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
        x: ArrayLike | Tensor,
        y: ArrayLike | Tensor,
        x_test: ArrayLike | Tensor | None = None,
        y_test: ArrayLike | Tensor | None = None,
        *,
        client: ArrayLike | None = None,
        client_test: ArrayLike | None = None,
        classes: int | None = None,
        regression: bool = False,
        standardise: bool = False,
        test_fraction: float = 0.2,
        seed: int = 0,
        name: str = "arrays",
        augment: Augmentation | None = None,
    ) -> Dataset:
        """A data set from arrays or tensors.

        Without a test set a share of ``test_fraction`` of the samples is held out: of each client where there is a
        client column, else of each class. Labels may be whole numbers from 0 on or texts (numbered in sorted order).
        """
        return _build(
            name,
            _Part(_array(x), _array(y), None if client is None else np.asarray(client)),
            None
            if x_test is None or y_test is None
            else _Part(_array(x_test), _array(y_test), None if client_test is None else np.asarray(client_test)),
            classes=classes,
            regression=regression,
            standardise=standardise,
            test_fraction=test_fraction,
            seed=seed,
            augment=augment,
        )

    @classmethod
    def from_torch(
        cls,
        train: torch.utils.data.Dataset[Any],
        test: torch.utils.data.Dataset[Any] | None = None,
        *,
        name: str = "torch",
        **options: Any,
    ) -> Dataset:
        """A data set from a map-style torch ``Dataset`` of (input, label) pairs, read once, here."""
        x, y = _collect(train, name)
        if test is None:
            return cls.from_arrays(x, y, name=name, **options)
        x_test, y_test = _collect(test, name)
        return cls.from_arrays(x, y, x_test, y_test, name=name, **options)

    @classmethod
    def from_csv(
        cls,
        path: str | Path,
        label: str,
        *,
        client: str | None = None,
        test: str | Path | None = None,
        features: Sequence[str] | None = None,
        delimiter: str = ",",
        **options: Any,
    ) -> Dataset:
        """A data set from a CSV file with a header. Every column but label and client is a feature unless listed."""
        from undrift.data import tables

        def read(file: str | Path) -> tables.Table:
            return tables.read_csv(Path(file), delimiter)

        return _from_tables(read, path, label, client, test, features, options)

    @classmethod
    def from_parquet(
        cls,
        path: str | Path,
        label: str,
        *,
        client: str | None = None,
        test: str | Path | None = None,
        features: Sequence[str] | None = None,
        **options: Any,
    ) -> Dataset:
        """The same from a Parquet file (needs pyarrow)."""
        from undrift.data import tables

        def read(file: str | Path) -> tables.Table:
            return tables.read_parquet(Path(file))

        return _from_tables(read, path, label, client, test, features, options)

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
    def from_image_folder(cls, path: str | Path, *, size: int = 64, grey: bool = False, **options: Any) -> Dataset:
        """A data set from ``path/CLASS/*.png`` (or jpg), or ``path/train/CLASS/..`` and ``path/test/CLASS/..``."""
        from undrift.data.images import image_folder

        path = Path(path)
        options.setdefault("name", path.name)
        return cls.from_arrays(**image_folder(path, size, grey), **options)


class InvalidFile:
    """Puts the name of the file in front of what is wrong with its content."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidInput) and str(self.path) not in str(error):
            raise InvalidInput(f"{self.path}: {error}") from None


@dataclass(frozen=True)
class _Part:
    x: NDArray[Any]
    y: NDArray[Any]
    client: NDArray[Any] | None


def _array(values: ArrayLike | Tensor) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def _collect(source: torch.utils.data.Dataset[Any], name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    try:
        count = len(source)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(f"{name}: a torch Dataset without a length cannot be split among clients") from None
    if count == 0:
        raise InvalidInput(f"{name}: the torch Dataset is empty")
    pairs = [source[i] for i in range(count)]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise InvalidInput(f"{name}: a torch Dataset must give (input, label) pairs")
    xs, ys = [_array(x) for x, _ in pairs], [_array(y) for _, y in pairs]
    for i, x in enumerate(xs):
        if x.shape != xs[0].shape:
            raise InvalidInput(f"{name}: sample {i} has shape {x.shape}, the first has {xs[0].shape}")
    return np.stack(xs), np.stack(ys)


def _from_tables(
    read: Any,
    path: str | Path,
    label: str,
    client: str | None,
    test: str | Path | None,
    features: Sequence[str] | None,
    options: Mapping[str, Any],
) -> Dataset:
    def part(file: str | Path, names: Sequence[str] | None) -> tuple[_Part, list[str]]:
        table = read(file)
        for column in (label, *([client] if client else []), *(names or ())):
            if column not in table.columns:
                raise InvalidInput(f"{file}: {unknown('column', column, table.columns)}")
        used = list(names) if names else [c for c in table.columns if c not in (label, client)]
        if not used:
            raise InvalidInput(f"{file}: no feature columns beside the label {label!r}")
        numeric = bool(options.get("regression"))
        y = table.numbers(label) if numeric else table.values(label)
        return _Part(table.matrix(used), y, table.values(client) if client else None), used

    train, used = part(path, features)
    held, _ = part(test, used) if test else (None, [])
    values: dict[str, Any] = {"standardise": True, "name": Path(path).stem, **options}
    with InvalidFile(Path(path)):
        return _build(values.pop("name"), train, held, first_row=2, **values)


def _build(
    name: str,
    train: _Part,
    test: _Part | None,
    *,
    classes: int | None = None,
    regression: bool = False,
    standardise: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    augment: Augmentation | None = None,
    first_row: int = 0,
) -> Dataset:
    """Check, number the labels, hold out a test part, standardise; ``first_row`` is how the user counts rows."""
    for part in (train, test):
        if part is not None:
            _check(part, first_row)
    names: tuple[str, ...] = ()
    y = train.y if test is None else np.concatenate([train.y, test.y])
    if regression:
        y = _finite(_float(y), "target", first_row)
    else:
        y, names, classes = _number(y, classes, first_row)
    y, y_held = y[: len(train.y)], y[len(train.y) :]
    if test is None:
        groups = train.client if train.client is not None else np.zeros(len(y)) if regression else y
        held = _hold_out(groups, test_fraction, seed)
        test = _Part(train.x[held], y[held], None if train.client is None else train.client[held])
        train = _Part(train.x[~held], y[~held], None if train.client is None else train.client[~held])
        y, y_held = train.y, test.y
    x, x_test = _float(train.x), _float(test.x)
    if standardise:
        mean, spread = x.mean(axis=0, dtype=np.float64), x.std(axis=0, dtype=np.float64)
        spread[spread < 1e-8] = 1.0  # a constant column carries nothing and must not become NaN
        x, x_test = ((part - mean).astype(np.float32) / spread.astype(np.float32) for part in (x, x_test))
    kind = np.float32 if regression else np.int64
    return Dataset(
        name,
        torch.from_numpy(np.ascontiguousarray(x)),
        torch.from_numpy(y.astype(kind)),
        torch.from_numpy(np.ascontiguousarray(x_test)),
        torch.from_numpy(y_held.astype(kind)),
        None if regression else classes,
        client=train.client,
        client_test=test.client,
        augment=augment,
        class_names=names,
    )


def _check(part: _Part, first_row: int) -> None:
    if len(part.x) != len(part.y):
        raise InvalidInput(f"{len(part.x)} inputs but {len(part.y)} labels")
    if len(part.x) == 0:
        raise InvalidInput("it has no samples")
    if part.client is not None and len(part.client) != len(part.x):
        raise InvalidInput(f"{len(part.x)} inputs but {len(part.client)} client labels")
    _finite(_float(part.x), "value", first_row)


def _float(values: NDArray[Any]) -> NDArray[np.float32]:
    try:
        return values.astype(np.float32, copy=False)
    except (ValueError, TypeError):
        raise InvalidInput(f"inputs must be numbers, these are {values.dtype}") from None


def _finite(values: NDArray[np.float32], what: str, first_row: int) -> NDArray[np.float32]:
    bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    if bad.any():
        raise InvalidInput(f"row {int(bad.argmax()) + first_row} holds a {what} that is not a finite number")
    return values


def _number(y: NDArray[Any], classes: int | None, first_row: int) -> tuple[NDArray[np.int64], tuple[str, ...], int]:
    """Labels as 0..classes-1, with their names where they had to be numbered."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise InvalidInput(f"labels must be one number or text per sample, not an array of shape {y.shape[1:]}")
    if y.dtype.kind == "f":
        whole = np.isfinite(y) & (y == np.floor(y))
        if not whole.all():
            row = int((~whole).argmax())
            raise InvalidInput(f"row {row + first_row} has the label {y[row]}: classes are whole numbers")
        y = y.astype(np.int64)
    if y.dtype.kind in "iub" and first_row == 0:
        y = y.astype(np.int64)
        top = int(y.max()) if classes is None else classes - 1
        bad = (y < 0) | (y > top)
        if bad.any():
            row = int(bad.argmax())
            raise InvalidInput(f"row {row + first_row} has the label {int(y[row])}: labels are 0 to {top}")
        return y, (), max(top + 1, 2)
    values, numbered = np.unique(y, return_inverse=True)
    if classes is not None and len(values) > classes:
        raise InvalidInput(f"{len(values)} different labels, but classes = {classes}")
    if len(values) < 2:
        raise InvalidInput(f"every label is {values.tolist()[0]!r}: a classification needs at least two classes")
    return numbered.astype(np.int64), tuple(str(v) for v in values.tolist()), classes or len(values)


def _hold_out(groups: NDArray[Any], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which samples to hold out: the share ``fraction`` of every group, in a keyed order, never a whole group."""
    if not 0 < fraction < 1:
        raise InvalidInput(f"test_fraction = {fraction}: it must be between 0 and 1")
    count = len(groups)
    inverse = np.unique(groups, return_inverse=True)[1].reshape(-1)
    order = rng.permutation(rng.key(seed, "hold out"), count)
    order = order[np.argsort(inverse[order], kind="stable")]  # grouped, random inside a group
    sizes = np.bincount(inverse)
    starts = np.cumsum(sizes) - sizes
    taken = np.minimum((sizes * fraction + 0.5).astype(np.int64), sizes - 1)
    if not taken.any():
        raise InvalidInput(f"{count} samples in {len(sizes)} groups are too few to hold out a test set")
    rank = np.arange(count) - starts[inverse[order]]
    held = np.zeros(count, bool)
    held[order[rank < taken[inverse[order]]]] = True
    return held
