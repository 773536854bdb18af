"""Numbers as JSON can hold them: no NaN, no infinity, no digits that nobody reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def short(value: float | None) -> float | None:
    """Six significant figures; what is no number as None."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def valid(value: Any) -> Any:
    """The same values with None for what is no number, so that the text is JSON that every reader takes."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): valid(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [valid(v) for v in value]
    return value
