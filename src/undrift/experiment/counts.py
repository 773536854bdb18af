"""The counts behind a model's figures: what is taken for what, and how sure it is against how often it is right.

They add up, over parts of a test set and over seeds. Numbers in, numbers out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from undrift.experiment.metrics import BINS

Counts = dict[int, float]
MOST_CLASSES = 100  # of which a confusion is kept


def confusion(guess: Tensor, y: Tensor, classes: int) -> Counts:
    """How often class ``i`` is taken for ``j``, at place ``i * classes + j``; what never happened is left out."""
    found = torch.bincount(y.cpu() * classes + guess.cpu().clamp(max=classes - 1), minlength=classes**2)
    return {place: float(found[place]) for place in found.nonzero().flatten().tolist()}


def reliability(sure: Tensor, right: Tensor) -> Counts:
    """For each bin of confidence, at places ``3 * bin`` and on: samples, their confidence, how many are right."""
    sure, right = sure.cpu().double().nan_to_num(), right.cpu().double()
    bins = (sure * BINS).ceil().long().clamp(1, BINS) - 1  # as torchmetrics has them: the upper end belongs to a bin
    sums = [torch.bincount(bins, weights=w, minlength=BINS) for w in (torch.ones_like(sure), sure, right)]
    places = [bin for bin in range(BINS) if sums[0][bin]]
    return {3 * bin + i: float(part[bin]) for bin in places for i, part in enumerate(sums)}


def sureness(outputs: Tensor) -> Tensor:
    """The probability of the class that each row speaks for."""
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        p = outputs.reshape(-1).sigmoid()
        return torch.maximum(p, 1 - p)
    return outputs.softmax(1).amax(1)
