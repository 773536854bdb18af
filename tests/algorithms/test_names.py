"""Methods as attributes of ``undrift.algorithms``."""

from __future__ import annotations

import pytest

import undrift


def test_methods_are_attributes_and_a_mistyped_one_is_named() -> None:
    names = {cls.__name__ for cls in undrift.algorithms.algorithms().values()}
    assert names <= set(dir(undrift.algorithms))
    assert undrift.algorithms.MOON.title == "MOON"
    with pytest.raises(AttributeError, match=r"did you mean FedTrip\?"):
        _ = undrift.algorithms.FedTripp
