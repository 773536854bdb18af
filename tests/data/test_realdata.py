"""The same loaders on the real data, in the folder that UNDRIFT_DATA names: checksums, shapes, counts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from undrift.core.errors import InvalidInput
from undrift.data import Dataset, inventory, load, partition, test_parts

pytestmark = pytest.mark.realdata


@pytest.fixture(scope="module")
def root() -> Path:
    if not os.environ.get("UNDRIFT_DATA"):
        pytest.skip("UNDRIFT_DATA is not set")
    return Path(os.environ["UNDRIFT_DATA"])


def real(root: Path, name: str, **options: object) -> Dataset:
    try:
        return load(name, root, **options)
    except InvalidInput as error:
        if f"{name} is not in" in str(error):
            pytest.skip(str(error))
        raise


def test_present_files_are_the_published_ones(root: Path) -> None:
    rows = [row for row in inventory(root, check=True) if row.state == "present"]
    assert rows
    assert [row.name for row in rows if row.checksums.startswith("wrong")] == []


@pytest.mark.parametrize(
    ("name", "shape", "train", "test", "counts"),
    [
        ("mnist", (1, 28, 28), 60000, 10000, [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]),
        ("fashion", (1, 28, 28), 60000, 10000, [6000] * 10),
        ("emnist", (1, 28, 28), 112800, 18800, [2400] * 47),
        ("cifar10", (3, 32, 32), 50000, 10000, [5000] * 10),
        ("cifar100", (3, 32, 32), 50000, 10000, [500] * 100),
        ("ucihar", (9, 128), 7352, 2947, [1226, 1073, 986, 1286, 1374, 1407]),
    ],
)
def test_shapes_and_counts(
    root: Path, name: str, shape: tuple[int, ...], train: int, test: int, counts: list[int]
) -> None:
    data = real(root, name)
    assert (data.shape, len(data.x), len(data.x_test)) == (shape, train, test)
    assert np.bincount(data.y).tolist() == counts


def test_heart_is_a_federation_of_four_hospitals(root: Path) -> None:
    data = real(root, "heart")
    assert (data.shape, len(data.x), len(data.x_test)) == ((15,), 689, 231)
    parts = partition("column", data, None, seed=1)
    assert parts.names is not None
    assert parts.names.tolist() == ["cleveland", "hungarian", "switzerland", "va"]
    assert (parts.sizes + test_parts(parts, data, 1).sizes).tolist() == [303, 294, 123, 200]
    assert np.bincount(np.concatenate([data.y, data.y_test])).tolist() == [411, 509]
    assert real(root, "heart", columns="all", labels="grade").shape == (22,)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("organamnist", 34561, 17778), ("organcmnist", 12975, 8216), ("organsmnist", 13932, 8827)],
)
def test_organs(root: Path, name: str, train: int, test: int) -> None:
    data = real(root, name)
    assert (len(data.x), len(data.x_test), data.classes) == (train, test, 11)


def test_mnist_is_normalised(root: Path) -> None:
    data = real(root, "mnist")
    assert abs(float(data.x.mean())) < 1e-3
    assert abs(float(data.x.std()) - 1) < 1e-3


def test_har_subjects(root: Path) -> None:
    official, within = real(root, "ucihar"), real(root, "ucihar", split="within")
    assert official.client is not None
    assert official.client_test is not None
    assert within.client is not None
    assert (len(set(official.client)), len(set(official.client_test))) == (21, 9)
    assert not set(official.client) & set(official.client_test)
    assert len(partition("column", within, None, 1)) == 30
    parts = test_parts(partition("column", within, None, 1), within, 1)
    assert parts.sizes.min() > 0


def test_covid_patients(root: Path) -> None:
    data = real(root, "covidx")
    assert data.client is not None
    assert data.client_test is not None
    assert not set(data.client) & set(data.client_test)
    if len(data.x) + len(data.x_test) == 419:  # the 64 x 64 extract
        assert int(data.y.sum() + data.y_test.sum()) == 236
        assert len(set(data.client) | set(data.client_test)) == 251


def test_pfedmo_label_skew(root: Path) -> None:
    data = real(root, "mnist")
    assert data.labels is not None
    for k in (3, 6, 9):
        parts = partition("classes", data, 4, 1, classes_per_client=k)
        assert set((parts.histogram(data.labels, 10) > 0).sum(axis=1)) == {k}
        assert len(set(parts.sizes)) == 1
