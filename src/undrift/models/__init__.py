"""Models by name. Users' own ``nn.Module`` need nothing from here."""

from __future__ import annotations

from typing import Any

from torch import nn

from undrift.core.errors import unknown
from undrift.data.dataset import Dataset
from undrift.models.lenet import LeNetFast, LeNetPlain
from undrift.models.linear import MLP, SVM, Linear, Logistic
from undrift.models.losses import LOSSES
from undrift.models.spec import ModelSpec

MODELS: dict[str, type[ModelSpec]] = {kind.name: kind for kind in (Linear, Logistic, SVM, MLP, LeNetFast, LeNetPlain)}


def spec(name: str, **settings: Any) -> ModelSpec:
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name].create(**settings)


def build(name: str, shape: tuple[int, ...], classes: int, **settings: Any) -> nn.Module:
    """``build("mlp", (1, 28, 28), 10, hidden=200)``; the caller seeds torch's generator for the weights."""
    return spec(name, **settings).build(shape, classes)


def default_model(dataset: Dataset) -> str:
    """The name of a model that suits the data: a starting point, not advice."""
    if dataset.classes is None:
        return "linear"
    if len(dataset.shape) == 3 and min(dataset.shape[1:]) >= 12:
        return "lenet"
    return "mlp"


__all__ = ["LOSSES", "MODELS", "ModelSpec", "build", "default_model", "spec"]
