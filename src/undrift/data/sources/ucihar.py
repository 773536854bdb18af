"""UCI-HAR."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.data import formats
from undrift.data.dataset import Dataset
from undrift.data.sources.base import Fraction, Published
from undrift.data.sources.files import File, Release
from undrift.data.windows import latest_held_out, runs, standardise


class UciHar(Published):
    """Smartphone signals of 30 people and 6 activities, 10,299 windows of 128 steps at 50 Hz; clients are the people.

    Each channel (or feature) has mean 0 and deviation 1 over the training part.
    """

    name = "ucihar"
    title = "UCI-HAR, smartphone signals"
    homepage = "https://archive.ics.uci.edu/dataset/240"
    licence = "CC BY 4.0"
    size = "see its page"
    natural = True
    form: Annotated[Literal["signals", "features"], "9 raw channels x 128 steps, or the 561 published features"] = (
        "signals"
    )
    split: Annotated[
        Literal["official", "within"], "official: other people for testing; within: the latest windows of everybody"
    ] = "official"
    test_fraction: Fraction = 0.2

    def releases(self) -> tuple[Release, ...]:
        folder, files = "UCI HAR Dataset", []
        for part in ("train", "test"):
            files += [f"{part}/y_{part}.txt", f"{part}/subject_{part}.txt"]
            if self.form == "features":
                files.append(f"{part}/X_{part}.txt")
            else:
                files += [f"{part}/Inertial Signals/{c}_{part}.txt" for c in HAR_CHANNELS]
        url = "https://archive.ics.uci.edu/ml/machine-learning-databases/00240/UCI%20HAR%20Dataset.zip"
        listed = tuple(File(f"{folder}/{f}", HAR_DIGESTS.get(f, "")) for f in files)
        return (Release(self.form, listed, (File("UCI HAR Dataset.zip", "", url),)),)

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

    def read(self, root: Path, release: Release) -> Dataset:
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
