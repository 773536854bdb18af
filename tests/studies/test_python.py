"""Studies as a Python user meets them: values, tables, intervals and verdicts, by name or with one's own objects."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import undrift
from undrift.algorithms import algorithms
from undrift.algorithms.fedavg import FedAvg
from undrift.core.figure import Figure
from undrift.ledger.store import Ledger
from undrift.studies.jobs import Done

SMALL: dict[str, Any] = {"clients": 5, "participate": 2, "rounds": 3}


class Slower(FedAvg):
    """Somebody's own method."""

    title = "Slower"


def test_a_comparison_is_a_value_with_its_table_verdicts_and_histories() -> None:
    found = undrift.compare(["fedavg", {"name": "fedprox", "mu": 0.2}], seeds="1..2", target=0.3, **SMALL)
    assert [row.label for row in found.rows] == ["FedAvg", "FedProx (mu=0.2)"]
    assert len(found.histories) == 4
    assert [verdict.row.label for verdict in found.verdicts] == ["FedProx (mu=0.2)"]
    first, second = found.records()
    assert second["final_mean"] == pytest.approx(found.rows[1].final.mean)
    assert second["gain_low"] <= second["gain"] <= second["gain_high"]
    ends = [history.curve(Figure())[1][-1] for history in found.histories[:2]]
    assert found.figures["FedAvg"][Figure()].values == tuple(ends)
    assert first["accuracy of global on test"] == pytest.approx(sum(ends) / 2)
    assert found.ledger is None  # nothing is left behind


def test_a_comparison_shows_itself_as_text_and_as_html() -> None:
    found = undrift.compare("fedavg", seeds=1, **SMALL)
    text, page = repr(found), found._repr_html_()
    assert text.splitlines()[0].split()[:2] == ["method", "seeds"]
    assert "FedAvg ended at" in text or "FedAvg reached" in text
    assert page.startswith("<table>")
    assert page.count("<tr>") == 2


def test_records_go_to_pandas_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = undrift.compare("fedavg", seeds=1, **SMALL)
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    with pytest.raises(undrift.InvalidInput, match="pip install pandas"):
        found.to_pandas()
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda records: ("frame", records)))
    assert found.to_pandas() == ("frame", found.records())


def test_methods_have_training_settings_of_their_own(tmp_path: Path) -> None:
    shared: dict[str, Any] = {"seeds": 1, "training": undrift.Training(momentum=0.9, lr=0.02), **SMALL}
    for place, model in enumerate((None, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))):
        path = tmp_path / f"{place}.sqlite"
        methods = ["fedavg", "slowmo:train.momentum=0", {"name": "feddyn", "train": {"momentum": 0.5, "epochs": 2}}]
        found = undrift.compare(methods, model=model, ledger=path, **shared)
        assert [row.label for row in found.rows] == [
            "FedAvg",
            "SlowMo [momentum=0]",
            "FedDyn [momentum=0.5, epochs=2]",
        ]
        with Ledger(path) as book:
            trained = {run.name.split("/")[1]: run.facts["training"] for run in book.runs()}
        assert [(t["momentum"], t["epochs"], t["lr"]) for t in trained.values()] == [
            (0.9, trained["fedavg"]["epochs"], 0.02),
            (0.0, trained["fedavg"]["epochs"], 0.02),
            (0.5, 2, 0.02),
        ]
        assert list(trained)[1:] == ["slowmo:train.momentum=0", "feddyn:train.momentum=0.5:train.epochs=2"]
        assert undrift.compare(methods, model=model, ledger=path, resume=True, **shared).records() == found.records()


def test_ones_own_model_data_and_method_are_compared(tmp_path: Path) -> None:
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(1))
    data = undrift.Dataset.from_arrays(x, (x[:, 0] > 0).long())
    arguments: dict[str, Any] = {
        "data": data,
        "partition": "iid",
        "model": lambda: nn.Linear(4, 2),
        "seeds": (1, 2),
        "training": undrift.Training(lr=0.5),
        "ledger": tmp_path / "ledger.sqlite",
        **SMALL,
    }
    found = undrift.compare(["fedavg", Slower()], **arguments)
    assert [row.label for row in found.rows] == ["FedAvg", "Slower"]
    mine, theirs = (row.final.values for row in found.rows)
    assert mine == theirs  # it is FedAvg, after all
    again = undrift.compare(["fedavg", Slower()], resume=True, **arguments)
    assert again.records() == found.records()
    with Ledger(tmp_path / "ledger.sqlite") as book:
        assert [run.name for run in book.runs()] == [
            f"compare/{name}/seed{seed}" for name in ("fedavg", "slower") for seed in (1, 2)
        ]


