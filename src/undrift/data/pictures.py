"""Published data sets of pictures, normalised, split and augmented as the papers do."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.core import rng
from undrift.core.errors import InvalidInput, unknown
from undrift.core.settings import at_least
from undrift.data import formats, tables
from undrift.data.augment import FlipAffine, FlipCrop, black
from undrift.data.dataset import Augmentation, Dataset, InvalidFile
from undrift.data.images import list_classes, read_images, scale
from undrift.data.source import Fraction, Published
from undrift.data.store import CACHE, File, Layout


class _Idx(Published):
    """Four IDX files: training and test pictures and labels."""

    folder: ClassVar[str]
    files: ClassVar[tuple[tuple[str, str], ...]]  # name and md5: train images, train labels, test images, test labels
    url: ClassVar[str] = ""
    classes: ClassVar[int] = 10
    mean: ClassVar[float] = 0.1307
    spread: ClassVar[float] = 0.3081

    def layouts(self) -> tuple[Layout, ...]:
        def listed(folder: str) -> tuple[File, ...]:
            return tuple(File(f"{folder}/{n}", f"md5:{d}" if d else "", self.url + n) for n, d in self.files)

        return Layout("raw", listed(f"{self.folder}/raw")), Layout("flat", listed(self.folder))

    def arrays(self, root: Path, layout: Layout) -> list[tuple[NDArray[Any], Path]]:
        return [(formats.read_idx(path), path) for path in (f.at(root) for f in layout.files)]

    def read(self, root: Path, layout: Layout) -> Dataset:
        (x, px), (y, py), (x_test, pt), (y_test, pyt) = self.arrays(root, layout)
        for images, labels, path in ((x, y, px), (x_test, y_test, pt)):
            if images.ndim != 3 or len(images) != len(labels):
                raise InvalidInput(f"{path}: {images.shape} pictures for {labels.shape} labels")
        return self.dataset(
            scale(x[:, None], (self.mean,), (self.spread,)),
            formats.check_labels(y, self.classes, py),
            scale(x_test[:, None], (self.mean,), (self.spread,)),
            formats.check_labels(y_test, self.classes, pyt),
            self.classes,
        )


class _Digit(_Idx):
    """MNIST and Fashion-MNIST: optionally with the labels made binary."""

    labels: Annotated[
        Literal["class", "parity"], "parity: even or odd (FedADM's SVM); partitions still go by class"
    ] = "class"

    def read(self, root: Path, layout: Layout) -> Dataset:
        made = super().read(root, layout)
        if self.labels == "class":
            return made
        return self.dataset(
            made.x.numpy(),
            made.y.numpy() % 2,
            made.x_test.numpy(),
            made.y_test.numpy() % 2,
            2,
            strata=made.labels,
            strata_test=made.labels_test,
            class_names=("even", "odd"),
        )


class Mnist(_Digit):
    """60,000 + 10,000 handwritten digits, 28 x 28; mean 0.1307, standard deviation 0.3081."""

    name = "mnist"
    title = "MNIST, handwritten digits"
    homepage = "http://yann.lecun.com/exdb/mnist/"
    licence = "CC BY-SA 3.0"
    size = "11.6 MB"
    folder = "MNIST"
    url = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    files = (
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    )


class Fashion(_Digit):
    """60,000 + 10,000 pictures of clothes, 28 x 28; normalised as MNIST, as in FedTrip."""

    name = "fashion"
    title = "Fashion-MNIST, clothes"
    homepage = "https://github.com/zalandoresearch/fashion-mnist"
    licence = "MIT"
    size = "30.9 MB"
    folder = "FashionMNIST"
    url = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
    files = (
        ("train-images-idx3-ubyte.gz", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("train-labels-idx1-ubyte.gz", "25c81989df183df01b3e8a0aad5dffbe"),
        ("t10k-images-idx3-ubyte.gz", "bef4ecab320f06d8554ea6380940ec79"),
        ("t10k-labels-idx1-ubyte.gz", "bb300cfdad3c16e7a12a480ee83cd310"),
    )


class Emnist(_Idx):
    """EMNIST balanced: 112,800 + 18,800 letters and digits, 47 classes, 28 x 28, upright; mean and deviation 0.5."""

    name = "emnist"
    title = "EMNIST balanced, letters and digits"
    homepage = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
    licence = "see its page"
    size = "see its page"
    folder = "EMNIST"
    classes = 47
    mean = 0.5
    spread = 0.5
    files = tuple(
        (f"emnist-balanced-{part}-{kind}-ubyte.gz", "")
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    )
    augment: Annotated[
        Literal["none", "affine"], "training pictures: mirror, rotate, shift and scale (FedTrip), or none"
    ] = "affine"

    def layouts(self) -> tuple[Layout, ...]:
        raw, flat = super().layouts()
        url = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
        archive = File("EMNIST/raw/gzip.zip", "md5:58c8d27c78d21e728a6bc7b3cc06412e", url)
        return Layout("zip", (archive,)), raw, flat

    def arrays(self, root: Path, layout: Layout) -> list[tuple[NDArray[Any], Path]]:
        if layout.name == "zip":
            path = layout.files[0].at(root)
            found = [(formats.idx_from_zip(path, name), path / name) for name, _ in self.files]
        else:
            found = super().arrays(root, layout)
        # Published sideways: rows and columns are exchanged.
        return [(a.transpose(0, 2, 1) if a.ndim == 3 else a, path) for a, path in found]

    def augmentation(self) -> Augmentation | None:
        return FlipAffine(10.0, 0.2, (0.8, 1.2), fill=-1.0) if self.augment == "affine" else None


Crop = Literal["none", "always", "half"]
CropHelp = "training pictures: always mirror (p 0.5) and crop (FedTrip), half: crop with p 0.5 too (FedMRUR), or none"


class Cifar10(Published):
    """50,000 + 10,000 colour pictures, 32 x 32, 10 classes; ImageNet's mean and deviation, as in FedTrip."""

    name = "cifar10"
    title = "CIFAR-10, colour pictures"
    homepage = "https://www.cs.toronto.edu/~kriz/cifar.html"
    licence = "none stated; cite Krizhevsky 2009"
    size = "170 MB"
    mean: ClassVar[tuple[float, ...]] = (0.485, 0.456, 0.406)
    spread: ClassVar[tuple[float, ...]] = (0.229, 0.224, 0.225)
    augment: Annotated[Crop, CropHelp] = "always"

    def layouts(self) -> tuple[Layout, ...]:
        binary = (
            ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
            ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
            ("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )
        python = (
            ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
            ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
            ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
            ("data_batch_4", "634d18415352ddfa80567beed471001a"),
            ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ("test_batch", "40351d587109b95175f43aff81a1287e"),
        )
        return (
            _cifar_layout(
                "binary", "cifar-10-batches-bin", binary, "cifar-10-binary", "c32a1d4ab5d03f1284b67883e8d87530"
            ),
            _cifar_layout(
                "python", "cifar-10-batches-py", python, "cifar-10-python", "c58f30108f718f92721af3b95e74349a"
            ),
        )

    def augmentation(self) -> Augmentation | None:
        if self.augment == "none":
            return None
        return FlipCrop(4, black(self.mean, self.spread), crop=1.0 if self.augment == "always" else 0.5)

    def part(self, path: Path, layout: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        if layout == "binary":
            x, labels = formats.read_cifar_bin(path, 1)
            return x, formats.check_labels(labels[:, 0], 10, path)
        x, y = formats.read_cifar_pickle(path, "labels")
        return x, formats.check_labels(y, 10, path)

    def read(self, root: Path, layout: Layout) -> Dataset:
        parts = [self.part(f.at(root), layout.name) for f in layout.files]
        x, y = np.concatenate([p[0] for p in parts[:-1]]), np.concatenate([p[1] for p in parts[:-1]])
        x_test, y_test = parts[-1]
        return self.dataset(
            scale(x, self.mean, self.spread), y, scale(x_test, self.mean, self.spread), y_test, self.count()
        )

    def count(self) -> int:
        return 10


def _cifar_layout(name: str, folder: str, files: Sequence[tuple[str, str]], archive: str, digest: str) -> Layout:
    tar = f"{archive}.tar.gz"
    return Layout(
        name,
        tuple(File(f"{folder}/{n}", f"md5:{d}" if d else "") for n, d in files),
        (File(tar, f"md5:{digest}", f"https://www.cs.toronto.edu/~kriz/{tar}"),),
    )


class Cifar100(Cifar10):
    """50,000 + 10,000 colour pictures, 32 x 32, 100 classes in 20 groups."""

    name = "cifar100"
    title = "CIFAR-100, colour pictures"
    size = "169 MB"
    mean = (0.5071, 0.4867, 0.4408)
    spread = (0.2675, 0.2565, 0.2761)
    augment: Annotated[Crop, CropHelp] = "half"
    labels: Annotated[Literal["fine", "coarse"], "100 classes or their 20 groups"] = "fine"

    def layouts(self) -> tuple[Layout, ...]:
        binary = (("train.bin", ""), ("test.bin", ""))
        python = (("train", "16019d7e3df5f24257cddd939b257f8d"), ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"))
        return (
            _cifar_layout("binary", "cifar-100-binary", binary, "cifar-100-binary", "03b5dce01913d631647c71ecec9e9cb8"),
            _cifar_layout("python", "cifar-100-python", python, "cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85"),
        )

    def count(self) -> int:
        return 100 if self.labels == "fine" else 20

    def part(self, path: Path, layout: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        if layout == "binary":
            x, labels = formats.read_cifar_bin(path, 2)
            return x, formats.check_labels(labels[:, 1 if self.labels == "fine" else 0], self.count(), path)
        x, y = formats.read_cifar_pickle(path, f"{self.labels}_labels")
        return x, formats.check_labels(y, self.count(), path)


class TinyImageNet(Published):
    """100,000 + 10,000 colour pictures, 64 x 64, 200 classes; the published validation part is the test set."""

    name = "tinyimagenet"
    title = "Tiny-ImageNet"
    homepage = "http://cs231n.stanford.edu/"
    licence = "see its page (ImageNet's terms)"
    size = "248 MB"
    pixels: Annotated[int, "resize to so many pixels a side", at_least(8)] = 64
    augment: Annotated[Crop, CropHelp] = "half"

    def layouts(self) -> tuple[Layout, ...]:
        folder = "tiny-imagenet-200"
        url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
        files = tuple(File(f"{folder}/{p}") for p in ("wnids.txt", "train", "val/images", "val/val_annotations.txt"))
        return (Layout("folder", files, (File(f"{folder}.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de", url),)),)

    def augmentation(self) -> Augmentation | None:
        if self.augment == "none":
            return None
        pad = max(self.pixels // 8, 1)
        return FlipCrop(pad, (-1.0, -1.0, -1.0), crop=1.0 if self.augment == "always" else 0.5)

    def read(self, root: Path, layout: Layout) -> Dataset:
        folder = root / "tiny-imagenet-200"
        names = (folder / "wnids.txt").read_text(encoding="utf-8").split()
        place = {name: i for i, name in enumerate(names)}
        paths, labels = [], []
        for name in names:
            found = sorted((folder / "train" / name / "images").glob("*.JPEG"))
            if not found:
                raise InvalidInput(f"{folder / 'train' / name / 'images'}: it holds no pictures")
            paths += found
            labels += [place[name]] * len(found)
        notes = folder / "val" / "val_annotations.txt"
        test_paths, test_labels = [], []
        for number, line in enumerate(notes.read_text(encoding="utf-8").splitlines(), 1):
            parts = line.split("\t")
            if len(parts) < 2 or parts[1] not in place:
                raise InvalidInput(f"{notes}: line {number} names no class of wnids.txt")
            test_paths.append(folder / "val" / "images" / parts[0])
            test_labels.append(place[parts[1]])
        x = self.decode(paths, root)
        x_test = self.decode(test_paths, root)
        return self.dataset(x, np.array(labels), x_test, np.array(test_labels), len(names), class_names=tuple(names))

    def decode(self, paths: Sequence[Path], root: Path) -> NDArray[np.float32]:
        """Pictures block by block, on disk when they are many: they need not fit into memory."""
        shape = (len(paths), 3, self.pixels, self.pixels)
        out: NDArray[np.float32]
        if np.prod(shape) > 1 << 28:
            (root / CACHE).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root / CACHE) as file:
                out = np.memmap(file, np.float32, "w+", shape=shape)
        else:
            out = np.empty(shape, np.float32)
        for i in range(0, len(paths), 1000):
            out[i : i + 1000] = scale(read_images(paths[i : i + 1000], self.pixels, grey=False))
        return out


class _Organ(Published):
    """MedMNIST v2: slices of abdominal CT scans, 28 x 28, 11 organs; mean and deviation 0.5."""

    homepage = "https://medmnist.com/"
    licence = "CC BY 4.0"
    digest: ClassVar[str]
    validation: Annotated[Literal["unused", "train"], "what the published validation part is for"] = "unused"

    def layouts(self) -> tuple[Layout, ...]:
        file, url = f"{self.name}.npz", "https://zenodo.org/records/10519652/files/"
        return tuple(Layout(f or "flat", (File(f + file, self.digest, url + file),)) for f in ("medmnist/", ""))

    def read(self, root: Path, layout: Layout) -> Dataset:
        path = layout.files[0].at(root)
        parts = ("train", "test", *(("val",) if self.validation == "train" else ()))
        arrays = formats.read_npz(path, [f"{p}_{kind}" for p in parts for kind in ("images", "labels")])
        with InvalidFile(path):
            images, labels = {}, {}
            for p in parts:
                images[p], labels[p] = arrays[f"{p}_images"], arrays[f"{p}_labels"].reshape(-1)
                if images[p].shape != (len(labels[p]), 28, 28):
                    raise InvalidInput(f"{p}_images has the shape {images[p].shape} for {len(labels[p])} labels")
                labels[p] = formats.check_labels(labels[p], 11, path)
        x = np.concatenate([images[p] for p in parts if p != "test"])
        y = np.concatenate([labels[p] for p in parts if p != "test"])
        return self.dataset(
            scale(x[:, None]), y, scale(images["test"][:, None]), labels["test"], 11, class_names=ORGANS
        )


ORGANS = (
    "bladder", "left femur", "right femur", "heart", "left kidney", "right kidney", "liver", "left lung", "right lung",
    "pancreas", "spleen",
)  # fmt: skip


class OrganA(_Organ):
    """Axial slices: 34,561 + 17,778."""

    name = "organamnist"
    title = "OrganAMNIST, axial CT slices"
    size = "38 MB"
    digest = "md5:68e3f8846a6bd62f0c9bf841c0d9eacc md5:866b832ed4eeba67bfb9edee1d5544e6"


class OrganC(_Organ):
    """Coronal slices: 12,975 + 8,216."""

    name = "organcmnist"
    title = "OrganCMNIST, coronal CT slices"
    size = "16 MB"
    digest = "md5:0afa5834fb105f7705a7d93372119a21"


class OrganS(_Organ):
    """Sagittal slices: 13,932 + 8,827."""

    name = "organsmnist"
    title = "OrganSMNIST, sagittal CT slices"
    size = "16 MB"
    digest = "md5:e5c39f1af030238290b9557d9503af9d"


class Covidx(Published):
    """Chest X-rays with and without COVID-19, grey, one client per patient; test patients are not in training.

    Reads a folder of pictures with a metadata CSV (columns patientid, finding, filename; where there are columns
    modality and view, only frontal X-rays), or an ``.npz`` with images, covid, patient.
    """

    name = "covidx"
    title = "COVID-19 chest X-rays"
    homepage = "https://github.com/ieee8023/covid-chestxray-dataset"
    licence = "per picture, mostly CC BY-NC-SA"
    size = "not stated"
    pixels: Annotated[int, "resize to so many pixels a side", at_least(8)] = 64
    test_fraction: Fraction = 0.2

    def layouts(self) -> tuple[Layout, ...]:
        folder = "covid-chestxray-dataset"
        url = "https://github.com/ieee8023/covid-chestxray-dataset/archive/refs/heads/master.zip"
        npz = File("covid-chestxray-64/covid_chestxray_64.npz")
        archive = File("covid-chestxray-dataset.zip", "", url)
        return (
            Layout("unpacked", (File(f"{folder}-master/metadata.csv"), File(f"{folder}-master/images")), (archive,)),
            Layout("cloned", (File(f"{folder}/metadata.csv"), File(f"{folder}/images"))),
            Layout("npz", (npz,)),
        )

    def read(self, root: Path, layout: Layout) -> Dataset:
        path = layout.files[0].at(root)
        if layout.name == "npz":
            arrays = formats.read_npz(path, ("images", "covid", "patient"))
            images, y, patient = arrays["images"], arrays["covid"], arrays["patient"]
            if images.ndim != 3 or not len(images) == len(y) == len(patient):
                raise InvalidInput(f"{path}: {images.shape} pictures for {len(y)} labels and {len(patient)} patients")
            y = formats.check_labels(y, 2, path)
            if images.shape[1:] != (self.pixels, self.pixels):
                raise InvalidInput(f"{path}: its pictures are {images.shape[1]} x {images.shape[2]}, not {self.pixels}")
            images = images[:, None]
        else:
            images, y, patient = self.folder(path)
        held = _held_patients(patient, self.test_fraction)
        x = scale(images)
        return self.dataset(
            x[~held],
            y[~held],
            x[held],
            y[held],
            2,
            client=patient[~held],
            client_test=patient[held],
            class_names=("other", "COVID-19"),
        )

    def folder(self, path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[Any]]:
        table = tables.read_csv(path)
        for column in ("patientid", "finding", "filename"):
            if column not in table.columns:
                raise InvalidInput(f"{path}: {unknown('column', column, table.columns)}")
        keep = np.ones(len(table.columns["finding"]), bool)
        if "modality" in table.columns:
            keep &= table.columns["modality"] == "X-ray"
        if "view" in table.columns:
            keep &= np.isin(table.columns["view"], ["PA", "AP", "AP Supine", "AP Erect"])
        finding = table.columns["finding"]
        keep &= ~np.isin(finding, ["", "todo", "Unknown"])
        if not keep.any():
            raise InvalidInput(f"{path}: no row is a frontal X-ray with a finding")
        files = [path.parent / "images" / name for name in table.columns["filename"][keep].tolist()]
        for place, file in zip(np.flatnonzero(keep).tolist(), files, strict=True):
            if not file.is_file():
                raise InvalidInput(f"{path}: row {table.rows[place]} names {file.name}, which is not in {file.parent}")
        covid = np.char.find(finding[keep].astype(str), "COVID-19") >= 0
        patient = table.columns["patientid"][keep].astype(str)
        return read_images(files, self.pixels, grey=True), covid.astype(np.int64), patient


def _held_patients(patient: NDArray[Any], fraction: float) -> NDArray[np.bool_]:
    """Whole patients in a keyed order until ``fraction`` of the pictures is held out."""
    names, inverse = np.unique(patient, return_inverse=True)
    inverse = inverse.reshape(-1)
    if len(names) < 2:
        raise InvalidInput(f"covidx: {len(names)} patient is too few to split")
    order = rng.permutation(rng.key(0, "patients"), len(names))
    before = np.cumsum(np.bincount(inverse)[order]) - np.bincount(inverse)[order]
    held = order[before < fraction * len(patient)][: len(names) - 1]
    return np.isin(inverse, held)


class Fire(Published):
    """Pictures with and without fire (Dunnings and Breckon 2018): 224 x 224, resized."""

    name = "fire"
    title = "fire detection pictures"
    homepage = "https://doi.org/10.15128/r2d217qp536"
    licence = "see its page"
    size = "10.5 GB"
    pixels: Annotated[int, "resize to so many pixels a side", at_least(8)] = 64

    def layouts(self) -> tuple[Layout, ...]:
        folder = "fire-dataset-dunnings/images-224x224"
        url = "https://collections.durham.ac.uk/downloads/r2d217qp536"
        archive = File("fire-dataset-dunnings.zip", "md5:44c56cd3df8931c28b02910d35a4d105", url)
        return (Layout("folder", (File(f"{folder}/train"), File(f"{folder}/test")), (archive,)),)

    def read(self, root: Path, layout: Layout) -> Dataset:
        parts = []
        for file in layout.files:
            names, paths, labels = list_classes(file.at(root))
            if names != ["fire", "nofire"]:
                raise InvalidInput(f"{file.at(root)}: it must hold the folders fire and nofire, not {', '.join(names)}")
            parts.append((scale(read_images(paths, self.pixels, grey=False)), 1 - labels))
        (x, y), (x_test, y_test) = parts
        return self.dataset(x, y, x_test, y_test, 2, class_names=("no fire", "fire"))
