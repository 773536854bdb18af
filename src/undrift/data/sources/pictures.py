"""What all published sets of pictures share: how their pixels become numbers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from undrift.data.augment import black
from undrift.data.images import normalise
from undrift.data.sources.base import Published

Scale = Literal["standard", "unit"]
ScaleHelp = "pixels: standard (mean and deviation as in the papers) or unit (0 to 1)"


class Pictures(Published):
    """Pictures with the mean and deviation, per channel, that papers normalise them by."""

    mean: ClassVar[tuple[float, ...]] = (0.5,)
    spread: ClassVar[tuple[float, ...]] = (0.5,)
    scale: Annotated[Scale, ScaleHelp] = "standard"

    def scaled(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return normalise(pixels, *self.statistics)

    @property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The mean and deviation that are used."""
        return (self.mean, self.spread) if self.scale == "standard" else ((0.0,), (1.0,))

    def fill(self, channels: int) -> tuple[float, ...]:
        """A black pixel, for what augmentation leaves empty."""
        values = black(*self.statistics)
        return values * channels if len(values) == 1 else values
