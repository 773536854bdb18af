"""Metrics by name: each is what torchmetrics says when it is called by hand on the model's outputs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import undrift
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.core.figure import METRICS, OF_CLASSES, OF_NUMBERS, VALIDATION, Figure
from undrift.data import Dataset, load
from undrift.experiment.metrics import measured
from undrift.ledger.history import History
from undrift.ledger.store import Ledger

torchmetrics = pytest.importorskip("torchmetrics")
DIGITS = load("digits")
OPTIONS: dict[str, Any] = {"model": "logistic", "clients": 5, "rounds": 2}


def by_hand(p: Tensor, y: Tensor, classes: int) -> dict[str, float]:
    """The modular interface, for probabilities of many classes or of the second of two."""
    kinds = torchmetrics.classification
    task: dict[str, Any] = {"task": "binary"} if classes == 2 else {"task": "multiclass", "num_classes": classes}
    mean: dict[str, Any] = {} if classes == 2 else {"average": "macro"}
    shown = p[:, 1].contiguous() if classes == 2 else p
    found = {
        "balanced_accuracy": kinds.MulticlassRecall(num_classes=classes, average="macro")(p, y),
        "f1": torchmetrics.F1Score(**task, **mean)(shown, y),
        "auroc": torchmetrics.AUROC(**task, **mean)(shown, y),
        "average_precision": torchmetrics.AveragePrecision(**task, **mean)(shown, y),
        "calibration_error": torchmetrics.CalibrationError(**task, n_bins=15)(shown, y),
        "perplexity": torchmetrics.text.Perplexity()(p.log().unsqueeze(0), y.unsqueeze(0)),
    }
    return {name: float(value) for name, value in found.items()}


def on_test(result: Any) -> dict[str, float]:
    return {figure.metric: value for r, figure, value in result.history.metrics if r == 2 and figure.data == "test"}


@pytest.mark.parametrize("runtime", ["serial", "processes", "batched"])
def test_of_many_classes(runtime: str) -> None:
    result = undrift.run(metrics=",".join(OF_CLASSES), runtime=runtime, **OPTIONS)
    outputs = result.module(DIGITS.x_test).detach()
    found = on_test(result)
    assert {name: found[name] for name in OF_CLASSES} == pytest.approx(
        by_hand(outputs.softmax(1), DIGITS.y_test, 10), rel=1e-5
    )
    exact = torchmetrics.Accuracy(task="multiclass", num_classes=10)(outputs, DIGITS.y_test)
    assert found["accuracy"] == pytest.approx(float(exact), abs=1e-6)


def rare() -> Dataset:
    """Two classes, of which the second is rare and the data hardly tell."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 4, generator=generator)
    y = (x[:, 0] + torch.randn(600, generator=generator) > 2.2).long()
    return Dataset("rare", x[:400], y[:400], x[400:], y[400:], classes=2)


def test_of_two_classes() -> None:
    data = rare()
    result = undrift.run(data=data, metrics=",".join(OF_CLASSES), headline="f1", **OPTIONS)
    p = result.module(data.x_test).detach().softmax(1)
    found = on_test(result)
    assert {name: found[name] for name in OF_CLASSES} == pytest.approx(by_hand(p, data.y_test, 2), rel=1e-5)
    assert result.figure == Figure(metric="f1")
    assert result.value == found["f1"] < 0.5 < found["accuracy"]  # the accuracy of saying no to everybody


@pytest.mark.parametrize("shape", [(50,), (50, 1)])
def test_of_one_output(shape: tuple[int, ...]) -> None:
    outputs, y = torch.sin(torch.arange(50.0) * 3).view(shape), torch.arange(50) % 3 // 2
    p = outputs.reshape(-1).sigmoid()
    found = measured(OF_CLASSES, outputs, y, 2)
    assert found == pytest.approx(by_hand(torch.stack([1 - p, p], 1), y, 2), rel=1e-5)


def test_of_numbers() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 3, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5]) + 0.1 * torch.randn(300, generator=generator)
    data = Dataset("plane", x[:200], y[:200], x[200:], y[200:], classes=None)
    names = ",".join(OF_NUMBERS)
    options: dict[str, Any] = {"partition": "iid", "model": "linear", "clients": 4, "rounds": 2, "metrics": names}
    result = undrift.run(data=data, headline="rmse", target=0.9, **options)
    outputs, found = result.module(data.x_test).detach().reshape(-1), on_test(result)
    assert {name: found[name] for name in OF_NUMBERS} == pytest.approx(
        {
            "rmse": float(torchmetrics.MeanSquaredError(squared=False)(outputs, data.y_test)),
            "mae": float(torchmetrics.MeanAbsoluteError()(outputs, data.y_test)),
            "r2": float(torchmetrics.R2Score()(outputs, data.y_test)),
        },
        rel=1e-5,
    )
    assert found["rmse"] == pytest.approx(found["loss"] ** 0.5, rel=1e-5)
    assert result.figure.better == "lower"
    reached = result.reached(0.9)
    first = next(r for r, f, value in result.history.metrics if f == Figure(metric="rmse") and value <= 0.9)
    assert reached is not None
    assert reached.rounds == first
    assert result.reached(1e-6) is None


def test_on_validation_data_too() -> None:
    result = undrift.run(metrics="f1", validation=0.2, **OPTIONS)
    assert Figure(data=VALIDATION, metric="f1") in result.history.figures


def test_nothing_changes_but_what_is_asked_for() -> None:
    plain, more = undrift.run(**OPTIONS), undrift.run(metrics="auroc", **OPTIONS)
    assert [row for row in more.history.metrics if row[1].metric != "auroc"] == list(plain.history.metrics)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metrics": "f2"}, r"unknown metric 'f2'.*f1"),
        ({"headline": "aurocc"}, r"unknown metric 'aurocc'.*did you mean 'auroc'"),
        ({"metrics": "f1,rmse"}, "metric rmse: the data have classes as targets; possible are balanced_accuracy, f1"),
    ],
)
def test_bad_names(options: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        undrift.run(**options, **OPTIONS)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "torchmetrics"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    with pytest.raises(InvalidInput, match=r"pip install 'undrift\[metrics\]'"):
        undrift.run(metrics="f1", **OPTIONS)
    undrift.run(**OPTIONS)


def test_as_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--model", "logistic", "--clients", "5", "--rounds", "3", "--ledger", str(tmp_path / "runs.db")]
    assert command([*words, "--name", "one", "--metrics", "f1,auroc", "--headline", "f1", "--target", "0.5"]) == 0
    with Ledger(tmp_path / "runs.db") as book:
        history = History.of(book, book.run("one"))
    assert history.main_curve == Figure(metric="f1")
    assert Figure(metric="auroc") in history.figures
    assert history.reached(0.5) is not None
    capsys.readouterr()
    assert command(["show", "one", "--ledger", str(tmp_path / "runs.db")]) == 0
    assert "f1" in capsys.readouterr().out
    assert command([*words, "--name", "two", "--metrics", "f2"]) == 2
    assert "unknown metric" in capsys.readouterr().err


def test_all_names_are_known() -> None:
    assert set(METRICS) == {"accuracy", "loss", *OF_CLASSES, *OF_NUMBERS}
