"""Figures beside accuracy and loss, by name: what ``torchmetrics`` says of a model's outputs.

Two classes are judged by the second, the positive one; more classes by the plain mean over classes. This is the one
file that knows torchmetrics. It takes outputs and targets, and knows nothing of models, clients or rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.figure import OF_CLASSES, OF_NUMBERS

BINS = 15  # of the calibration error


def check(names: Sequence[str], classes: int | None) -> None:
    """Refuse before the first round what these data have not, and what is not installed."""
    fitting = OF_NUMBERS if classes is None else OF_CLASSES
    for name in names:
        if name not in fitting:
            kind = "numbers" if classes is None else "classes"
            raise InvalidInput(f"metric {name}: the data have {kind} as targets; possible are {', '.join(fitting)}")
    if names:
        _library()


def measured(names: Sequence[str], outputs: Tensor, y: Tensor, classes: int | None) -> dict[str, float]:
    """Each metric of these outputs."""
    if not names:
        return {}
    outputs, y = outputs.detach().cpu(), y.cpu()
    if classes is None:
        known = _of_numbers(outputs.reshape(y.shape), y)
    elif outputs.ndim == 1 or outputs.shape[1] == 1 or classes == 2:
        known = _of_two(_positive(outputs), y)
    else:
        known = _of_many(outputs.softmax(1), y, outputs.shape[1])
    return {name: float(known[name]()) for name in names}


def says_something(name: str, y: Tensor, classes: int | None) -> bool:
    """Can the metric tell anything of so few targets? A ranking needs every class, and a variance two numbers."""
    if name in ("auroc", "average_precision") and classes is not None:
        return bool((y.bincount(minlength=classes) > 0).all())
    return len(y) > 1 if name == "r2" else len(y) > 0


Known = dict[str, Callable[[], Any]]


def _positive(outputs: Tensor) -> Tensor:
    """The probability of the second of two classes."""
    single = outputs.ndim == 1 or outputs.shape[1] == 1
    return outputs.reshape(-1).sigmoid() if single else outputs.softmax(1)[:, 1].contiguous()


def _of_two(p: Tensor, y: Tensor) -> Known:
    found = _library().classification
    both = torch.stack([1 - p, p], dim=1)
    return {
        "balanced_accuracy": lambda: found.multiclass_recall(both, y, 2, average="macro"),
        "f1": lambda: found.binary_f1_score(p, y),
        "auroc": lambda: found.binary_auroc(p, y),
        "average_precision": lambda: found.binary_average_precision(p, y),
        "calibration_error": lambda: found.binary_calibration_error(p, y, n_bins=BINS),
        "perplexity": lambda: _perplexity(both.log(), y),
    }


def _of_many(p: Tensor, y: Tensor, classes: int) -> Known:
    found = _library().classification
    return {
        "balanced_accuracy": lambda: found.multiclass_recall(p, y, classes, average="macro"),
        "f1": lambda: found.multiclass_f1_score(p, y, classes, average="macro"),
        "auroc": lambda: found.multiclass_auroc(p, y, classes, average="macro"),
        "average_precision": lambda: found.multiclass_average_precision(p, y, classes, average="macro"),
        "calibration_error": lambda: found.multiclass_calibration_error(p, y, classes, n_bins=BINS),
        "perplexity": lambda: _perplexity(p.log(), y),
    }


def _perplexity(logits: Tensor, y: Tensor) -> Any:
    return _library().text.perplexity(logits.unsqueeze(0), y.unsqueeze(0))


def _of_numbers(outputs: Tensor, y: Tensor) -> Known:
    found = _library()
    return {
        "rmse": lambda: found.mean_squared_error(outputs, y, squared=False),
        "mae": lambda: found.mean_absolute_error(outputs, y),
        "r2": lambda: found.r2_score(outputs, y),
    }


def _library() -> Any:
    try:
        import torchmetrics.functional
        import torchmetrics.functional.classification
        import torchmetrics.functional.text
    except ImportError:
        raise InvalidInput("metrics by name need torchmetrics: pip install 'undrift[metrics]'") from None
    return torchmetrics.functional
