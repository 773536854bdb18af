"""What FedTrip's Table V counts: forward passes and attached vector operations of one client, not the backward passes.

The convolutions' biases are counted for the CNN alone, SlowMo's operations are the server's, and EMNIST is counted with
ten classes (errata T6). undrift's own cost columns count what a client really computes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from undrift.core.profile import convolution_biases, profile
from undrift.core.vector import layout_of
from undrift.experiment.description import Experiment
from undrift.models import MODELS

ATTACHED = ("fedtrip", "fedprox", "feddyn")  # whose vector operations the table counts


def gigaflops(values: Mapping[str, Any]) -> float:
    """Of one client in one round, for an experiment whose clients all have ``partition.samples`` samples."""
    experiment = Experiment.build(values)
    name = str(values["model"]["name"])
    plain = MODELS["lenet-plain" if name == "lenet" else name]
    shape, classes = plain.example
    module, sample = plain().build(shape, classes), torch.zeros(1, *shape)
    layout = layout_of(module, sample)
    forward = profile(module, sample).forward + (convolution_biases(module, sample) if name == "lenet" else 0)
    n = int(values["partition"]["samples"])
    claims = experiment.algorithm.claims(experiment.train, layout, n, layout.classes)
    operations = claims["flops"] if experiment.algorithm.name() in ATTACHED else 0
    return ((n * experiment.train.epochs + claims["forwards"]) * forward + operations) / 1e9
