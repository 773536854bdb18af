"""The counts behind the figures, and figures per client: as torchmetrics has them, recorded, and ready for the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import (
    multiclass_calibration_error,
    multiclass_confusion_matrix,
    multiclass_f1_score,
)

import undrift
from undrift.core.figure import OWN_MEAN, OWN_WORST, Figure
from undrift.data import PARTITIONERS, load
from undrift.data.public import divide
from undrift.experiment import counts
from undrift.ledger.store import Ledger
from undrift.report.content import content

OPTIONS: dict[str, Any] = {"model": "logistic", "clients": 5, "rounds": 3}
DIGITS = load("digits")


def said(result: undrift.Result) -> torch.Tensor:
    """The probabilities that the final model gives on the test set."""
    assert result.module is not None
    with torch.no_grad():
        return result.module.eval()(DIGITS.as_numbers().x_test).softmax(1)


@pytest.mark.parametrize("runtime", ["serial", "processes"])
def test_the_counts_are_those_of_torchmetrics(runtime: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    for seed in (1, 2):
        result = undrift.run(runtime=runtime, ledger=path, seed=seed, name=f"run{seed}", **OPTIONS)
    p, y = said(result), DIGITS.y_test
    with Ledger(path) as book:
        first, second = book.runs()
        kept, page = book.kept_figures(second), content(book, [first, second])
        assert set(book.client_metrics(second)) == {"global"}  # what is no accuracy of clients is not among them
        alone = content(book, [second])
    assert {at for at, _ in kept.values()} == {3}
    by_hand = multiclass_confusion_matrix(p, y, 10)
    assert alone["confusions"][0]["counts"] == by_hand.tolist()
    assert alone["reliabilities"][0]["error"] == pytest.approx(float(multiclass_calibration_error(p, y, 10)), abs=1e-4)
    (both,), (sure,) = page["confusions"], page["reliabilities"]
    assert np.sum(both["counts"]) == sum(n for n, _, _ in sure["bins"]) == 2 * len(y)  # the seeds are added up
    assert (np.array(both["counts"]) >= by_hand.numpy()).all()


def test_a_bin_has_its_upper_end() -> None:
    sure, right = torch.tensor([0.04, 0.5, 1.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0])
    found = counts.reliability(sure, right)
    assert [found[place] for place in (0, 2, 21, 23, 42, 43, 44)] == [1, 0, 1, 1, 2, 2, 1]


def test_one_output_for_two_classes() -> None:
    outputs = torch.tensor([[2.0], [-1.0], [0.5]])
    assert counts.sureness(outputs).tolist() == pytest.approx([0.880797, 0.731059, 0.622459])


def test_metrics_per_client() -> None:
    result = undrift.run(metrics="f1", **OPTIONS)
    p, y = said(result), DIGITS.y_test
    tests = divide(DIGITS, PARTITIONERS["dirichlet"].create(), 5, 1).tests
    assert tests is not None
    rows = [torch.from_numpy(tests.indices[a:b]) for a, b in zip(tests.offsets, tests.offsets[1:], strict=False)]
    by_hand = [float(multiclass_f1_score(p[some], y[some], 10, average="macro")) for some in rows if len(some)]
    mean = result.history.curve(Figure(data=OWN_MEAN, metric="f1"))[1][-1]
    worst = result.history.curve(Figure(data=OWN_WORST, metric="f1"))[1][-1]
    assert mean == pytest.approx(np.mean(by_hand))
    assert worst == pytest.approx(min(by_hand))


def test_where_less_is_better_the_worst_are_the_highest(tmp_path: Path) -> None:
    draw = np.random.default_rng(4)
    x = draw.normal(size=(200, 2))
    data = undrift.Dataset.from_arrays(x, x @ [1.0, 2.0] + draw.normal(size=200) * (x[:, 0] > 0), regression=True)
    result = undrift.run(data=data, partition="iid", model="linear", clients=4, rounds=2, metrics="rmse")
    mean, worst = (result.history.curve(Figure(data=data, metric="rmse"))[1][-1] for data in (OWN_MEAN, OWN_WORST))
    assert worst > mean > 0


def test_a_ranking_needs_every_class() -> None:
    whole = undrift.run(metrics="auroc", **OPTIONS | {"partition": "iid", "clients": 2})
    assert Figure(data=OWN_MEAN, metric="auroc") in whole.history.figures
    options = {**OPTIONS, "partition": PARTITIONERS["classes"].create(classes_per_client=1), "clients": 10}
    result = undrift.run(metrics="auroc,f1", **options)
    assert Figure(data=OWN_MEAN, metric="f1") in result.history.figures
    assert Figure(data=OWN_MEAN, metric="auroc") not in result.history.figures


def test_fairness_by_other_shares(tmp_path: Path) -> None:
    undrift.run(metrics="f1,perplexity", ledger=tmp_path / "runs.db", **OPTIONS)
    with Ledger(tmp_path / "runs.db") as book:
        found = content(book, book.runs())["fairness"]
    assert [one["label"] for one in found] == ["FedAvg", "FedAvg, f1"]  # a perplexity has no place on a scale of shares
