"""Own data: arrays, torch data sets, tables, archives, folders of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from undrift.core.errors import InvalidInput
from undrift.data import Dataset, load


def arrays(n: int = 100, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(n, 3)), np.arange(n) % classes


class TestArrays:
    def test_hold_out_takes_the_same_share_of_every_class(self) -> None:
        x, y = arrays(100, 4)
        data = Dataset.from_arrays(x, y, test_fraction=0.2)
        assert np.bincount(data.y).tolist() == [20] * 4
        assert np.bincount(data.y_test).tolist() == [5] * 4
        both = np.concatenate([data.x.numpy(), data.x_test.numpy()])
        assert np.array_equal(np.sort(both, axis=0), np.sort(x.astype(np.float32), axis=0))

    def test_hold_out_depends_on_the_seed_alone(self) -> None:
        x, y = arrays()
        first, again, other = (Dataset.from_arrays(x, y, seed=s) for s in (1, 1, 2))
        assert torch.equal(first.x, again.x)
        assert first.fingerprint == again.fingerprint
        assert not torch.equal(first.x, other.x)

    def test_every_client_keeps_samples_for_training_and_testing(self) -> None:
        x, y = arrays(60)
        client = np.repeat(["a", "b", "c"], [5, 25, 30])
        data = Dataset.from_arrays(x, y, client=client, test_fraction=0.2)
        assert data.client is not None
        assert data.client_test is not None
        assert sorted(np.unique(data.client_test, return_counts=True)[1].tolist()) == [1, 5, 6]
        assert set(data.client) == {"a", "b", "c"}

    def test_texts_become_numbered_classes(self) -> None:
        data = Dataset.from_arrays(np.zeros((6, 1)), np.array(["dog", "cat"] * 3), test_fraction=0.34)
        assert data.class_names == ("cat", "dog")
        assert data.classes == 2

    def test_types(self) -> None:
        data = Dataset.from_arrays(*arrays())
        assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
        target = Dataset.from_arrays(np.zeros((10, 1)), np.linspace(0, 1, 10), regression=True)
        assert target.y.dtype == torch.float32
        assert target.classes is None
        assert target.labels is None

    def test_fingerprint_is_of_the_content(self) -> None:
        x, y = arrays()
        before = Dataset.from_arrays(x, y, x, y, name="one")
        assert Dataset.from_arrays(x, y, x, y, name="two").fingerprint == before.fingerprint
        x = x.copy()
        x[50, 1] += 1
        assert Dataset.from_arrays(x, y, x, y, name="one").fingerprint != before.fingerprint

    @pytest.mark.parametrize(
        ("x", "y", "words"),
        [
            (np.zeros((3, 1)), np.zeros(2, int), "3 inputs but 2 labels"),
            (np.zeros((0, 1)), np.zeros(0, int), "no samples"),
            (np.array([[0.0], [np.nan]]), np.array([0, 1]), "row 1 .*not a finite number"),
            (np.zeros((3, 1)), np.array([0, -1, 1]), "row 1 has the label -1"),
            (np.zeros((3, 1)), np.array([0.5, 1, 2]), r"row 0 has the label 0\.5"),
            (np.array([["a"]]), np.array([0]), "must be numbers"),
        ],
    )
    def test_bad_arrays(self, x: np.ndarray, y: np.ndarray, words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            Dataset.from_arrays(x, y)

    def test_label_outside_the_classes(self) -> None:
        with pytest.raises(InvalidInput, match="row 2 has the label 5: labels are 0 to 3"):
            Dataset.from_arrays(np.zeros((3, 1)), np.array([0, 1, 5]), classes=4)

    def test_test_inputs_of_another_shape(self) -> None:
        with pytest.raises(InvalidInput, match="differ in shape"):
            Dataset.from_arrays(np.zeros((3, 2)), np.arange(3), np.zeros((3, 4)), np.arange(3))


class TestTorch:
    def test_pairs(self) -> None:
        x, y = torch.randn(20, 2), torch.arange(20) % 2
        data = Dataset.from_torch(TensorDataset(x, y), TensorDataset(x[:4], y[:4]))
        assert torch.equal(data.x, x)
        assert torch.equal(data.y_test, y[:4])

    def test_uneven_shapes_are_named(self) -> None:
        pairs = [(torch.zeros(2), 0), (torch.zeros(3), 1)]
        with pytest.raises(InvalidInput, match=r"sample 1 has shape \(3,\)"):
            Dataset.from_torch(pairs)  # type: ignore[arg-type]

    def test_not_pairs(self) -> None:
        with pytest.raises(InvalidInput, match="pairs"):
            Dataset.from_torch(TensorDataset(torch.zeros(3, 1)))


CSV = """age,weight,site,ill
10,1.5,north,no
20,2.5,north,yes
30,3.5,south,no
40,4.5,south,yes
50,5.5,south,no
60,6.5,north,yes
"""


def csv_file(folder: Path, text: str = CSV) -> Path:
    path = folder / "people.csv"
    path.write_text(text)
    return path


class TestTables:
    def test_csv_with_clients(self, tmp_path: Path) -> None:
        data = Dataset.from_csv(csv_file(tmp_path), "ill", client="site", test_fraction=0.34, standardise=False)
        assert data.shape == (2,)
        assert data.class_names == ("no", "yes")
        assert data.client is not None
        assert sorted(data.client) == ["north", "north", "south", "south"]
        ages = torch.cat([data.x[:, 0], data.x_test[:, 0]])
        assert sorted(ages.tolist()) == [10, 20, 30, 40, 50, 60]

    def test_columns_are_standardised_by_the_training_part(self, tmp_path: Path) -> None:
        data = Dataset.from_csv(csv_file(tmp_path), "ill", features=["age", "weight"])
        assert torch.allclose(data.x.mean(0), torch.zeros(2), atol=1e-6)
        assert torch.allclose(data.x.std(0, correction=0), torch.ones(2), atol=1e-6)

    def test_whole_number_labels_need_not_start_at_zero(self, tmp_path: Path) -> None:
        data = Dataset.from_csv(csv_file(tmp_path, "a,y\n1,3\n2,7\n3,3\n4,7\n"), "y", test_fraction=0.5)
        assert data.class_names == ("3", "7")
        assert set(data.y.tolist()) == {0, 1}

    def test_second_file_for_testing(self, tmp_path: Path) -> None:
        train = csv_file(tmp_path)
        test = tmp_path / "more.csv"
        test.write_text("ill,site,weight,age\nyes,north,1,2\n")  # another order of columns
        data = Dataset.from_csv(train, "ill", client="site", test=test, standardise=False)
        assert (len(data), data.x_test.tolist()) == (6, [[2.0, 1.0]])

    def test_regression(self, tmp_path: Path) -> None:
        data = Dataset.from_csv(csv_file(tmp_path), "weight", client="site", features=["age"], regression=True)
        assert data.classes is None
        assert set(data.y.tolist()) | set(data.y_test.tolist()) == {1.5, 2.5, 3.5, 4.5, 5.5, 6.5}

    def test_parquet_reads_the_same(self, tmp_path: Path) -> None:
        import pyarrow.csv
        import pyarrow.parquet

        path = csv_file(tmp_path)
        pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), tmp_path / "people.parquet")
        one = Dataset.from_csv(path, "ill", client="site")
        two = Dataset.from_parquet(tmp_path / "people.parquet", "ill", client="site")
        assert torch.equal(one.x, two.x)
        assert one.fingerprint == two.fingerprint

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            (CSV.replace("20,2.5", "20,"), "people.csv: row 3 has no value in column 'weight'"),
            (CSV.replace("20,2.5", "20,NaN"), "row 3 has no value in column 'weight'"),
            (CSV.replace("20,2.5", "20,much"), "row 3 has 'much' in column 'weight', which is not a number"),
            (CSV.replace("40,4.5,south,yes", "40,4.5,south,"), "row 5 has no value in column 'ill'"),
            (CSV.replace("50,5.5,south,no", "50,5.5,,no"), "row 6 has no value in column 'site'"),
            (CSV.replace("50,5.5,south,no", "50,5.5,south"), "row 6 has 3 values, the header has 4"),
            (CSV.replace("yes", "no"), "every label is 'no'"),
            ("", "empty"),
            ("age,weight,site,ill\n", "no rows"),
            (CSV.replace("weight", "age"), "'age' occurs twice"),
        ],
    )
    def test_bad_csv(self, tmp_path: Path, text: str, words: str) -> None:
        with pytest.raises(InvalidInput, match=words) as caught:
            Dataset.from_csv(csv_file(tmp_path, text), "ill", client="site")
        assert str(tmp_path / "people.csv") in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_no_such_file(self, tmp_path: Path) -> None:
        for make in (Dataset.from_csv, Dataset.from_parquet):
            with pytest.raises(InvalidInput, match="nowhere: No such file"):
                make(tmp_path / "nowhere", "y")

    def test_blank_lines_do_not_shift_the_row_numbers(self, tmp_path: Path) -> None:
        path = csv_file(tmp_path, "a,y\n\n1,p\n\n,q\n")
        with pytest.raises(InvalidInput, match="row 5 has no value in column 'a'"):
            Dataset.from_csv(path, "y")

    def test_missing_column_has_a_suggestion(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidInput, match="unknown column 'weigt': did you mean 'weight'"):
            Dataset.from_csv(csv_file(tmp_path), "weigt")

    def test_parquet_that_is_none(self, tmp_path: Path) -> None:
        path = csv_file(tmp_path)
        with pytest.raises(InvalidInput, match="cannot be read as Parquet"):
            Dataset.from_parquet(path, "ill")

    def test_missing_value_in_parquet(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.table({"a": [1.0, None], "y": ["p", "q"]}), tmp_path / "t.parquet")
        with pytest.raises(InvalidInput, match="row 2 has no value in column 'a'"):
            Dataset.from_parquet(tmp_path / "t.parquet", "y")

    def test_by_name_and_below_the_data_root(self, tmp_path: Path) -> None:
        csv_file(tmp_path)
        data = load("csv", tmp_path, path="people.csv", label="ill", client="site")
        assert data.name == "people"


class TestNpz:
    def test_arrays_by_name(self, tmp_path: Path) -> None:
        x, y = arrays(20)
        np.savez(tmp_path / "a.npz", x=x, y=y, client=np.arange(20) % 2)
        data = load("npz", tmp_path, path="a.npz")
        assert data.name == "a"
        assert data.client is not None

    def test_missing_array(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.zeros(3))
        with pytest.raises(InvalidInput, match=r"a.npz: it has no array 'y', only x"):
            Dataset.from_npz(tmp_path / "a.npz")

    def test_cut_short(self, tmp_path: Path) -> None:
        x, y = arrays(200)
        np.savez(tmp_path / "a.npz", x=x, y=y)
        raw = (tmp_path / "a.npz").read_bytes()
        (tmp_path / "a.npz").write_bytes(raw[: len(raw) // 2])
        with pytest.raises(InvalidInput, match=r"a.npz: .*cut short or damaged"):
            Dataset.from_npz(tmp_path / "a.npz")

    def test_no_pickles(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.array([{}], object), y=np.zeros(1))
        with pytest.raises(InvalidInput, match=r"a\.npz"):
            Dataset.from_npz(tmp_path / "a.npz")

    def test_bad_row_names_the_file(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "a.npz", x=np.array([[1.0], [np.inf]]), y=np.array([0, 1]))
        with pytest.raises(InvalidInput, match=r"a\.npz: row 1"):
            Dataset.from_npz(tmp_path / "a.npz")


def picture(path: Path, value: int, size: int = 10) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (value, 0, 0)).save(path)


class TestImageFolder:
    def test_classes_are_folders(self, tmp_path: Path) -> None:
        for i in range(5):
            picture(tmp_path / "red" / f"{i}.png", 255)
            picture(tmp_path / "dark" / f"{i}.png", 0)
        data = load("images", tmp_path, path=str(tmp_path), pixels=8)
        assert data.shape == (3, 8, 8)
        assert data.classes == 2
        reds = data.x[data.y == 1]  # folders in sorted order: dark, red
        assert torch.all(reds[:, 0] == 1)
        assert torch.all(reds[:, 1] == -1)

    def test_train_and_test_folders(self, tmp_path: Path) -> None:
        for part in ("train", "test"):
            for name in ("a", "b"):
                picture(tmp_path / part / name / "0.png", 100)
        data = Dataset.from_image_folder(tmp_path, size=8, grey=True)
        assert (len(data.x), len(data.x_test), data.shape) == (2, 2, (1, 8, 8))

    def test_broken_picture_is_named(self, tmp_path: Path) -> None:
        picture(tmp_path / "a" / "0.png", 1)
        picture(tmp_path / "b" / "bad.png", 1)
        whole = (tmp_path / "b" / "bad.png").read_bytes()
        (tmp_path / "b" / "bad.png").write_bytes(whole[:40])
        with pytest.raises(InvalidInput, match=r"bad\.png: this picture cannot be decoded"):
            Dataset.from_image_folder(tmp_path)

    def test_empty_class(self, tmp_path: Path) -> None:
        picture(tmp_path / "a" / "0.png", 1)
        (tmp_path / "b").mkdir()
        with pytest.raises(InvalidInput, match="holds no pictures"):
            Dataset.from_image_folder(tmp_path)


def test_digits() -> None:
    data = load("digits")
    assert data.shape == (1, 8, 8)
    assert len(data.x) + len(data.x_test) == 1797
    assert float(data.x.min()) == 0
    assert float(data.x.max()) == 1


def test_unknown_data_set_has_a_suggestion() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'mnist'"):
        load("mnst")


def test_unknown_option_has_a_suggestion() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'label'"):
        load("csv", path="a", lable="b")
