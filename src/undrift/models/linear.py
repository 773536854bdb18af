"""Models that are one or two matrices: linear and logistic regression, smooth SVM, multi-layer perceptron."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import torch
from torch import Tensor, nn

from undrift.core.settings import at_least, between
from undrift.models.spec import Classifier, ModelSpec, flat_size


class Flat(Classifier):
    """One linear layer on the flattened input."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, zero: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(inputs, outputs, bias=bias)
        if zero:
            for parameter in self.parameters():
                nn.init.zeros_(parameter)

    def features(self, x: Tensor) -> Tensor:
        return x.flatten(1)


class Perceptron(Classifier):
    """Linear layers with ReLU between them."""

    def __init__(self, inputs: int, hidden: int, layers: int, outputs: int) -> None:
        super().__init__()
        widths = [inputs] + [hidden] * layers
        self.body = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(hidden, outputs)

    def features(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.body:
            x = torch.relu(layer(x))
        return x


class Linear(ModelSpec):
    """Linear regression: squared error on one-hot targets for classes, on the target itself for regression data."""

    name = "linear"
    title = "linear regression"
    paper = "pFedMo"
    loss = "mse_onehot"
    example = ((1, 28, 28), 10)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Flat(flat_size(shape), classes)


class Logistic(ModelSpec):
    """Multinomial logistic regression."""

    name = "logistic"
    regresses = False
    title = "logistic regression"
    paper = "pFedMo"
    example = ((1, 28, 28), 10)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Flat(flat_size(shape), classes)


class SVM(ModelSpec):
    """Smooth SVM: squared hinge, one against the rest, no bias, from zero; the margin term is the weight decay."""

    name = "svm"
    regresses = False
    title = "smooth SVM (squared hinge)"
    paper = "FedADM; Wang et al., JSAC 2019"
    loss = "squared_hinge"
    example = ((1, 28, 28), 2)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Flat(flat_size(shape), classes, bias=False, zero=True)


class MLP(ModelSpec):
    """Perceptron with ReLU, by default with one hidden layer of 100."""

    name = "mlp"
    title = "multi-layer perceptron"
    paper = "FedTrip"
    example = ((1, 28, 28), 10)
    hidden: Annotated[int, "width of a hidden layer", at_least(1)] = 100
    layers: Annotated[int, "hidden layers", between(1, 1000, "plain layers that deep do not learn")] = 1

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return Perceptron(flat_size(shape), self.hidden, self.layers, classes)
