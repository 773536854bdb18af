"""Published data sets: small files in each published format, written here and read back."""

from __future__ import annotations

import gzip
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import undrift
from undrift.core.errors import InvalidInput
from undrift.data import SOURCES, inventory, load
from undrift.data.sources.files import CACHE


def idx(values: np.ndarray) -> bytes:
    head = bytes([0, 0, 8, values.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in values.shape)
    return head + values.astype(np.uint8).tobytes()


def some(shape: tuple[int, ...], high: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape).astype(np.uint8)


def write_mnist(
    folder: Path, *, names: tuple[str, str] = ("train", "t10k"), classes: int = 10, zipped: bool = True
) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for seed, name in enumerate(names):
        images, labels = some((30 - 10 * seed, 28, 28), seed=seed), some((30 - 10 * seed,), classes, seed)
        for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
            raw = idx(values)
            if zipped:
                (folder / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(raw))
            else:
                (folder / f"{name}-{kind}-ubyte").write_bytes(raw)
        made.append((images, labels))
    return made


def decoded(root: Path) -> list[str]:
    """Names of decoded caches, finished or not."""
    folder = root / CACHE
    return sorted(p.name for p in folder.iterdir() if p.is_dir()) if folder.exists() else []


class TestMnist:
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize("folder", ["MNIST/raw", "MNIST"])
    def test_reads_pictures_and_labels(self, tmp_path: Path, zipped: bool, folder: str) -> None:
        (images, labels), (_, labels_test) = write_mnist(tmp_path / folder, zipped=zipped)
        data = load("mnist", tmp_path, verify=False)
        assert data.shape == (1, 28, 28)
        assert data.y.tolist() == labels.tolist()
        assert data.y_test.tolist() == labels_test.tolist()
        expected = (images[:, None] / 255 - 0.1307) / 0.3081
        assert np.allclose(data.x, expected, atol=1e-5)

    def test_fashion_has_its_own_folder(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "FashionMNIST/raw")
        assert len(load("fashion", tmp_path, verify=False)) == 30
        with pytest.raises(InvalidInput, match=r"mnist is not in .*undrift data fetch mnist.*MNIST/raw/train-images"):
            load("mnist", tmp_path)

    def test_parity_labels_keep_the_digit_for_partitions(self, tmp_path: Path) -> None:
        (_, labels), _ = write_mnist(tmp_path / "MNIST/raw")
        data = load("mnist", tmp_path, verify=False, labels="parity")
        assert data.classes == 2
        assert data.y.tolist() == (labels % 2).tolist()
        assert data.labels is not None
        assert data.labels.tolist() == labels.tolist()

    def test_other_bytes_than_published_are_refused(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        with pytest.raises(
            InvalidInput, match=r"train-images-idx3-ubyte\.gz: its checksum is not md5:f68b3c2d"
        ) as caught:
            load("mnist", tmp_path)
        assert "\n" not in str(caught.value)
        assert decoded(tmp_path) == []

    def test_one_file_missing(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
        with pytest.raises(InvalidInput, match=r"t10k-labels-idx1-ubyte\.gz is missing in"):
            load("mnist", tmp_path, verify=False)

    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            (lambda raw: raw[: len(raw) // 2], "gzip data is cut short"),
            (lambda raw: gzip.compress(gzip.decompress(raw)[:-5]), "cut short or damaged: 23515 bytes"),
            (lambda raw: gzip.compress(gzip.decompress(raw)[:9]), "inside its header"),
            (lambda raw: gzip.compress(b"hello world"), "not an IDX file"),
        ],
    )
    def test_damaged_file(self, tmp_path: Path, damage: Any, words: str) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(InvalidInput, match=words) as caught:
            load("mnist", tmp_path, verify=False)
        assert str(path) in str(caught.value)
        assert decoded(tmp_path) == []

    def test_label_outside_the_range(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        labels = np.zeros(30, np.uint8)
        labels[17] = 12
        (tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
        with pytest.raises(InvalidInput, match=r"train-labels.*: row 17 has the label 12: labels are 0 to 9"):
            load("mnist", tmp_path, verify=False)

    def test_pictures_without_labels(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        (tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(3))))
        with pytest.raises(InvalidInput, match=r"\(30, 28, 28\) pictures for \(3,\) labels"):
            load("mnist", tmp_path, verify=False)


class TestCache:
    def test_second_load_maps_the_same_data(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        first = load("mnist", tmp_path, verify=False)
        (name,) = decoded(tmp_path)
        stamp = (tmp_path / CACHE / name / "x.npy").stat().st_mtime_ns
        again = load("mnist", tmp_path, verify=False)
        assert (tmp_path / CACHE / name / "x.npy").stat().st_mtime_ns == stamp
        assert torch.equal(first.x, again.x)
        assert first.fingerprint == again.fingerprint

    def test_pages_come_from_the_file(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        data = load("mnist", tmp_path, verify=False)
        maps = Path("/proc/self/maps").read_text()
        assert str(tmp_path / CACHE / decoded(tmp_path)[0] / "x.npy") in maps
        assert len(data) == 30

    def test_changed_files_are_decoded_again(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        load("mnist", tmp_path, verify=False)
        labels = np.ones(30, np.uint8)
        (tmp_path / "MNIST/raw/train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels)))
        assert set(load("mnist", tmp_path, verify=False).y.tolist()) == {1}

    def test_incomplete_cache_is_made_again(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        before = load("mnist", tmp_path, verify=False)
        folder = tmp_path / CACHE / decoded(tmp_path)[0]
        (folder / "about.json").unlink()
        again = load("mnist", tmp_path, verify=False)
        assert again.fingerprint == before.fingerprint
        assert (folder / "about.json").exists()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
    def test_read_only_root(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        tmp_path.chmod(0o555)
        try:
            assert len(load("mnist", tmp_path, verify=False)) == 30
        finally:
            tmp_path.chmod(0o755)

    def test_root_where_nothing_can_be_kept(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        (tmp_path / CACHE).write_text("a file where the folder would be")
        assert len(load("mnist", tmp_path, verify=False)) == 30


class TestEmnist:
    names = ("emnist-balanced-train", "emnist-balanced-test")

    def test_files_are_turned_upright(self, tmp_path: Path) -> None:
        (images, labels), _ = write_mnist(tmp_path / "EMNIST/raw", names=self.names, classes=47)
        data = load("emnist", tmp_path)
        assert data.classes == 47
        assert data.y.tolist() == labels.tolist()
        assert np.allclose(data.x[:, 0], images.transpose(0, 2, 1) / 127.5 - 1, atol=1e-5)

    def test_zip_reads_the_same(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "a/EMNIST/raw", names=self.names, classes=47)
        (tmp_path / "b/EMNIST/raw").mkdir(parents=True)
        with zipfile.ZipFile(tmp_path / "b/EMNIST/raw/gzip.zip", "w") as archive:
            for file in (tmp_path / "a/EMNIST/raw").iterdir():
                archive.write(file, f"gzip/{file.name}")
        assert load("emnist", tmp_path / "a").fingerprint == load("emnist", tmp_path / "b", verify=False).fingerprint

    def test_damaged_zip(self, tmp_path: Path) -> None:
        (tmp_path / "EMNIST/raw").mkdir(parents=True)
        (tmp_path / "EMNIST/raw/gzip.zip").write_bytes(b"PK\x03\x04 and then nothing")
        with pytest.raises(InvalidInput, match=r"gzip\.zip: the zip is cut short"):
            load("emnist", tmp_path, verify=False)

    def test_zip_without_the_files(self, tmp_path: Path) -> None:
        (tmp_path / "EMNIST/raw").mkdir(parents=True)
        with zipfile.ZipFile(tmp_path / "EMNIST/raw/gzip.zip", "w") as archive:
            archive.writestr("readme", "nothing here")
        with pytest.raises(InvalidInput, match="does not contain emnist-balanced-train-images"):
            load("emnist", tmp_path, verify=False)

    def test_augmentation_can_be_left_out(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "EMNIST/raw", names=self.names, classes=47)
        assert load("emnist", tmp_path).augment is not None
        assert load("emnist", tmp_path, augment="none").augment is None


def write_cifar10(root: Path, form: str) -> tuple[np.ndarray, np.ndarray]:
    folder = root / ("cifar-10-batches-bin" if form == "binary" else "cifar-10-batches-py")
    folder.mkdir(parents=True)
    images, labels = some((24, 3, 32, 32)), some((24,), 10)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    for i, name in enumerate(names):
        x, y = images[4 * i : 4 * i + 4], labels[4 * i : 4 * i + 4]
        if form == "binary":
            np.concatenate([y[:, None], x.reshape(4, -1)], axis=1).tofile(folder / f"{name}.bin")
        else:
            batch = {b"data": x.reshape(4, -1), b"labels": y.tolist(), b"filenames": [b"a.png"] * 4}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return images, labels


class TestCifar:
    @pytest.mark.parametrize("form", ["binary", "python"])
    def test_cifar10(self, tmp_path: Path, form: str) -> None:
        images, labels = write_cifar10(tmp_path, form)
        data = load("cifar10", tmp_path, verify=False)
        assert data.y.tolist() == labels[:20].tolist()
        assert data.y_test.tolist() == labels[20:].tolist()
        mean, spread = (np.array(v).reshape(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
        assert np.allclose(data.x, (images[:20] / 255 - mean) / spread, atol=1e-5)

    @pytest.mark.parametrize("labels", ["fine", "coarse"])
    def test_cifar100_forms_agree(self, tmp_path: Path, labels: str) -> None:
        images, fine, coarse = some((12, 3, 32, 32)), some((12,), 100), some((12,), 20, 1)
        for part, chosen in (("train", slice(0, 8)), ("test", slice(8, 12))):
            x, f, c = images[chosen], fine[chosen], coarse[chosen]
            (tmp_path / "a/cifar-100-binary").mkdir(parents=True, exist_ok=True)
            (tmp_path / "b/cifar-100-python").mkdir(parents=True, exist_ok=True)
            rows = np.concatenate([c[:, None], f[:, None], x.reshape(len(x), -1)], axis=1)
            rows.tofile(tmp_path / f"a/cifar-100-binary/{part}.bin")
            batch = {b"data": x.reshape(len(x), -1), b"fine_labels": f.tolist(), b"coarse_labels": c.tolist()}
            (tmp_path / f"b/cifar-100-python/{part}").write_bytes(pickle.dumps(batch, protocol=2))
        one, two = (load("cifar100", tmp_path / r, verify=False, labels=labels) for r in "ab")
        assert one.fingerprint == two.fingerprint
        assert one.y.tolist() == (fine if labels == "fine" else coarse)[:8].tolist()
        assert one.classes == (100 if labels == "fine" else 20)

    def test_pickle_with_code_is_refused_and_not_run(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path, "python")
        trap = tmp_path / "trap"

        class Trap:
            def __reduce__(self) -> Any:
                return (os.mkdir, (str(trap),))

        path = tmp_path / "cifar-10-batches-py/data_batch_2"
        path.write_bytes(pickle.dumps({b"data": Trap(), b"labels": []}, protocol=2))
        with pytest.raises(InvalidInput, match=r"data_batch_2: it is damaged or holds more than arrays"):
            load("cifar10", tmp_path, verify=False)
        assert not trap.exists()

    def test_pickle_cut_short(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path, "python")
        path = tmp_path / "cifar-10-batches-py/test_batch"
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises(InvalidInput, match=r"test_batch: it is (damaged|not a CIFAR file)"):
            load("cifar10", tmp_path, verify=False)

    def test_binary_cut_short(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path, "binary")
        path = tmp_path / "cifar-10-batches-bin/data_batch_3.bin"
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(InvalidInput, match=r"data_batch_3\.bin: it is cut short"):
            load("cifar10", tmp_path, verify=False)

    def test_bad_label(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path, "binary")
        path = tmp_path / "cifar-10-batches-bin/test_batch.bin"
        raw = bytearray(path.read_bytes())
        raw[3073] = 10
        path.write_bytes(raw)
        with pytest.raises(InvalidInput, match=r"test_batch\.bin: row 1 has the label 10"):
            load("cifar10", tmp_path, verify=False)

    def test_augmentations_share_one_cache(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path, "binary")
        plain, moved = (load("cifar10", tmp_path, verify=False, augment=a) for a in ("none", "always"))
        assert plain.augment is None
        assert plain.fingerprint != moved.fingerprint
        assert len(decoded(tmp_path)) == 1


def jpeg(path: Path, colour: tuple[int, int, int], size: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), colour).save(path, format="JPEG", quality=95)


class TestTinyImageNet:
    def write(self, root: Path) -> Path:
        folder = root / "tiny-imagenet-200"
        for name, colour in (("n02", (250, 0, 0)), ("n01", (0, 0, 250))):
            for i in range(3):
                jpeg(folder / "train" / name / "images" / f"{name}_{i}.JPEG", colour)
        jpeg(folder / "val/images/val_0.JPEG", (0, 0, 250))
        jpeg(folder / "val/images/val_1.JPEG", (250, 0, 0))
        (folder / "wnids.txt").write_text("n02\nn01\n")
        (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn01\t0\t0\t1\t1\nval_1.JPEG\tn02\t0\t0\t1\t1\n")
        return folder

    @pytest.mark.parametrize("pixels", [64, 16])
    def test_folders(self, tmp_path: Path, pixels: int) -> None:
        self.write(tmp_path)
        data = load("tinyimagenet", tmp_path, pixels=pixels)
        assert data.shape == (3, pixels, pixels)
        assert data.class_names == ("n02", "n01")  # the order of wnids.txt
        assert data.y_test.tolist() == [1, 0]
        red = data.x[data.y == 0].mean((0, 2, 3))
        assert red[0] > 0.9
        assert red[2] < -0.9

    def test_broken_picture(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path)
        bad = folder / "train/n01/images/n01_1.JPEG"
        bad.write_bytes(bad.read_bytes()[:200])
        with pytest.raises(InvalidInput, match=r"n01_1\.JPEG: this picture cannot be decoded"):
            load("tinyimagenet", tmp_path)
        assert decoded(tmp_path) == []

    def test_unknown_class(self, tmp_path: Path) -> None:
        folder = self.write(tmp_path)
        (folder / "val/val_annotations.txt").write_text("val_0.JPEG\tn01\nval_1.JPEG\tn09\n")
        with pytest.raises(InvalidInput, match=r"val_annotations\.txt: line 2"):
            load("tinyimagenet", tmp_path)


class TestOrgan:
    def write(self, root: Path, **changed: np.ndarray) -> Path:
        arrays = {}
        for seed, (part, n) in enumerate((("train", 20), ("val", 6), ("test", 8))):
            arrays[f"{part}_images"] = some((n, 28, 28), seed=seed)
            arrays[f"{part}_labels"] = some((n, 1), 11, seed)
        path = root / "organcmnist.npz"
        np.savez(path, **{**arrays, **changed})
        return path

    def test_parts(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("organcmnist", tmp_path, verify=False)
        assert (len(data.x), len(data.x_test), data.classes, data.shape) == (20, 8, 11, (1, 28, 28))
        assert np.allclose(data.x[:, 0], some((20, 28, 28)) / 127.5 - 1, atol=1e-5)
        assert len(load("organcmnist", tmp_path, verify=False, validation_part="train")) == 26

    def test_pooled_and_split_again(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("organcmnist", tmp_path, verify=False, split="pooled", test_fraction=0.5)
        assert len(data.x) + len(data.x_test) == 34
        labels = np.concatenate([some((n, 1), 11, seed) for seed, n in enumerate((20, 6, 8))]).reshape(-1)
        assert np.bincount(np.concatenate([data.y, data.y_test])).tolist() == np.bincount(labels).tolist()
        for label in range(11):
            count = int((labels == label).sum())
            assert int((data.y_test == label).sum()) == min(int(count * 0.5 + 0.5), max(count - 1, 0))

    def test_published_checksum(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        with pytest.raises(InvalidInput, match=r"organcmnist\.npz: its checksum"):
            load("organcmnist", tmp_path)

    def test_damage(self, tmp_path: Path) -> None:
        path = self.write(tmp_path)
        path.write_bytes(path.read_bytes()[:5000])
        with pytest.raises(InvalidInput, match=r"organcmnist\.npz: .*cut short or damaged"):
            load("organcmnist", tmp_path, verify=False)

    @pytest.mark.parametrize(
        ("changed", "words"),
        [
            ({"train_labels": np.full((20, 1), 11)}, "row 0 has the label 11"),
            ({"test_images": np.zeros((7, 28, 28))}, "test_images has the shape"),
        ],
    )
    def test_bad_content(self, tmp_path: Path, changed: dict[str, np.ndarray], words: str) -> None:
        self.write(tmp_path, **changed)
        with pytest.raises(InvalidInput, match=words) as caught:
            load("organcmnist", tmp_path, verify=False)
        assert "organcmnist.npz" in str(caught.value)


class TestHeart:
    """Four hospitals; the third never measured the cholesterol, as in the published files."""

    def write(self, root: Path) -> Path:
        draw = np.random.default_rng(0)
        (root / "heart-disease").mkdir()
        for place in ("cleveland", "hungarian", "switzerland", "va"):
            rows = []
            for i in range(40):
                chol = "0" if place == "switzerland" else str(draw.integers(150, 300))
                sugar, thal = ("?", "?") if i % 5 == 0 else ("1" if place == "va" else "0", "3.0")
                row = [50 + i % 9, i % 2, 1 + i % 4, 120, chol, sugar, i % 3, 150, 0, 1.5, 1 + i % 3, "?", thal, i % 5]
                if i < 3:
                    row[11] = i
                rows.append(",".join(map(str, row)))
            (root / f"heart-disease/processed.{place}.data").write_text("\n".join(rows) + "\n")
        return root / "heart-disease"

    def test_four_hospitals(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("heart", tmp_path)
        assert (len(data.x), len(data.x_test), data.classes, data.class_names) == (120, 40, 2, ("none", "disease"))
        assert data.client is not None
        assert np.unique(data.client, return_counts=True)[1].tolist() == [30, 30, 30, 30]
        assert len(data.feature_names) == data.shape[0] == 15
        assert torch.isfinite(data.x).all()
        assert torch.allclose(data.x.mean(0), torch.zeros(15), atol=1e-5)
        assert data.fingerprint == load("heart", tmp_path).fingerprint

    def test_findings_are_filled_with_the_hospitals_own(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("heart", tmp_path)
        sugar = data.x[:, data.feature_names.index("fbs")]
        assert data.client is not None
        assert len(sugar[torch.from_numpy(data.client == "va")].unique()) == 1
        assert len(sugar[torch.from_numpy(data.client == "cleveland")].unique()) == 1
        assert len(sugar.unique()) == 2

    def test_what_a_hospital_never_measured_is_the_mean_of_the_others(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("heart", tmp_path)
        assert data.client is not None
        swiss = torch.from_numpy(data.client == "switzerland")
        chol = data.x[:, data.feature_names.index("chol")]
        assert len(chol[swiss].unique()) == 1
        assert abs(float(chol[swiss][0])) < 0.2  # near the mean of all

    def test_grades_and_all_columns(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("heart", tmp_path, labels="grade", columns="all")
        assert (data.classes, data.shape) == (5, (22,))
        assert data.feature_names[-4:] == ("ca", "thal = 3", "thal = 6", "thal = 7")

    def test_the_hospitals_are_the_clients(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        result = undrift.run(data=load("heart", tmp_path), rounds=2)
        assert result.history.rounds[-1].participants == 4

    @pytest.mark.parametrize(
        ("column", "value", "words"),
        [
            (13, "7", "row 2 has the label 7: labels are 0 to 4"),
            (2, "9", "row 2 has 9 in column 'cp': it is one of 1, 2, 3, 4"),
            (0, "old", "row 2 has 'old' in column 'age', which is not a number"),
            (13, "?", "row 2 has no value in column 'num'"),
        ],
    )
    def test_bad_rows(self, tmp_path: Path, column: int, value: str, words: str) -> None:
        path = self.write(tmp_path) / "processed.va.data"
        lines = path.read_text().splitlines()
        row = lines[1].split(",")
        row[column] = value
        path.write_text("\n".join([lines[0], ",".join(row), *lines[2:]]))
        with pytest.raises(InvalidInput, match=words):
            load("heart", tmp_path)

    def test_a_row_cut_short(self, tmp_path: Path) -> None:
        path = self.write(tmp_path) / "processed.va.data"
        path.write_text(path.read_text()[:-4])
        with pytest.raises(InvalidInput, match=r"processed\.va\.data: row 40 has 13 values"):
            load("heart", tmp_path)


class TestUciHar:
    channels = tuple(f"{k}_{a}" for k in ("body_acc", "body_gyro", "total_acc") for a in "xyz")

    def write(self, root: Path) -> dict[str, np.ndarray]:
        made = {}
        generator = np.random.default_rng(0)
        for part, subjects in (("train", (1, 3)), ("test", (2,))):
            folder = root / "UCI HAR Dataset" / part
            (folder / "Inertial Signals").mkdir(parents=True)
            subject = np.repeat(subjects, 20)
            y = np.tile(np.repeat([1, 6], 10), len(subjects))
            np.savetxt(folder / f"y_{part}.txt", y, fmt="%d")
            np.savetxt(folder / f"subject_{part}.txt", subject, fmt="%d")
            np.savetxt(folder / f"X_{part}.txt", generator.normal(size=(len(y), 561)), fmt="%16.7e")
            made[part] = generator.normal(size=(9, len(y), 128))
            for name, values in zip(self.channels, made[part], strict=True):
                np.savetxt(folder / "Inertial Signals" / f"{name}_{part}.txt", values, fmt="%16.7e")
            made[f"{part}_y"], made[f"{part}_subject"] = y, subject
        return made

    def test_signals_by_subject(self, tmp_path: Path) -> None:
        made = self.write(tmp_path)
        data = load("ucihar", tmp_path, verify=False)
        assert data.shape == (9, 128)
        assert data.y.tolist() == (made["train_y"] - 1).tolist()
        assert data.client is not None
        assert data.client_test is not None
        assert set(data.client) == {1, 3}
        assert set(data.client_test) == {2}
        raw = made["train"].transpose(1, 0, 2)
        expected = (raw - raw.mean((0, 2), keepdims=True)) / raw.std((0, 2), keepdims=True)
        assert np.allclose(data.x, expected, atol=1e-5)

    def test_features(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("ucihar", tmp_path, verify=False, form="features")
        assert data.shape == (561,)
        assert torch.allclose(data.x.mean(0), torch.zeros(561), atol=1e-5)

    def test_within_subjects_no_window_is_shared(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("ucihar", tmp_path, verify=False, split="within", test_fraction=0.2)
        assert data.client is not None
        assert data.client_test is not None
        assert set(data.client) == set(data.client_test) == {1, 2, 3}
        # every stretch of ten windows: 7 to train on, one that overlaps both sides left out, 2 to test on
        assert (len(data.x), len(data.x_test)) == (6 * 7, 6 * 2)

    def test_missing_feature_files_are_named(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        (tmp_path / "UCI HAR Dataset/train/X_train.txt").unlink()
        with pytest.raises(InvalidInput, match=r"UCI HAR Dataset/train/X_train\.txt is missing"):
            load("ucihar", tmp_path, verify=False, form="features")

    @pytest.mark.parametrize(
        ("file", "old", "new", "words"),
        [
            ("train/y_train.txt", "6", "7", "line 11 has the label 7: labels are 1 to 6"),
            ("train/subject_train.txt", "3", "31", "line 21 has the label 31"),
            ("test/y_test.txt", "6\n", "six\n", "line 11 holds something that is not a number"),
            ("test/y_test.txt", "6\n", "", "y_test"),
        ],
    )
    def test_bad_labels(self, tmp_path: Path, file: str, old: str, new: str, words: str) -> None:
        self.write(tmp_path)
        path = tmp_path / "UCI HAR Dataset" / file
        path.write_text(path.read_text().replace(old, new, 1 if old.endswith("\n") else -1))
        with pytest.raises(InvalidInput, match=words):
            load("ucihar", tmp_path, verify=False)

    @pytest.mark.parametrize(("value", "words"), [("nan", "not a finite number"), ("", "has 127 values, not 128")])
    def test_bad_signal(self, tmp_path: Path, value: str, words: str) -> None:
        self.write(tmp_path)
        path = tmp_path / "UCI HAR Dataset/test/Inertial Signals/body_gyro_y_test.txt"
        lines = path.read_text().splitlines()
        lines[4] = " ".join([value, *lines[4].split()[1:]])
        path.write_text("\n".join(lines) + "\n")
        with pytest.raises(InvalidInput, match=f"body_gyro_y_test.txt: line 5 .*{words}"):
            load("ucihar", tmp_path, verify=False)


class TestPamap2:
    options: dict[str, Any] = {"window": 20, "stride": 10, "every": 2, "test_fraction": 0.25}  # noqa: RUF012

    def write(self, root: Path, change: Any = None) -> None:
        folder = root / "PAMAP2_Dataset/Protocol"
        folder.mkdir(parents=True)
        for n in range(101, 110):
            rows = np.full((200, 54), np.nan)
            rows[:, 0] = np.arange(200) / 100
            rows[:, 1] = np.repeat([0, 1, 24, 9], 50)  # transient, lying, rope jumping, not in the protocol
            rows[:, 3:] = np.arange(200)[:, None] + np.arange(51)  # straight lines
            if change:
                change(n, rows)
            np.savetxt(folder / f"subject{n}.dat", rows, fmt="%.6g")

    def test_windows_by_subject(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        data = load("pamap2", tmp_path, **self.options)
        assert data.shape == (27, 10)
        assert data.classes == 12
        # 50 steps make windows at 0, 10, 20, 30: two to train on, one overlaps, one to test on
        assert (len(data.x), len(data.x_test)) == (9 * 2 * 2, 9 * 2)
        assert set(data.y.tolist()) == {0, 11}
        assert data.client is not None
        assert set(data.client) == set(range(101, 110))

    def test_gaps_are_filled_by_straight_lines(self, tmp_path: Path) -> None:
        def gap(n: int, rows: np.ndarray) -> None:
            rows[60, 4:10] = np.nan  # 6 of 54 values in a row that is a line: filling restores it

        self.write(tmp_path / "a")
        self.write(tmp_path / "b", gap)
        whole, filled = load("pamap2", tmp_path / "a", **self.options), load("pamap2", tmp_path / "b", **self.options)
        assert torch.allclose(whole.x, filled.x, atol=1e-5)

    def test_windows_with_too_much_missing_are_left_out(self, tmp_path: Path) -> None:
        def gap(n: int, rows: np.ndarray) -> None:
            rows[50:60, 3:] = np.nan

        self.write(tmp_path, gap)
        data = load("pamap2", tmp_path, **self.options)
        lying = int((data.y == 0).sum() + (data.y_test == 0).sum())
        jumping = int((data.y == 11).sum() + (data.y_test == 11).sum())
        assert lying < jumping

    def test_column_without_values(self, tmp_path: Path) -> None:
        def blank(n: int, rows: np.ndarray) -> None:
            if n == 103:
                rows[:, 4] = np.nan

        self.write(tmp_path, blank)
        with pytest.raises(InvalidInput, match=r"subject103\.dat: column 5 has no values at all"):
            load("pamap2", tmp_path, **self.options)

    def test_bad_activity(self, tmp_path: Path) -> None:
        def strange(n: int, rows: np.ndarray) -> None:
            rows[7, 1] = 99

        self.write(tmp_path, strange)
        with pytest.raises(InvalidInput, match=r"subject101\.dat: line 8 has the activity 99"):
            load("pamap2", tmp_path, **self.options)

    def test_cut_line(self, tmp_path: Path) -> None:
        self.write(tmp_path)
        path = tmp_path / "PAMAP2_Dataset/Protocol/subject105.dat"
        path.write_text(path.read_text()[:-40])
        with pytest.raises(InvalidInput, match=r"subject105\.dat: line 200 has \d+ values, not 54"):
            load("pamap2", tmp_path, **self.options)


class TestCovidx:
    def folder(self, root: Path) -> Path:
        folder = root / "covid-chestxray-dataset"
        rows = ["patientid,finding,view,modality,filename"]
        for i in range(12):
            name = f"{i}.jpg"
            jpeg(folder / "images" / name, (20 * i, 20 * i, 20 * i), 32)
            finding = "Pneumonia/Viral/COVID-19" if i % 2 else "No Finding"
            rows.append(f"p{i // 2},{finding},PA,X-ray,{name}")
        rows.append("p9,todo,PA,X-ray,none.jpg")
        rows.append("p9,No Finding,L,X-ray,none.jpg")
        (folder / "metadata.csv").write_text("\n".join(rows) + "\n")
        return folder

    def test_folder_with_metadata(self, tmp_path: Path) -> None:
        self.folder(tmp_path)
        data = load("covidx", tmp_path, pixels=16)
        assert data.shape == (1, 16, 16)
        assert len(data.x) + len(data.x_test) == 12
        assert int(data.y.sum() + data.y_test.sum()) == 6
        assert data.client is not None
        assert data.client_test is not None
        assert not set(data.client) & set(data.client_test)

    def test_named_picture_is_not_there(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        (folder / "images/3.jpg").unlink()
        with pytest.raises(InvalidInput, match=r"metadata\.csv: row 5 names 3\.jpg, which is not in"):
            load("covidx", tmp_path)

    def test_metadata_without_patients(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        text = (folder / "metadata.csv").read_text()
        (folder / "metadata.csv").write_text(text.replace("patientid", "patient_id"))
        with pytest.raises(InvalidInput, match="did you mean 'patient_id'"):
            load("covidx", tmp_path)

    def test_npz(self, tmp_path: Path) -> None:
        (tmp_path / "covid-chestxray-64").mkdir()
        path = tmp_path / "covid-chestxray-64/covid_chestxray_64.npz"
        patient = np.array([f"p{i // 3}" for i in range(30)])
        np.savez(path, images=some((30, 64, 64)), covid=np.arange(30) % 2, patient=patient)
        data = load("covidx", tmp_path)
        assert (len(data.x), len(data.x_test), data.shape) == (24, 6, (1, 64, 64))
        with pytest.raises(InvalidInput, match="64 x 64, not 32"):
            load("covidx", tmp_path, pixels=32)


def test_fire(tmp_path: Path) -> None:
    folder = tmp_path / "fire-dataset-dunnings/images-224x224"
    for part in ("train", "test"):
        jpeg(folder / part / "fire" / "a.png", (255, 0, 0))
        jpeg(folder / part / "nofire" / "b.png", (0, 0, 0))
    data = load("fire", tmp_path, pixels=16)
    assert data.y.tolist() == [1, 0]
    assert data.x[0, 0].mean() > 0.9
    assert data.class_names == ("no fire", "fire")


class TestInventory:
    def test_states(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        write_mnist(tmp_path / "EMNIST/raw", names=TestEmnist.names)
        (tmp_path / "FashionMNIST/raw").mkdir(parents=True)
        (tmp_path / "FashionMNIST/raw/train-images-idx3-ubyte.gz").write_bytes(b"")
        rows = {row.name: row for row in inventory(tmp_path)}
        assert set(rows) == set(SOURCES)
        assert (rows["mnist"].state, rows["mnist"].checksums) == ("present", "not checked")
        assert (rows["emnist"].state, rows["emnist"].checksums) == ("present", "none published")
        assert rows["fashion"].state == "incomplete"
        assert rows["cifar10"].state == "missing"
        assert rows["digits"].state == "embedded"
        checked = {row.name: row for row in inventory(tmp_path, check=True)}
        assert checked["mnist"].checksums == "wrong: MNIST/raw/train-images-idx3-ubyte.gz"
        remembered = {row.name: row for row in inventory(tmp_path)}
        assert remembered["mnist"].checksums == checked["mnist"].checksums

    def test_every_published_source_says_where_it_is_from(self) -> None:
        for row in inventory():
            if row.state not in ("yours", "embedded"):
                assert row.homepage.startswith("http")
                assert row.licence
                assert row.size
                assert row.files
