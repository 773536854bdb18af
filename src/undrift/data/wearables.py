"""Published recordings of body-worn sensors, cut into windows; the clients are the people who wore them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.core.settings import at_least, between
from undrift.data import formats
from undrift.data.dataset import Dataset
from undrift.data.source import Fraction, Published
from undrift.data.store import File, Layout
from undrift.data.windows import fill_gaps, latest_held_out, runs


class UciHar(Published):
    """Smartphone signals of 30 people and 6 activities, 10,299 windows of 128 steps at 50 Hz; clients are the people.

    Each channel (or feature) has mean 0 and deviation 1 over the training part.
    """

    name = "ucihar"
    title = "UCI-HAR, smartphone signals"
    homepage = "https://archive.ics.uci.edu/dataset/240"
    licence = "CC BY 4.0"
    size = "see its page"
    form: Annotated[Literal["signals", "features"], "9 raw channels x 128 steps, or the 561 published features"] = (
        "signals"
    )
    split: Annotated[
        Literal["official", "within"], "official: other people for testing; within: the latest windows of everybody"
    ] = "official"
    test_fraction: Fraction = 0.2

    def layouts(self) -> tuple[Layout, ...]:
        folder, files = "UCI HAR Dataset", []
        for part in ("train", "test"):
            files += [f"{part}/y_{part}.txt", f"{part}/subject_{part}.txt"]
            if self.form == "features":
                files.append(f"{part}/X_{part}.txt")
            else:
                files += [f"{part}/Inertial Signals/{c}_{part}.txt" for c in HAR_CHANNELS]
        url = "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip"
        listed = tuple(File(f"{folder}/{f}", HAR_DIGESTS.get(f, "")) for f in files)
        return (Layout(self.form, listed, (File("UCI HAR Dataset.zip", "", url),)),)

    def part(self, folder: Path, part: str) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        y = formats.read_labels(folder / part / f"y_{part}.txt", 1, 6) - 1
        subject = formats.read_labels(folder / part / f"subject_{part}.txt", 1, 30)
        if self.form == "features":
            paths, width = [folder / part / f"X_{part}.txt"], 561
        else:
            paths = [folder / part / "Inertial Signals" / f"{c}_{part}.txt" for c in HAR_CHANNELS]
            width = 128
        columns = []
        for path in paths:
            values = formats.read_matrix(path, width)
            formats.check_finite(values, path)
            if len(values) != len(y):
                raise InvalidInput(f"{path}: {len(values)} lines, but y_{part}.txt has {len(y)}")
            columns.append(values)
        if len(subject) != len(y):
            raise InvalidInput(f"{folder / part / f'subject_{part}.txt'}: {len(subject)} lines, but y has {len(y)}")
        return columns[0] if self.form == "features" else np.stack(columns, axis=1), y, subject

    def read(self, root: Path, layout: Layout) -> Dataset:
        parts = [self.part(root / "UCI HAR Dataset", part) for part in ("train", "test")]
        if self.split == "within":
            x, y, subject = (np.concatenate(pair) for pair in zip(*parts, strict=True))
            stretches = runs(y, subject)
            train, test = latest_held_out(stretches, len(y), self.test_fraction, overlap=1)  # windows overlap by half
            parts = [(x[chosen], y[chosen], subject[chosen]) for chosen in (train, test)]
        (x, y, subject), (x_test, y_test, subject_test) = parts
        return self.dataset(
            *standardise(x, x_test, y, y_test), 6, client=subject, client_test=subject_test, class_names=HAR_CLASSES
        )


HAR_CHANNELS = tuple(f"{kind}_{axis}" for kind in ("body_acc", "body_gyro", "total_acc") for axis in "xyz")
HAR_CLASSES = ("walking", "upstairs", "downstairs", "sitting", "standing", "laying")
HAR_DIGESTS = {
    "test/subject_test.txt": "sha256:63b8c577f4a85431c06bd87f6384608c90a9f72f05c7956dd21255dc63515c07",
    "test/y_test.txt": "sha256:2a94cb53ca46b956c1b2aebd4a09a72badd8a8e9ea9cdfe9f31b3306a08666bb",
    "train/subject_train.txt": "sha256:66e1e2fbe9b396fa5155f531dc3348c803f503be663e2318772d49947db9153a",
    "train/y_train.txt": "sha256:415b3357e2e2d5e70a45c781947c6bdd80e0410a579d862eedcd6bbce3c694ef",
}


def standardise(
    x: NDArray[np.float32], x_test: NDArray[np.float32], y: NDArray[np.int64], y_test: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]:
    """Mean 0 and deviation 1 of every channel (the second axis) over the training part; labels pass through."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axis=axes, dtype=np.float64, keepdims=True)
    spread = x.std(axis=axes, dtype=np.float64, keepdims=True)
    spread[spread < 1e-8] = 1.0
    m, s = mean.astype(np.float32), spread.astype(np.float32)
    return (x - m) / s, y, (x_test - m) / s, y_test


