"""CSV and Parquet files as named columns, with errors that name file, column and row.

Columns of numbers stay as they are; a column of texts becomes one column of zeros and ones for each of its texts.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput, unknown
from undrift.data.bounds import in_memory, regular
from undrift.data.rows import Rows

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
LONGEST = 200  # characters of a label's or client's name
LEVELS = 100  # different texts of a column that becomes zeros and ones


@dataclass(frozen=True)
class Column:
    """How a column is read: as numbers, or as one zero or one for each of these texts."""

    name: str
    levels: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"{self.name} = {level}" for level in self.levels) or (self.name,)


@dataclass(frozen=True)
class Table:
    """Columns of a file. ``rows`` are the numbers of the samples' rows as an editor or viewer counts them."""

    path: Path
    columns: Mapping[str, NDArray[Any]]
    rows: Sequence[int]

    def check(self, *names: str) -> None:
        for name in names:
            if name not in self.columns:
                raise InvalidInput(f"{self.path}: {unknown('column', name, self.columns)}")

    def values(self, column: str) -> NDArray[Any]:
        """A column of labels or clients: whole numbers where all are, else texts; nothing missing."""
        data = self.columns[column]
        if data.dtype.kind == "f":
            self._refuse_missing(column, np.isnan(data))
        if data.dtype.kind not in "OUSM":
            return data
        texts = _texts(data)
        self._refuse_missing(column, _missing(texts))
        long = next((i for i, text in enumerate(texts) if len(text) > LONGEST), None)
        if long is not None:
            raise InvalidInput(
                f"{self.path}: row {self.rows[long]} has a text of {len(texts[long])} characters in column {column!r}: "
                f"names have at most {LONGEST}"
            )
        try:
            return np.array([int(text) for text in texts], np.int64)
        except (ValueError, OverflowError):
            return np.array(texts)

    def numbers(self, column: str, *, gaps: bool = False) -> NDArray[np.float32]:
        """A column of numbers. With ``gaps`` what is missing is NaN, otherwise it is refused."""
        data = self.columns[column]
        if data.dtype.kind in "OUSM":
            texts = _texts(data)
            missing = _missing(texts)
            found = np.full(len(texts), np.nan)
            for i in np.flatnonzero(~missing).tolist():
                try:
                    found[i] = float(texts[i])
                except ValueError:
                    raise InvalidInput(
                        f"{self.path}: row {self.rows[i]} has {texts[i][:LONGEST]!r} in column {column!r}, which is "
                        "not a number: leave the column out or encode it"
                    ) from None
        else:
            found = data.astype(np.float64)
            missing = np.isnan(found)
        if not gaps:
            self._refuse_missing(column, missing)
        with np.errstate(over="ignore"):
            small = found.astype(np.float32)
        wild = ~missing & ~np.isfinite(small)
        if wild.any():
            row = self.rows[int(wild.argmax())]
            raise InvalidInput(f"{self.path}: row {row} has a number in column {column!r} that is too large or not one")
        return small

    def column(self, name: str) -> Column:
        """How to read a column: texts are those in which no value is a number."""
        data = self.columns[name]
        if data.dtype.kind not in "OUS":
            return Column(name)
        texts = [text for text in _texts(data) if text.lower() not in MISSING]
        if not texts or any(_is_number(text) for text in texts):
            return Column(name)
        levels = sorted(set(texts))
        if len(levels) > LEVELS:
            raise InvalidInput(
                f"{self.path}: column {name!r} has {len(levels):,} different texts, at most {LEVELS} can be encoded: "
                "drop the column"
            )
        return Column(name, tuple(levels))

    def features(self, columns: Sequence[Column], *, gaps: bool = False) -> NDArray[np.float32] | Rows:
        """The features of all rows, or a way to ask for some of them."""
        return self.matrix(columns, gaps=gaps)

    def matrix(self, columns: Sequence[Column], *, gaps: bool = False) -> NDArray[np.float32]:
        """The features of all rows. A text that the columns do not know, or that is missing, is zeros throughout."""
        width = sum(len(column.features) for column in columns)
        in_memory(4 * width * len(self.rows), self.path, f"a table of {width} features")
        out = np.zeros((len(self.rows), width), np.float32)
        place = 0
        for column in columns:
            if column.levels:
                texts = _texts(self.columns[column.name])
                if not gaps:
                    self._refuse_missing(column.name, _missing(texts))
                at = {level: place + i for i, level in enumerate(column.levels)}
                for row, text in enumerate(texts):
                    if text in at:
                        out[row, at[text]] = 1
            else:
                out[:, place] = self.numbers(column.name, gaps=gaps)
            place += len(column.features)
        return out

    def _refuse_missing(self, column: str, missing: NDArray[np.bool_]) -> None:
        if missing.any():
            row = self.rows[int(missing.argmax())]
            more = f" (and {int(missing.sum()) - 1} more)" if missing.sum() > 1 else ""
            raise InvalidInput(f"{self.path}: row {row} has no value in column {column!r}{more}")


