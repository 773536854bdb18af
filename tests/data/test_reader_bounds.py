"""Files that lie about their size, never end, or are no files: a sentence, and no memory taken for what they claim."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import resource
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib import format as npy
from test_fetch import zip_of
from test_sources import idx, some, write_cifar10, write_mnist

from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.data import PARTITIONERS, Dataset, load, partition
from undrift.data.bounds import memory
from undrift.data.sources.archives import unpack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is measured as Linux counts it")
ALLOWED = 700_000  # kilobytes that may be added to this process' peak: far less than what the files below claim


@pytest.fixture(autouse=True)
def frugal() -> Any:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ALLOWED


def header(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    out = io.BytesIO()
    npy.write_array_header_1_0(out, {"descr": kind, "fortran_order": False, "shape": shape})
    return out.getvalue()


def packed(head: bytes, zeros: int, bits: int = -15) -> bytes:
    """A deflated stream of the head and so many zeros, made from one block again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, bits)
    first = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(10_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (zeros // 10_000_000) + packer.flush()


def swollen(path: Path, name: str, head: bytes, zeros: int) -> None:
    """A zip with one file of the head and so many zeros."""
    body, title, size = packed(head, zeros), name.encode(), len(head) + zeros
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 8, 0, 0, 0, len(body), size, len(title), 0) + title + body
    entry = (20, 20, 0, 8, 0, 0, 0, len(body), size, len(title), 0, 0, 0, 0, 0, 0)
    central = struct.pack("<4s6H3I5H2I", b"PK\1\2", *entry) + title
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local), 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(local + central + end)


