"""Augmentations: keyed, and what they do to a picture."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from undrift.data.augment import FlipAffine, FlipCrop, black


@pytest.fixture
def batch() -> Tensor:
    return torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_the_key_decides(batch: Tensor) -> None:
    for change in (FlipCrop(2, (0.0, 0.0, 0.0)), FlipAffine(10, 0.2, (0.8, 1.2), fill=0.0)):
        assert torch.equal(change(batch, 7), change(batch, 7))
        assert not torch.equal(change(batch, 7), change(batch, 8))
        assert change(batch, 7).shape == batch.shape


def test_crop_only_moves_and_mirrors(batch: Tensor) -> None:
    fill = (-1.0, -2.0, -3.0)
    out = FlipCrop(2, fill)(batch, 1)
    padded = torch.empty(64, 3, 12, 12)
    padded[:] = torch.tensor(fill).view(1, 3, 1, 1)
    padded[:, :, 2:10, 2:10] = batch
    seen = set()
    for picture, wide in zip(out, padded, strict=True):
        places = [
            (top, left, mirror)
            for top in range(5)
            for left in range(5)
            for mirror in (False, True)
            if torch.allclose(picture, (wide.flip(2) if mirror else wide)[:, top : top + 8, left : left + 8], atol=1e-6)
        ]
        assert len(places) == 1
        seen.add(places[0])
    assert len(seen) > 20  # of 50 possible
    assert {mirror for _, _, mirror in seen} == {False, True}


def test_crop_with_probability(batch: Tensor) -> None:
    out = FlipCrop(2, (0.0, 0.0, 0.0), flip=0.0, crop=0.5)(batch, 3)
    same = sum(bool(torch.allclose(a, b, atol=1e-6)) for a, b in zip(out, batch, strict=True))
    assert 20 <= same <= 48  # half of 64, and one crop in 25 that hits the middle


def test_nothing_to_do_is_the_identity(batch: Tensor) -> None:
    assert torch.allclose(FlipCrop(2, (0.5, 0.0, 0.0), flip=0.0, crop=0.0)(batch, 1), batch, atol=1e-6)
    assert torch.allclose(FlipAffine(0.0, 0.0, (1.0, 1.0), fill=0.0, flip=0.0)(batch, 1), batch, atol=1e-6)
    assert torch.allclose(FlipAffine(0.0, 0.0, (1.0, 1.0), 0.0, flip=1.0)(batch, 1), batch.flip(3), atol=1e-6)


def test_affine_shifts_by_whole_pixels() -> None:
    point = torch.zeros(200, 1, 11, 11)
    point[:, 0, 5, 5] = 1
    out = FlipAffine(0.0, 0.2, (1.0, 1.0), fill=0.0, flip=0.0)(point, 1)
    assert torch.equal(out.sum((1, 2, 3)), torch.ones(200))
    where = {tuple(place[2:]) for place in out.nonzero().tolist()}
    assert where <= {(r, c) for r in range(3, 8) for c in range(3, 8)}
    assert len(where) > 15


def test_affine_rotates_about_the_middle() -> None:
    stroke = torch.zeros(50, 1, 21, 21)
    stroke[:, 0, 10, :] = 1  # a horizontal line through the middle
    out = FlipAffine(90.0, 0.0, (1.0, 1.0), fill=0.0, flip=0.0)(stroke, 1)
    assert torch.equal(out[:, 0, 10, 10], torch.ones(50))
    slopes = out[:, 0, 2].argmax(1)  # where the line crosses the third row, if it does
    assert len(set(slopes.tolist())) > 5


def test_empty_places_take_the_fill() -> None:
    ones = torch.ones(20, 1, 10, 10)
    out = FlipAffine(0.0, 0.2, (1.0, 1.0), fill=-1.0)(ones, 1)
    assert set(out.unique().tolist()) == {-1.0, 1.0}


def test_black() -> None:
    assert black((0.5, 0.1), (0.5, 0.2)) == (-1.0, -0.5)
