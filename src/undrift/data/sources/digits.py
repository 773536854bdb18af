"""The digits that come with scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.data.dataset import Dataset
from undrift.data.sources.base import Source


class Digits(Source):
    """Handwritten digits, 8 x 8, embedded in scikit-learn: no download."""

    name = "digits"
    title = "handwritten digits, 8 x 8"
    homepage = "https://archive.ics.uci.edu/dataset/80"
    licence = "see its page"
    size = "embedded"

    def load(self, root: Path) -> Dataset:
        package = find_spec("sklearn")  # its file is read without importing it, which would take longer than a run
        if package is None or package.origin is None:
            raise InvalidInput("the digits come with scikit-learn: pip install 'undrift[data]'")
        table = np.loadtxt(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz", delimiter=",")
        x, y = table[:, :-1], table[:, -1].astype(np.int64)
        return Dataset.from_arrays((x / 16).reshape(-1, 1, 8, 8), y, classes=10, name=self.name)
