"""PAMAP2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from undrift.core.errors import InvalidInput
from undrift.core.settings import at_least, between
from undrift.data import formats
from undrift.data.dataset import Dataset
from undrift.data.sources.base import Fraction, Published
from undrift.data.sources.files import File, Release
from undrift.data.windows import fill_gaps, latest_held_out, runs, standardise


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
    natural = True
    window: Annotated[int, "steps of a window at 100 Hz", at_least(8)] = 512
    stride: Annotated[int, "steps from one window to the next", at_least(1)] = 256
    every: Annotated[int, "keep every so many-th step (4: 25 Hz)", at_least(1)] = 4
    gaps: Annotated[float, "largest share of missing values in a window", between(0, 1)] = 0.1
    test_fraction: Fraction = 0.2

    def releases(self) -> tuple[Release, ...]:
        files = tuple(File(f"PAMAP2_Dataset/Protocol/subject{n}.dat") for n in range(101, 110))
        url = "https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip"
        return (Release("protocol", files, (File("PAMAP2.zip", "", url),)),)

    def read(self, root: Path, release: Release) -> Dataset:
        paths = [file.at(root) for file in release.files]
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
