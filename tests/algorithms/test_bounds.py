"""Every number that a method takes has a range, and a reason for it that the refusal gives."""

from __future__ import annotations

import math
import re

import pytest

from undrift.algorithms import algorithms, create
from undrift.core.errors import InvalidInput
from undrift.core.settings import Setting

NUMBERS = [
    pytest.param(name, setting, id=f"{name}-{setting.name}")
    for name in sorted(algorithms())
    for setting in algorithms()[name].settings()
    if setting.type in (int, float)
]


def outside(setting: Setting) -> list[float]:
    """The nearest numbers that are not allowed."""
    assert setting.bounds is not None
    bounds = setting.bounds
    if setting.type is int:
        assert not bounds.open_low
        assert math.isinf(bounds.high)
        return [int(bounds.low) - 1]
    low = bounds.low if bounds.open_low else math.nextafter(bounds.low, -math.inf)
    high = bounds.high if bounds.open_high else math.nextafter(bounds.high, math.inf)
    return [value for value in (low, high) if math.isfinite(value)] + [math.inf, math.nan]


@pytest.mark.parametrize(("name", "setting"), NUMBERS)
def test_numbers_out_of_range_are_refused_with_the_range_and_the_reason(name: str, setting: Setting) -> None:
    assert setting.bounds is not None
    assert setting.bounds.why
    for value in outside(setting):
        with pytest.raises(InvalidInput) as refused:
            create(name, **{setting.name: value})
        sentence = str(refused.value)
        assert re.match(rf"\w+: {setting.name} = ", sentence)
        assert f"it must be {setting.allowed} ({setting.bounds.why})" in sentence
