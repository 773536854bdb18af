"""Models by name. Users' own ``nn.Module`` need nothing from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from undrift.core.errors import InvalidInput, unknown
from undrift.core.plugins import Registry
from undrift.core.profile import profile
from undrift.models.convnets import VGG16, AlexNet, CovidNet, FedADMCNN, FireNet, FireNetLight, HarNet, McMahanCNN
from undrift.models.lenet import LeNetFast, LeNetHar, LeNetPlain
from undrift.models.linear import MLP, SVM, Linear, Logistic
from undrift.models.losses import LOSSES, Loss, aligned
from undrift.models.resnet import ResNet8, ResNet18
from undrift.models.spec import ModelSpec

OWN: dict[str, type[ModelSpec]] = {
    kind.name: kind
    for kind in (
        Linear,
        Logistic,
        SVM,
        MLP,
        LeNetFast,
        LeNetPlain,
        LeNetHar,
        AlexNet,
        FedADMCNN,
        McMahanCNN,
        VGG16,
        ResNet8,
        ResNet18,
        HarNet,
        CovidNet,
        FireNet,
        FireNetLight,
    )
}
MODELS = Registry("model", ModelSpec, "undrift.models", OWN)


def spec(name: str, **settings: Any) -> ModelSpec:
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    return MODELS[name].create(**settings)


def build(name: str, shape: tuple[int, ...], classes: int, **settings: Any) -> nn.Module:
    """``build("mlp", (1, 28, 28), 10, hidden=200)``; the caller seeds torch's generator for the weights."""
    return spec(name, **settings).build(shape, classes)


class Task(Protocol):
    """What a model must suit. ``classes`` is None where numbers are predicted."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def classes(self) -> int | None: ...
    @property
    def outputs(self) -> int: ...


def fitted(model: ModelSpec, dataset: Task) -> tuple[Callable[[], nn.Module], Loss]:
    """A model for these data: how to make it, and the loss it is trained with."""
    if dataset.classes is None and not model.regresses:
        able = ", ".join(name for name, kind in MODELS.items() if kind.regresses)
        raise InvalidInput(f"model {model.name}: it tells classes apart, and {dataset.name} has numbers: use {able}")
    loss = LOSSES[model.loss if dataset.classes is not None else "mse"]
    return model.factory(dataset.shape, dataset.outputs), loss


def default_model(dataset: Task) -> str:
    """The name of a model that suits the data: a starting point, not advice."""
    if dataset.classes is None:
        return "linear"
    if len(dataset.shape) == 3 and min(dataset.shape[1:]) >= 12:
        return "lenet"
    if len(dataset.shape) == 2:
        return "harnet"
    return "mlp"


@dataclass(frozen=True)
class ModelRow:
    """What ``undrift models`` shows of a model, on the input shape of its paper."""

    name: str
    title: str
    paper: str
    loss: str
    shape: tuple[int, ...]
    classes: int
    parameters: int
    macs: int  # multiply-accumulates of matrix products and convolutions in one forward pass of one sample
    settings: dict[str, Any]


def catalogue() -> list[ModelRow]:
    """All models with their sizes, for tables. They are made without memory for weights and without random numbers."""
    rows = []
    for name, kind in MODELS.items():
        (shape, classes), settings = kind.example, kind().values()
        with torch.device("meta"):
            module = kind().build(shape, classes)
            macs = profile(module, torch.zeros(1, *shape)).forward
        count = sum(p.numel() for p in module.parameters())
        rows.append(ModelRow(name, kind.title, kind.paper, kind.loss, shape, classes, count, macs, settings))
    return rows


__all__ = [
    "LOSSES",
    "MODELS",
    "ModelRow",
    "ModelSpec",
    "aligned",
    "build",
    "catalogue",
    "default_model",
    "fitted",
    "spec",
]