def test_an_error_in_ones_own_code_is_seen_where_it_is() -> None:
    def loss(predicted: torch.Tensor, true: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("in my own code")

    with pytest.raises(ZeroDivisionError, match="in my own code"):
        undrift.compare("fedavg", loss=loss, seeds=1, **SMALL)


def test_a_sweep_and_a_comparison_with_public_data_are_on_the_same_data(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    undrift.compare("fedavg,pfedmo", seeds=1, ledger=path, **SMALL)
    undrift.sweep("fedavg,pfedmo", {"lr": [0.05]}, seeds=1, ledger=path, side_by_side=1, validation=0, **SMALL)
    with Ledger(path) as book:
        runs = book.runs()
    studies = {run.name.split("/")[0]: set[str]() for run in runs}
    for run in runs:
        studies[run.name.split("/")[0]].add(run.name.split("/")[1].split(":")[0])
    assert studies == {name: {"fedavg", "pfedmo", "fednag"} for name in ("compare", "sweep")}  # and its control
    assert len({run.facts["partition_fingerprint"] for run in runs}) == 1


def test_a_sweep_is_a_value_with_the_best_of_each_method() -> None:
    found = undrift.sweep("fedavg,fedprox", {"lr": [0.01, 0.1], "fedprox.mu": [1.0]}, seeds=1, side_by_side=1, **SMALL)
    records = found.records()
    assert len(records) == 4
    best = found.best["fedprox"]
    assert best.value == max(r["mean"] for r in records if r["method"] == "fedprox")
    assert best.trial.point["fedprox.mu"] == 1.0
    assert "final accuracy" in repr(found)
    assert found.failed == ()


def test_a_pilot_is_a_value_with_what_to_take() -> None:
    found = undrift.advise(
        "rounds=25", algorithms="fedprox,scaffold", seeds=(1, 2), side_by_side=1, clients=5, participate=2
    )
    assert {record["method"] for record in found.records()} == {"fedavg", "fedprox", "scaffold"}
    assert found.take in {"", *algorithms()}
    assert found.sentences[-1].startswith("Early rounds")
    assert repr(found).endswith(found.sentences[-1])


def test_a_run_that_fails_is_told_and_does_not_stop_the_others(tmp_path: Path) -> None:
    # Too many clients for the data of one trial, not for those of the other.
    found = undrift.sweep("fedavg", {"clients": [5, 10**6]}, rounds=2, seeds=1, side_by_side=1)
    assert [isinstance(done, Done) and "fewer than 1000000 clients" in done.error for done in found.failed] == [True]
    assert math.isfinite(found.best["fedavg"].value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"seeds": []}, "at least one seed"),
        ({"seeds": "x"}, "write 1..5"),
        ({"seeds": ["one"]}, "seeds"),
        ({"seeds": [-1]}, "seed"),
        ({"seeds": 2.5}, "seeds"),
        ({"algorithms": FedAvg}, r"give an object, FedAvg\(...\)"),
        ({"algorithms": 3}, "a method is a name"),
        ({"algorithms": []}, "at least one method"),
        ({"algorithms": "fedavg,fedavg"}, "listed twice"),
        ({"algorithms": [{"mu": 1}]}, "unknown algorithm"),
        ({"data": ([1], [2])}, "from_arrays"),
        ({"training": {}}, "undrift.Training"),
        ({"partition": 3}, "partition must be"),
        ({"model": 3}, "model must be"),
        ({"rouds": 3}, "did you mean 'rounds'"),
        ({"target": 90}, "0.9"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_gets_a_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(undrift.InvalidInput, match=sentence):
        undrift.compare(**{"seeds": 1, **SMALL, **arguments})


@pytest.mark.parametrize(
    ("over", "sentence"),
    [((), "at least one setting"), ({"lr": 3}, "list the values"), ({"lr": ["a"]}, "lr must be"), (3, "lr=0.01,0.1")],
    ids=str,
)
def test_what_cannot_be_swept_gets_a_sentence(over: Any, sentence: str) -> None:
    with pytest.raises(undrift.InvalidInput, match=sentence):
        undrift.sweep("fedavg", over, **SMALL)
