"""Methods as attributes of ``undrift.algorithms``, and what is not a method."""

from __future__ import annotations

from pathlib import Path

import pytest

import undrift
from undrift.algorithms import parts


def test_methods_are_attributes_and_a_mistyped_one_is_named() -> None:
    names = {cls.__name__ for cls in undrift.algorithms.algorithms().values()}
    assert names <= set(dir(undrift.algorithms))
    assert undrift.algorithms.MOON.title == "MOON"
    with pytest.raises(AttributeError, match=r"did you mean FedTrip\?"):
        _ = undrift.algorithms.FedTripp


def test_what_methods_share_is_no_method() -> None:
    folder = Path(parts.__file__).parent
    shared = {file.stem for file in folder.glob("*.py")} - {"__init__"}
    assert {"centroids", "sharing", "sharpness"} <= shared
    found = undrift.algorithms.algorithms()
    assert "parts" not in found
    assert not shared & set(found)
    assert not [cls for cls in found.values() if ".parts." in cls.__module__]
