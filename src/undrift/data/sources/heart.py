"""Heart Disease of four hospitals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.data import tables
from undrift.data.build import hold_out
from undrift.data.dataset import Dataset
from undrift.data.gaps import fill
from undrift.data.sources.base import Fraction, Published
from undrift.data.sources.files import File, Release
from undrift.data.windows import standardise


class Heart(Published):
    """Heart disease, 920 patients of four hospitals (Detrano et al. 1989): a natural federation of 123 to 303 patients.

    What a patient lacks is filled from the training patients of the same hospital: the median of a measurement, the
    most frequent kind of a finding; a hospital that never measured it takes the mean of the others. A blood pressure
    or cholesterol of 0 counts as not measured (all of Switzerland's cholesterol is). Each column has mean 0 and
    deviation 1 over the training part. Of every hospital and class the share ``test_fraction`` is held out.
    """

    name = "heart"
    title = "Heart Disease, four hospitals"
    homepage = "https://archive.ics.uci.edu/dataset/45"
    licence = "CC BY 4.0"
    size = "33 kB"
    natural = True
    labels: Annotated[Literal["disease", "grade"], "disease or none (2 classes), or its grade 0 to 4"] = "disease"
    columns: Annotated[
        Literal["shared", "all"], "shared: without slope, ca and thal, which three hospitals hardly recorded; or all"
    ] = "shared"
    test_fraction: Fraction = 0.25

    def releases(self) -> tuple[Release, ...]:
        url = "https://archive.ics.uci.edu/static/public/45/heart+disease.zip"
        files = tuple(File(f"heart-disease/processed.{place}.data") for place in HOSPITALS)
        return (Release("processed", files, (File("heart-disease.zip", "", url),), into="heart-disease"),)

    def read(self, root: Path, release: Release) -> Dataset:
        read = [tables.read_csv(file.at(root), header=COLUMNS) for file in release.files]
        client = np.repeat(np.array(HOSPITALS), [len(table.rows) for table in read])
        y = np.concatenate([_grades(table) for table in read])
        if self.labels == "disease":
            y = (y > 0).astype(np.int64)
        groups = np.array([f"{place} {label}" for place, label in zip(client, y, strict=True)])
        held = hold_out(groups, self.test_fraction, 0)
        names: list[str] = []
        parts: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
        for column in COLUMNS[:-1]:
            if self.columns == "shared" and column in RARE:
                continue
            values = np.concatenate([_values(table, column) for table in read])[:, None]
            rule: Any = "most" if column in KINDS else "median"
            train, test = fill(values[~held], values[held], client[~held], client[held], rule, (column,))
            kinds = KINDS.get(column, ())
            names += [f"{column} = {kind}" for kind in kinds] or [column]
            parts.append((_encoded(train, kinds), _encoded(test, kinds)) if kinds else (train, test))
        x, x_test = (np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True))
        return self.dataset(
            *standardise(x, x_test, y[~held], y[held]),
            2 if self.labels == "disease" else 5,
            client=client[~held],
            client_test=client[held],
            class_names=("none", "disease") if self.labels == "disease" else (),
            feature_names=tuple(names),
        )


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
    "num",
)  # fmt: skip
RARE = ("slope", "ca", "thal")
NOT_ZERO = ("trestbps", "chol")
KINDS = {  # findings without an order; two of them need no more than a number
    "sex": (),
    "cp": (1, 2, 3, 4),
    "fbs": (),
    "restecg": (0, 1, 2),
    "exang": (),
    "slope": (1, 2, 3),
    "thal": (3, 6, 7),
}


def _values(table: tables.Table, column: str) -> NDArray[np.float32]:
    values = table.numbers(column, gaps=True)
    if column in NOT_ZERO:
        values[values == 0] = np.nan
    kinds = KINDS.get(column)
    if kinds is not None:
        odd = ~np.isnan(values) & ~np.isin(values, kinds or (0, 1))
        if odd.any():
            row, allowed = int(odd.argmax()), ", ".join(map(str, kinds or (0, 1)))
            where = f"{table.path}: row {table.rows[row]} has {values[row]:g} in column {column!r}"
            raise InvalidInput(f"{where}: it is one of {allowed}")
    return values


def _grades(table: tables.Table) -> NDArray[np.int64]:
    values = table.numbers("num")
    odd = ~np.isin(values, range(5))
    if odd.any():
        row = int(odd.argmax())
        raise InvalidInput(f"{table.path}: row {table.rows[row]} has the label {values[row]:g}: labels are 0 to 4")
    return values.astype(np.int64)


def _encoded(values: NDArray[np.float32], kinds: tuple[int, ...]) -> NDArray[np.float32]:
    return np.equal(values, np.array(kinds, np.float32)).astype(np.float32)
