"""Data that are read some at a time and lie in files: the same bits as in memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import undrift
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.data import Dataset, load, rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what memory is a file's is read as Linux tells it")
DRAW = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that everything takes many turns."""
    for module in (rows, undrift.data.build):  # type: ignore[attr-defined]
        monkeypatch.setattr(module, "BLOCK", 1000)


def in_a_file(tensor: torch.Tensor) -> bool:
    """Does the memory of the tensor belong to a file?"""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, _, _, inode, *_ = line.split()
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= tensor.data_ptr() < end:
            return inode != "0"
    return False


def same(lazy: Dataset, whole: Dataset) -> None:
    assert lazy.fingerprint == whole.fingerprint
    assert torch.equal(lazy.x, whole.x)
    assert torch.equal(lazy.x_test, whole.x_test)
    assert lazy.class_names == whole.class_names
    assert in_a_file(lazy.x)
    assert not in_a_file(whole.x)


def pictures(root: Path) -> Path:
    for part, count in (("train", 9), ("test", 4)):
        for name in ("cats", "dogs"):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = DRAW.integers(0, 256, (12, 12, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(root / part / name / f"{i}.png")
    return root


def table(path: Path, gap: bool = False) -> Path:
    n = 157
    columns = {
        "age": DRAW.normal(50, 10, n),
        "whole": DRAW.integers(0, 9, n),
        "ward": DRAW.choice(["A", "B", "C"], n),
        "site": DRAW.choice(["north", "south"], n),
        "more": [None if gap and i == 60 else float(i) for i in range(n)],
        "ill": DRAW.choice(["no", "yes"], n),
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=20)
    return path


@pytest.mark.parametrize("grey", [True, False])
def test_folders_of_pictures(tmp_path: Path, grey: bool) -> None:
    folder = pictures(tmp_path)
    same(*(Dataset.from_image_folder(folder, size=16, grey=grey, lazy=lazy) for lazy in (True, False)))
    same(*(Dataset.from_image_folder(folder / "train", size=10, grey=grey, lazy=lazy) for lazy in (True, False)))


@pytest.mark.parametrize("options", [{}, {"client": "site"}, {"features": ["age"]}, {"drop": ["ward", "more"]}])
def test_row_groups_of_parquet(tmp_path: Path, options: dict[str, Any]) -> None:
    path = table(tmp_path / "patients.parquet")
    same(*(Dataset.from_parquet(path, "ill", lazy=lazy, **options) for lazy in (True, False)))
    same(*(Dataset.from_parquet(path, "ill", test=path, lazy=lazy, **options) for lazy in (True, False)))


def test_a_gap_in_a_row_group_is_named(tmp_path: Path) -> None:
    path = table(tmp_path / "gaps.parquet", gap=True)
    with pytest.raises(InvalidInput, match="row 61 has no value in column 'more'"):
        Dataset.from_parquet(path, "ill", lazy=True)
    with pytest.raises(InvalidInput, match="missing = 'mean' needs the data in memory"):
        Dataset.from_parquet(path, "ill", lazy=True, missing="mean")


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, count: int, kind: Callable[[Any], Any]) -> None:
        self.x, self.y = kind(DRAW.integers(0, 50, (count, 5))), DRAW.integers(0, 3, count)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return torch.from_numpy(self.x[i]), int(self.y[i])


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint8])
def test_torch_datasets(kind: Any) -> None:
    train, test = Pairs(150, kind), Pairs(40, kind)
    same(*(Dataset.from_torch(train, lazy=lazy) for lazy in (True, False)))
    same(*(Dataset.from_torch(train, test, lazy=lazy) for lazy in (True, False)))


class TestNpy:
    def write(self, folder: Path, test: bool = True, kind: Any = np.float32) -> Path:
        folder.mkdir()
        client = DRAW.choice(["a", "b", "c"], 90)
        arrays = {"x": DRAW.normal(size=(90, 2, 6)).astype(kind), "y": np.arange(90) % 3, "client": client}
        if test:
            arrays |= {"x_test": DRAW.normal(size=(30, 2, 6)).astype(kind), "y_test": np.arange(30) % 3}
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array)
        np.savez(folder.with_suffix(".npz"), **arrays)
        return folder

    @pytest.mark.parametrize("test", [True, False])
    @pytest.mark.parametrize("kind", [np.float32, np.float64])
    def test_mapped_arrays(self, tmp_path: Path, test: bool, kind: Any) -> None:
        folder = self.write(tmp_path / "mine", test, kind)
        same(Dataset.from_npy(folder), Dataset.from_npz(folder.with_suffix(".npz")))

    def test_what_is_ready_is_not_copied(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = self.write(tmp_path / "mine")
        monkeypatch.setattr(undrift.data.dataset, "in_files", None)  # type: ignore[attr-defined]
        assert in_a_file(Dataset.from_npy(folder).x)

    def test_runs_are_the_same_bits_everywhere(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path / "mine")
        data, whole = Dataset.from_npy(folder), Dataset.from_npz(folder.with_suffix(".npz"))
        options: dict[str, Any] = {"model": "mlp", "rounds": 2}
        expected = undrift.run(data=whole, **options).value
        for runtime in ("serial", "threads", "processes"):
            assert undrift.run(data=data, runtime=runtime, **options).value == expected

    def test_by_name(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = self.write(tmp_path / "mine")
        flags = ["--data", "npy", "--path", str(folder), "--model", "mlp", "--rounds", "1"]
        assert command(["run", *flags, "--ledger", str(tmp_path / "runs.db")]) == 0
        assert load("npy", path=str(folder)).shape == (2, 6)

    def test_what_is_wrong(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path / "mine")
        np.save(folder / "x.npy", np.full((90, 2, 6), np.nan, np.float32))
        with pytest.raises(InvalidInput, match="mine: row 0 holds a value that is not a finite number"):
            Dataset.from_npy(folder)
        raw = (folder / "x_test.npy").read_bytes()
        (folder / "x_test.npy").write_bytes(raw[:-10])
        with pytest.raises(InvalidInput, match=r"x_test\.npy: it is not an \.npy file .* or it is cut short"):
            Dataset.from_npy(folder)
        np.save(folder / "x_test.npy", np.array([{}, {}], object), allow_pickle=True)
        with pytest.raises(InvalidInput, match=r"x_test\.npy: it is not an \.npy file of numbers"):
            Dataset.from_npy(folder)
        (folder / "y.npy").unlink()
        with pytest.raises(InvalidInput, match=r"it has no y\.npy"):
            Dataset.from_npy(folder)


def test_more_than_the_disk_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100}))
    with pytest.raises(InvalidInput, match="more than is free: set TMPDIR"):
        Dataset.from_torch(Pairs(150, np.float32), lazy=True)


@pytest.mark.parametrize("shape", [(50, 1), (50, 2), (50, 7), (50, 3, 4), (1000, 33)])
def test_deviations_some_columns_at_a_time(shape: tuple[int, ...]) -> None:
    from undrift.data.build import _spread

    x = DRAW.normal(size=shape).astype(np.float32)
    assert np.array_equal(_spread(x), x.std(axis=0, dtype=np.float64))
