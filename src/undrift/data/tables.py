"""CSV and Parquet files as named columns, with errors that name file, column and row."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})


@dataclass(frozen=True)
class Table:
    """Columns of a file. ``rows`` are the numbers of the samples' rows as an editor or viewer counts them."""

    path: Path
    columns: dict[str, NDArray[Any]]
    rows: Sequence[int]

    def values(self, column: str) -> NDArray[Any]:
        """A column of labels or clients: whole numbers where all are, else texts; nothing missing."""
        data = self.columns[column]
        if data.dtype.kind in "OUS":
            texts = np.array([("" if v is None else str(v)).strip() for v in data.tolist()])
            self._refuse_missing(column, np.isin(np.char.lower(texts), list(MISSING)))
            try:
                return texts.astype(np.int64)
            except ValueError:
                return texts
        if data.dtype.kind == "f":
            self._refuse_missing(column, np.isnan(data))
        return data

    def numbers(self, column: str) -> NDArray[np.float32]:
        """A column of numbers, nothing missing."""
        data = self.columns[column]
        if data.dtype.kind in "OUS":
            texts = np.array([("" if v is None else str(v)).strip() for v in data.tolist()])
            self._refuse_missing(column, np.isin(np.char.lower(texts), list(MISSING)))
            try:
                data = texts.astype(np.float64)
            except ValueError:
                raise self._not_a_number(column, texts) from None
        self._refuse_missing(column, ~np.isfinite(data.astype(np.float64)))
        return data.astype(np.float32)

    def matrix(self, columns: Sequence[str]) -> NDArray[np.float32]:
        return np.stack([self.numbers(c) for c in columns], axis=1)

    def _refuse_missing(self, column: str, missing: NDArray[np.bool_]) -> None:
        if missing.any():
            row = self.rows[int(missing.argmax())]
            more = f" (and {int(missing.sum()) - 1} more)" if missing.sum() > 1 else ""
            raise InvalidInput(f"{self.path}: row {row} has no value in column {column!r}{more}")

    def _not_a_number(self, column: str, texts: NDArray[Any]) -> InvalidInput:
        for row, text in zip(self.rows, texts.tolist(), strict=True):
            try:
                float(text)
            except ValueError:
                return InvalidInput(
                    f"{self.path}: row {row} has {text!r} in column {column!r}, which is not a number: "
                    "leave the column out or encode it"
                )
        raise AssertionError("some value was not a number")


def read_csv(path: Path, delimiter: str = ",") -> Table:
    """A CSV file with a header row. Rows count from 1 with the header, as in an editor."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=delimiter)
            header = [name.strip() for name in next(reader, [])]
            rows, lines = [], []
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror or error}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read as CSV: {error}") from None
    if not header:
        raise InvalidInput(f"{path}: it is empty; the first row must name the columns")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InvalidInput(f"{path}: the column {twice!r} occurs twice")
    for row, line in zip(rows, lines, strict=True):
        if len(row) != len(header):
            raise InvalidInput(f"{path}: row {line} has {len(row)} values, the header has {len(header)}")
    if not rows:
        raise InvalidInput(f"{path}: it has a header but no rows")
    columns = zip(*rows, strict=True)
    return Table(path, {name: np.array(values) for name, values in zip(header, columns, strict=True)}, lines)


def read_parquet(path: Path) -> Table:
    """A Parquet file. Rows count from 1."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidInput(f"{path}: reading Parquet needs pyarrow: pip install 'undrift[data]'") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except FileNotFoundError:
        raise InvalidInput(f"{path}: No such file or directory") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise InvalidInput(f"{path}: cannot be read as Parquet: {error}") from None
    if table.num_rows == 0:
        raise InvalidInput(f"{path}: it has no rows")
    columns = {name: np.asarray(table.column(name).to_numpy()) for name in table.column_names}
    return Table(path, columns, range(1, table.num_rows + 1))