class Pamap2(Published):
    """Three body-worn sensors of 9 people and 12 activities, cut into windows; clients are the people.

    27 channels (acceleration, rotation, magnetic field at hand, chest, ankle). Missing values are filled by straight
    lines; a window with too much missing, or across a change of activity, is left out. The latest windows of every
    stretch of activity are for testing; each channel has mean 0 and deviation 1 over the training part.
    """

    name = "pamap2"
    title = "PAMAP2, body-worn sensors"
    homepage = "https://archive.ics.uci.edu/dataset/231"
    licence = "see its page"
    size = "688 MB"
    window: Annotated[int, "steps of a window at 100 Hz", at_least(8)] = 512
    stride: Annotated[int, "steps from one window to the next", at_least(1)] = 256
    every: Annotated[int, "keep every so many-th step (4: 25 Hz)", at_least(1)] = 4
    gaps: Annotated[float, "largest share of missing values in a window", between(0, 1)] = 0.1
    test_fraction: Fraction = 0.2

    def layouts(self) -> tuple[Layout, ...]:
        files = tuple(File(f"PAMAP2_Dataset/Protocol/subject{n}.dat") for n in range(101, 110))
        url = "https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip"
        return (Layout("protocol", files, (File("PAMAP2.zip", "", url),)),)

    def read(self, root: Path, layout: Layout) -> Dataset:
        paths = [file.at(root) for file in layout.files]
        parts = [self.windows(path) for path in paths]
        x, y, train, test = (np.concatenate(each) for each in zip(*parts, strict=True))
        subject = np.repeat([int(path.stem[-3:]) for path in paths], [len(part[1]) for part in parts])
        if not train.any() or not test.any():
            raise InvalidInput(f"{self.name}: {len(y)} windows are too few to hold out a test part")
        return self.dataset(
            *standardise(x[train], x[test], y[train], y[test]),
            len(PAMAP2_CLASSES),
            client=subject[train],
            client_test=subject[test],
            class_names=tuple(PAMAP2_CLASSES.values()),
        )

    def windows(
        self, path: Path
    ) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """The windows of a recording, their classes, and which are for training and which for testing."""
        values = formats.read_matrix(path, 54)
        activity = values[:, 1].astype(np.int64)
        known = np.array(sorted(PAMAP2_CLASSES))
        strange = ~np.isin(activity, [0, *range(1, 25)])
        if strange.any():
            row = int(strange.argmax())
            raise InvalidInput(f"{path}: line {row + 1} has the activity {activity[row]}: activities are 0 to 24")
        signals = values[:, PAMAP2_CHANNELS].astype(np.float64)
        missing = np.isnan(signals)
        if missing.all(axis=0).any():
            raise InvalidInput(
                f"{path}: column {PAMAP2_CHANNELS[int(missing.all(axis=0).argmax())] + 1} has no values at all"
            )
        filled = fill_gaps(signals).astype(np.float32)
        x: list[NDArray[np.float32]] = []
        y: list[int] = []
        stretches = []
        for begin, end in runs(activity):
            if activity[begin] not in PAMAP2_CLASSES:
                continue
            first = len(y)
            for a in range(begin, end - self.window + 1, self.stride):
                if missing[a : a + self.window].mean() <= self.gaps:
                    x.append(filled[a : a + self.window : self.every].T)
                    y.append(int(np.searchsorted(known, activity[begin])))
            stretches.append((first, len(y)))
        overlap = -(-self.window // self.stride) - 1
        train, test = latest_held_out(stretches, len(y), self.test_fraction, overlap)
        steps = len(range(0, self.window, self.every))
        shaped = np.stack(x) if x else np.empty((0, len(PAMAP2_CHANNELS), steps), np.float32)
        return shaped, np.array(y, np.int64), train, test


PAMAP2_CLASSES = {
    1: "lying", 2: "sitting", 3: "standing", 4: "walking", 5: "running", 6: "cycling", 7: "nordic walking",
    12: "upstairs", 13: "downstairs", 16: "vacuuming", 17: "ironing", 24: "rope jumping",
}  # fmt: skip
# Columns 0 to 2 are time, activity and heart rate; then 17 per sensor: temperature, acceleration (16 g, 6 g),
# gyroscope, magnetometer, orientation (invalid here). The 6 g accelerometer saturates, so the 16 g one is used.
PAMAP2_CHANNELS = [3 + 17 * sensor + i for sensor in range(3) for i in (1, 2, 3, 7, 8, 9, 10, 11, 12)]