class TestNpz:
    def test_a_small_file_of_gigabytes_of_zeros(self, tmp_path: Path) -> None:
        path, size = tmp_path / "zeros.npz", 3_200_000_000
        swollen(path, "x.npy", header((size // 4,)), size)
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("y.npy", header((2,), "<i8") + bytes(16))
        assert path.stat().st_size < 4_000_000
        with pytest.raises(InvalidInput, match=r"zeros\.npz: x claims to grow from .* MB to 3\.2 GB"):
            Dataset.from_npz(path)

    @pytest.mark.parametrize("shape", [(10**12,), (2**40, 2**40), (3,), (0,)])
    def test_a_shape_that_the_bytes_do_not_make(self, tmp_path: Path, shape: tuple[int, ...]) -> None:
        path = tmp_path / "lies.npz"
        path.write_bytes(zip_of({"x.npy": header(shape) + bytes(8), "y.npy": header((2,), "<i8") + bytes(16)}))
        with pytest.raises(InvalidInput, match=r"lies\.npz: x claims the shape .* its bytes do not make"):
            Dataset.from_npz(path)

    @pytest.mark.parametrize("kind", ["|O", "<c8", "<M8[s]", "V100"])
    def test_other_things_than_numbers_and_texts(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "odd.npz"
        path.write_bytes(zip_of({"x.npy": header((2,), kind) + bytes(200), "y.npy": header((2,), "<i8") + bytes(16)}))
        with pytest.raises(InvalidInput, match=r"odd\.npz: x holds .* not numbers or texts"):
            Dataset.from_npz(path)


class TestIdx:
    def big(self, values: int) -> bytes:
        return bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (values, 28, 28))

    @pytest.mark.parametrize("packed", [True, False])
    def test_a_header_that_claims_billions_of_pictures(self, tmp_path: Path, packed: bool) -> None:
        write_mnist(tmp_path / "MNIST/raw", zipped=packed)
        raw = self.big(2**32 - 1) + bytes(1000)
        path = tmp_path / f"MNIST/raw/train-images-idx3-ubyte{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(raw) if packed else raw)
        with pytest.raises(InvalidInput, match=r"train-images-idx3-ubyte.*(claims to grow|do not make)"):
            load("mnist", tmp_path, verify=False)

    def test_gzip_that_goes_on_behind_the_data(self, tmp_path: Path) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        raw = packed(idx(some((30, 28, 28))), 2_000_000_000, bits=31)
        (tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz").write_bytes(raw)
        with pytest.raises(InvalidInput, match="more bytes of data do not make"):
            load("mnist", tmp_path, verify=False)

    def test_zip_member_that_grows(self, tmp_path: Path) -> None:
        name = "gzip/emnist-balanced-train-images-idx3-ubyte.gz"
        swollen(tmp_path / "EMNIST/raw/gzip.zip", name, b"", 2_000_000_000)
        with pytest.raises(InvalidInput, match=r"claims to grow from .* to 2\.0 GB"):
            load("emnist", tmp_path, verify=False)


def test_picture_that_claims_a_square_kilometre(tmp_path: Path) -> None:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 0, 0, 0, 0)
        content = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
        (tmp_path / name / "one.png").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    with pytest.raises(InvalidInput, match=r"one\.png: .*more.*than can be meant"):
        Dataset.from_image_folder(tmp_path)


def test_pictures_larger_than_memory_are_refused_at_once(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "one.png")
    with pytest.raises(InvalidInput, match="more than the memory of this machine"):
        Dataset.from_image_folder(tmp_path, size=10**6)


class TestTables:
    @pytest.mark.parametrize("number", ["9" * 5000, "1e999", "1" + "0" * 60, "inf"])
    def test_numbers_that_are_none(self, tmp_path: Path, number: str) -> None:
        path = tmp_path / "wide.csv"
        path.write_text(f"a,label\n1,x\n{number},y\n3,x\n4,y\n")
        with pytest.raises(InvalidInput, match=r"row 3 has .* in column 'a'"):
            Dataset.from_csv(path, "label")

    def test_a_label_of_megabytes(self, tmp_path: Path) -> None:
        path = tmp_path / "long.csv"
        path.write_text("a,label\n" + f"1,{'x' * 100_000}\n" + "2,y\n" * 500)
        with pytest.raises(InvalidInput, match="row 2 has a text of 100000 characters in column 'label'"):
            Dataset.from_csv(path, "label")

    def test_numbers_of_classes_and_clients_are_names(self, tmp_path: Path) -> None:
        path = tmp_path / "codes.csv"
        rows = [f"{i},{10**30 + i % 2},{10**40 + i % 2}" for i in range(20)]
        path.write_text("\n".join(["a,label,client", *rows]) + "\n")
        data = Dataset.from_csv(path, "label", client="client")
        assert data.class_names == (str(10**30), str(10**30 + 1))
        assert data.client is not None
        assert len(set(data.client.tolist())) == 2


class TestPickles:
    def refused(self, root: Path, raw: bytes) -> None:
        write_cifar10(root, "python")
        (root / "cifar-10-batches-py/data_batch_1").write_bytes(raw)
        with pytest.raises(InvalidInput, match=r"data_batch_1: it (is damaged|holds more|is not a CIFAR)"):
            load("cifar10", root, verify=False)

    @pytest.mark.parametrize("kind", ["O8", "V8", "u8", "M8", "f4", "u1,u1", "S1000000000"])
    def test_other_types_than_bytes(self, tmp_path: Path, kind: str) -> None:
        good = pickle.dumps({b"data": some((2, 3072)), b"labels": [1, 2]}, protocol=2)
        assert b"u1" in good
        place = good.index(b"X\x02\x00\x00\x00u1")
        text = b"X" + struct.pack("<I", len(kind)) + kind.encode()
        self.refused(tmp_path, good[:place] + text + good[place + 7 :])

    def test_a_shape_that_the_bytes_do_not_make(self, tmp_path: Path) -> None:
        good = pickle.dumps({b"data": some((2, 3072)), b"labels": [1, 2]}, protocol=2)
        assert b"M\x00\x0c" in good  # 3072 as two bytes
        self.refused(tmp_path, good.replace(b"M\x00\x0c", b"M\xff\xff", 1))

    def test_lists_that_double_and_double(self, tmp_path: Path) -> None:
        deep: Any = [0, 1]
        for _ in range(40):
            deep = [deep, deep]
        self.refused(tmp_path, pickle.dumps({b"data": some((2, 3072)), b"labels": deep}, protocol=2))

    def test_a_list_that_holds_itself(self, tmp_path: Path) -> None:
        deep: list[Any] = []
        deep.append(deep)
        self.refused(tmp_path, pickle.dumps({b"data": some((2, 3072)), b"labels": deep}, protocol=2))

    def test_random_damage_is_a_sentence(self, tmp_path: Path) -> None:
        write_cifar10(tmp_path, "python")
        path = tmp_path / "cifar-10-batches-py/data_batch_1"
        good = path.read_bytes()
        draw = np.random.default_rng(0)
        for _ in range(300):
            raw = bytearray(good)
            for place in draw.integers(0, 400, 3):  # the program of the pickle; behind it are pixels
                raw[place] = draw.integers(256)
            path.write_bytes(raw)
            try:
                load("cifar10", tmp_path, verify=False)
            except InvalidInput:
                continue


class TestArchives:
    def test_only_what_belongs_to_the_data_set_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "MNIST").mkdir()
        (tmp_path / "MNIST/raw").write_bytes(b"mine")
        (tmp_path / ".undrift").mkdir()
        (tmp_path / ".undrift/checksums.json").write_text("{}")
        evil = {"folder/data.bin": b"x", "MNIST/raw": b"theirs", ".undrift/checksums.json": b"[]", "setup.py": b"!"}
        (tmp_path / "all.zip").write_bytes(zip_of(evil))
        unpack(tmp_path / "all.zip", tmp_path, {"folder"})
        assert (tmp_path / "MNIST/raw").read_bytes() == b"mine"
        assert (tmp_path / ".undrift/checksums.json").read_text() == "{}"
        assert sorted(p.name for p in tmp_path.iterdir()) == [".undrift", "MNIST", "all.zip", "folder"]

    def test_a_small_archive_of_gigabytes(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.zip"
        swollen(path, "folder/x", b"", 2_000_000_000)
        with pytest.raises(InvalidInput, match="would unpack to more than"):
            unpack(path, tmp_path, {"folder"})
        assert sorted(p.name for p in tmp_path.iterdir()) == ["bomb.zip"]

    def test_a_link_out_of_the_folder(self, tmp_path: Path) -> None:
        import tarfile

        path = tmp_path / "links.tar"
        with tarfile.open(path, "w") as tar:
            link = tarfile.TarInfo("folder/out")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc"
            tar.addfile(link)
        with pytest.raises(InvalidInput, match="cannot be unpacked"):
            unpack(path, tmp_path, {"folder"})


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def device(path: Path) -> Path:
    path.symlink_to("/dev/zero")
    return path


class TestNoFiles:
    """A pipe that nobody writes to would be waited for, and /dev/zero never ends."""

    @pytest.mark.parametrize("make", [pipe, device])
    @pytest.mark.parametrize(
        ("name", "read"),
        [
            ("x.csv", lambda path: Dataset.from_csv(path, "label")),
            ("x.parquet", lambda path: Dataset.from_parquet(path, "label")),
            ("x.npz", Dataset.from_npz),
        ],
    )
    def test_own_files(
        self, tmp_path: Path, make: Callable[[Path], Path], name: str, read: Callable[[Path], Dataset]
    ) -> None:
        with pytest.raises(InvalidInput, match=rf"{name}: it is a (pipe|device), not a file"):
            read(make(tmp_path / name))

    @pytest.mark.parametrize("make", [pipe, device])
    @pytest.mark.parametrize("verify", [True, False])
    def test_published_files(self, tmp_path: Path, make: Callable[[Path], Path], verify: bool) -> None:
        write_mnist(tmp_path / "MNIST/raw")
        path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
        path.unlink()
        make(path)
        with pytest.raises(InvalidInput, match=r"train-images-idx3-ubyte\.gz: it is a (pipe|device), not a file"):
            load("mnist", tmp_path, verify=verify)

    @pytest.mark.parametrize("make", [pipe, device])
    def test_pictures(self, tmp_path: Path, make: Callable[[Path], Path]) -> None:
        for name in ("cats", "dogs"):
            (tmp_path / name).mkdir()
            make(tmp_path / name / "one.png")
        with pytest.raises(InvalidInput, match=r"one\.png: it is a (pipe|device), not a file"):
            Dataset.from_image_folder(tmp_path)

    @pytest.mark.parametrize("make", [pipe, device])
    def test_experiments(
        self, tmp_path: Path, make: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command(["run", str(make(tmp_path / "one.toml"))]) == 2
        assert "it is a" in " ".join(capsys.readouterr().err.split())

    def test_an_experiment_of_gigabytes(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "huge.toml"
        with path.open("wb") as file:
            file.truncate(5_000_000_000)
        assert command(["run", str(path)]) == 2
        assert "no experiment is so long" in " ".join(capsys.readouterr().err.split())

    def test_an_endless_table(self, tmp_path: Path) -> None:
        path = tmp_path / "sparse.csv"
        with path.open("wb") as file:
            file.truncate(4 * memory())
        with pytest.raises(InvalidInput, match=r"sparse\.csv: it takes .* more than the memory of this machine"):
            Dataset.from_csv(path, "label")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("quantity", {"sizes": [1e300, 1.0]}),
        ("quantity", {"min_size": 10**18}),
        ("dirichlet", {"min_size": 10**18}),
        ("dirichlet-equal", {"samples": 10**18}),
        ("classes", {"classes_per_client": 10**18}),
        ("balanced-recycling", {"samples": 10**18}),
    ],
)
def test_partitions_of_sizes_that_nobody_has(name: str, settings: dict[str, Any]) -> None:
    assert name in PARTITIONERS
    with pytest.raises(InvalidInput, match=f"partition {name}: "):
        partition(name, np.arange(40) % 4, 2, seed=1, **settings)


def test_more_clients_than_fit_into_an_integer() -> None:
    with pytest.raises(InvalidInput, match="40 samples are fewer than"):
        partition("iid", np.arange(40) % 4, 10**30, seed=1)