def _texts(data: NDArray[Any]) -> list[str]:
    return ["" if value is None else str(value).strip() for value in data.tolist()]


def _missing(texts: list[str]) -> NDArray[np.bool_]:
    return np.array([text.lower() in MISSING for text in texts], bool)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def read_csv(path: Path, delimiter: str = ",", header: Sequence[str] = ()) -> Table:
    """A CSV file; its first row names the columns where no ``header`` does. Rows count from 1, as in an editor."""
    in_memory(regular(path), path, "it")
    if len(delimiter) != 1:
        raise InvalidInput(f"{path}: delimiter = {delimiter!r}: it must be one character")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            names = list(header) or [name.strip() for name in next(reader, [])]
            rows, lines = [], []
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read as CSV: {error}") from None
    if not names:
        raise InvalidInput(f"{path}: it is empty; the first row must name the columns")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{path}: the column {twice!r} occurs twice")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(names):
            raise InvalidInput(f"{path}: row {line} has {len(row)} values, the header has {len(names)}")
    if not rows:
        raise InvalidInput(f"{path}: it has a header but no rows")
    # Objects, not fixed-width texts: one long value would make every row as wide.
    columns = {name: np.array(values, object) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    return Table(path, columns, lines)


class _File:
    """A Parquet file that is open; whatever is wrong with it is one sentence."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise InvalidInput(f"{path}: reading Parquet needs pyarrow: pip install 'undrift[data]'") from None
        self.path, packed = path, regular(path)
        self.errors: tuple[type[Exception], ...] = (OSError, pyarrow.ArrowException)
        self.file = self._safely(lambda: pyarrow.parquet.ParquetFile(path))
        about = self.file.metadata
        self.counts = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
        self.bytes = [about.row_group(i).total_byte_size for i in range(about.num_row_groups)]
        self.count, self.names = about.num_rows, list(self.file.schema_arrow.names)
        if self.count > 10**9 and self.count > 1000 * packed:
            raise InvalidInput(f"{path}: it claims {self.count:,} rows, more than its bytes can hold")
        if self.count == 0:
            raise InvalidInput(f"{path}: it has no rows")

    def read(self, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
        """Whole columns."""
        return self._arrays(lambda: self.file.read(columns=names))

    def group(self, number: int, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        in_memory(self.bytes[number], self.path, f"row group {number}")
        return self._arrays(lambda: self.file.read_row_group(number, columns=list(names)))

    def _arrays(self, read: Callable[[], Any]) -> dict[str, NDArray[Any]]:
        table = self._safely(read)
        return {name: np.asarray(table.column(name).to_numpy()) for name in table.column_names}

    def _safely(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except self.errors as error:
            raise InvalidInput(f"{self.path}: cannot be read as Parquet: {error}") from None


def read_parquet(path: Path) -> Table:
    """A Parquet file. Rows count from 1."""
    file = _File(path)
    in_memory(max(8 * file.count * len(file.names), sum(file.bytes)), path, f"{file.count:,} rows")
    return Table(path, file.read(), range(1, file.count + 1))


def open_parquet(path: Path) -> Table:
    """The same, to be read some at a time: a column where one is asked for, features by row groups."""
    file = _File(path)
    return _Open(path, _Columns(file), range(1, file.count + 1), file)


class _Columns(Mapping[str, NDArray[Any]]):
    """The columns of a Parquet file, each read when it is asked for and not kept."""

    def __init__(self, file: _File) -> None:
        self.file = file

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.file.read([name])[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.file.names)

    def __len__(self) -> int:
        return len(self.file.names)

    def __contains__(self, name: object) -> bool:
        return name in self.file.names


@dataclass(frozen=True)
class _Open(Table):
    file: _File

    def features(self, columns: Sequence[Column], *, gaps: bool = False) -> Rows:
        return _Groups(self.file, columns)


class _Groups(Rows):
    """The features of a Parquet file, by row groups: the one that was asked for last stays in memory."""

    def __init__(self, file: _File, columns: Sequence[Column]) -> None:
        self.file, self.columns = file, columns
        self.begins = np.cumsum([0, *file.counts])
        self._last: tuple[int, NDArray[np.float32] | None] = (-1, None)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.file.count, sum(len(column.features) for column in self.columns))

    def take(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        groups = np.searchsorted(self.begins, rows, side="right") - 1
        return np.concatenate([self._group(int(g))[rows[groups == g] - self.begins[g]] for g in np.unique(groups)])

    def _group(self, number: int) -> NDArray[np.float32]:
        if self._last[0] != number or self._last[1] is None:
            arrays = self.file.group(number, [column.name for column in self.columns])
            counted = range(int(self.begins[number]) + 1, int(self.begins[number + 1]) + 1)
            self._last = (number, Table(self.file.path, arrays, counted).matrix(self.columns))
        assert self._last[1] is not None
        return self._last[1]
