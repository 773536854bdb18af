"""From a user's arrays to what a ``Dataset`` holds: checked, labels numbered, a test part held out, standardised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from undrift.core import rng
from undrift.core.errors import InvalidInput
from undrift.data.gaps import fill
from undrift.data.rows import BLOCK, Mapped, Room, Rows, blocks, in_memory

Missing = Literal["refuse", "median", "mean"]  # what becomes of missing values
MOST_CLASSES = 1000  # more than that need at least half as many samples


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
class Part:
    """Samples to train on, or to test on."""

    x: NDArray[Any] | Rows
    y: NDArray[Any]
    client: NDArray[Any] | None

    @staticmethod
    def of(x: ArrayLike | Tensor | Rows, y: ArrayLike | Tensor, client: ArrayLike | None) -> Part:
        inputs = x if isinstance(x, Rows) else as_array(x)
        return Part(inputs, as_array(y), None if client is None else np.asarray(client))


def as_array(values: ArrayLike | Tensor) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def fields(
    train: Part,
    test: Part | None,
    *,
    classes: int | None = None,
    regression: bool = False,
    standardise: bool = False,
    test_fraction: float = 0.2,
    seed: int = 0,
    missing: Missing = "refuse",
    first_row: int = 0,
    names: tuple[str, ...] = (),
    room: Room = in_memory,
) -> dict[str, Any]:
    """Check, number the labels, hold out a test part, fill gaps, standardise.

    ``first_row`` is how the user counts rows, ``names`` what the columns are called, ``room`` where arrays are made.
    """
    if missing != "refuse" and room is not in_memory:
        raise InvalidInput(f"missing = {missing!r} needs the data in memory: leave out lazy, or fill the gaps first")
    for part in (train, test):
        if part is not None:
            _check(part, first_row, gaps=missing != "refuse")
    classes_named: tuple[str, ...] = ()
    y = train.y if test is None else np.concatenate([train.y, test.y])
    if regression:
        y = _finite(_float(y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y), "target", first_row)
    else:
        y, classes_named, classes = _number(y, classes, first_row)
    y, y_held = y[: len(train.y)], y[len(train.y) :]
    if test is None:
        groups = train.client if train.client is not None else np.zeros(len(y)) if regression else y
        held = hold_out(groups, test_fraction, seed)
        chosen = [np.flatnonzero(~held), np.flatnonzero(held)]
        x, x_test = (_taken(train.x, rows, first_row, room) for rows in chosen)
        train, test = (
            Part(part, y[rows], None if train.client is None else train.client[rows])
            for part, rows in zip((x, x_test), chosen, strict=True)
        )
        y, y_held = train.y, test.y
    else:
        x, x_test = (_taken(part.x, None, first_row, room) for part in (train, test))
    if missing != "refuse":
        if x.ndim != 2:
            raise InvalidInput(f"missing = {missing!r} is for tables, not for inputs of shape {x.shape[1:]}")
        x, x_test = fill(_float(x), _float(x_test), train.client, test.client, missing, names)
    if standardise:
        mean, spread = x.mean(axis=0, dtype=np.float64), _spread(x)
        spread[spread < 1e-8] = 1.0  # a constant column carries nothing and must not become NaN
        x, x_test = (_standardised(part, mean, spread, room) for part in (x, x_test))
    kind = np.float32 if regression else np.int64
    return {
        "x": torch.from_numpy(np.ascontiguousarray(x)),
        "y": torch.from_numpy(y.astype(kind)),
        "x_test": torch.from_numpy(np.ascontiguousarray(x_test)),
        "y_test": torch.from_numpy(y_held.astype(kind)),
        "classes": None if regression else classes,
        "client": train.client,
        "client_test": test.client,
        "class_names": classes_named,
    }


def _taken(x: NDArray[Any] | Rows, rows: NDArray[np.int64] | None, first_row: int, room: Room) -> NDArray[Any]:
    """Some rows of the inputs (all: None), as an array. What is read some at a time is checked here."""
    if not isinstance(x, Rows):
        return _inputs(x if rows is None else x[rows])
    rows = np.arange(len(x)) if rows is None else rows
    kind = _inputs(x.take(rows[:1]))
    ready = isinstance(x, Mapped) and len(rows) == len(x) and x.array.dtype == kind.dtype
    out = x.array if isinstance(x, Mapped) and ready else room((len(rows), *x.shape[1:]), kind.dtype)
    for block in blocks(len(rows), kind.nbytes):
        values = _inputs(x.take(rows[block]))
        if values.dtype.kind == "f":
            bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
            if bad.any():
                row = int(rows[block][int(bad.argmax())]) + first_row
                raise InvalidInput(f"row {row} holds a value that is not a finite number")
        if not ready:
            out[block] = values
    return out


def _spread(x: NDArray[Any]) -> NDArray[np.float64]:
    """The deviation of each column, some columns at a time: NumPy makes a second array of what it is asked for.

    Never one column of several, which NumPy would add up in another order.
    """
    flat = x.reshape(len(x), -1)
    width = max(BLOCK // (8 * len(x)), 2)
    starts = list(range(0, max(flat.shape[1] - 1, 1), width))
    ends = [*starts[1:], flat.shape[1]]
    parts = [flat[:, begin:end].std(axis=0, dtype=np.float64) for begin, end in zip(starts, ends, strict=True)]
    return np.concatenate(parts).reshape(x.shape[1:])


def _standardised(x: NDArray[Any], mean: Any, spread: NDArray[np.float64], room: Room) -> NDArray[np.float32]:
    out = room(x.shape, np.float32)
    for block in blocks(len(x), 8 * math.prod(x.shape[1:])):
        out[block] = (x[block] - mean).astype(np.float32) / spread.astype(np.float32)
    return out


def _check(part: Part, first_row: int, gaps: bool) -> None:
    for what, shape in (("inputs", part.x.shape), ("labels", part.y.shape)):
        if not shape:
            raise InvalidInput(f"the {what} are one value, not one per sample")
    if len(part.x) != len(part.y):
        raise InvalidInput(f"{len(part.x)} inputs but {len(part.y)} labels")
    if len(part.x) == 0:
        raise InvalidInput("it has no samples")
    if part.client is not None and part.client.ndim != 1:
        raise InvalidInput(f"the clients must be one name per sample, not an array of shape {part.client.shape}")
    if part.client is not None and len(part.client) != len(part.x):
        raise InvalidInput(f"{len(part.x)} inputs but {len(part.client)} client labels")
    if isinstance(part.x, Rows):
        return
    x = _inputs(part.x)
    if x.dtype.kind == "f":
        _finite(np.where(np.isnan(x), np.float32(0), x) if gaps else x, "value", first_row)


def _inputs(values: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers with a sign pass unchanged (they may be tokens); bytes are pixels, and all else is numbers."""
    return values.astype(np.int64, copy=False) if values.dtype.kind == "i" else _float(values)


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
            raise _decimal(row + first_row, y[row])
        y = y.astype(np.int64)
    if y.dtype.kind in "US":
        _refuse_decimals(y, first_row)
    if y.dtype.kind in "iub" and first_row == 0:
        y = y.astype(np.int64)
        top = int(y.max()) if classes is None else classes - 1
        if classes is None and top >= max(MOST_CLASSES, 2 * len(y)):
            row = int(y.argmax())
            raise InvalidInput(
                f"row {row + first_row} has the label {top}: classes are numbered 0, 1, 2, and so on, and {len(y)} "
                "samples cannot have so many; did you mean regression = true (--regression)?"
            )
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


def _refuse_decimals(y: NDArray[Any], first_row: int) -> None:
    """Texts that are numbers, with decimals among them, are no classes."""
    try:
        values = y.astype(np.float64)
    except ValueError:
        return
    decimal = np.isfinite(values) & (values != np.floor(values))
    if decimal.any():
        raise _decimal(int(decimal.argmax()) + first_row, y[int(decimal.argmax())])


def _decimal(row: int, label: Any) -> InvalidInput:
    return InvalidInput(
        f"row {row} has the label {label}: classes are whole numbers; did you mean regression = true (--regression)?"
    )


def hold_out(groups: NDArray[Any], fraction: float, seed: int, purpose: str = "hold out") -> NDArray[np.bool_]:
    """Which samples to hold out: the share ``fraction`` of every group, in a keyed order, never a whole group."""
    if not 0 < fraction < 1:
        raise InvalidInput(f"test_fraction = {fraction}: it must be between 0 and 1")
    count = len(groups)
    inverse = np.unique(groups, return_inverse=True)[1].reshape(-1)
    order = rng.permutation(rng.key(seed, purpose), count)
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
