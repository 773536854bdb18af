"""The evaluation protocol: every number against the same number worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import undrift
from undrift.core.figure import TRAINING, Figure
from undrift.data import PARTITIONERS, load, test_parts


def test_the_global_figures_are_those_of_the_model_that_is_returned() -> None:
    data = load("digits")
    result = undrift.run("fedavg", data=data, clients=12, participate=4, rounds=3, seed=5)
    assert result.module is not None
    with torch.no_grad():
        right = (result.module.eval()(data.x_test).argmax(1) == data.y_test).double().numpy()
    split = PARTITIONERS["dirichlet"].create().split(data, 12, 5)
    parts = test_parts(split, data, 5)
    own = np.sort([right[parts[i]].mean() for i in range(12) if len(parts[i])])
    final = {(f.model, f.data): v for at, f, v in result.history.metrics if at == 3 and f.metric == "accuracy"}
    assert final[("global", "test")] == result.accuracy == pytest.approx(right.mean())
    assert final[("global", "own test (mean)")] == pytest.approx(own.mean())
    assert final[("global", "own test (worst decile)")] == pytest.approx(own[:1].mean())
    assert sorted(np.concatenate([parts[i] for i in range(12)])) == list(range(len(data.x_test)))


@pytest.mark.parametrize("runtime", ["serial", "batched"])
def test_the_objective_on_all_training_data_where_it_is_asked_for(runtime: str) -> None:
    data = load("digits")
    asked = {"data": data, "clients": 6, "participate": 2, "rounds": 2, "seed": 5, "runtime": runtime}
    result = undrift.run("fedavg", eval_training=True, **asked)
    assert result.module is not None
    with torch.no_grad():
        outputs = result.module.eval()(data.x)
    right = float((outputs.argmax(1) == data.y).double().mean())
    loss = float(nn.functional.cross_entropy(outputs, data.y))
    at, values = result.history.curve(Figure(data=TRAINING))
    assert at == [1, 2]
    assert values[-1] == pytest.approx(right)
    assert result.history.curve(Figure(data=TRAINING, metric="loss"))[1][-1] == pytest.approx(loss, rel=1e-5)
    plain = undrift.run("fedavg", **asked)
    assert plain.history.curve() == result.history.curve()  # to look changes nothing
    assert TRAINING not in {figure.data for figure in plain.history.figures}


def test_personal_models_are_labelled_as_such() -> None:
    result = undrift.run("fedrep", clients=8, rounds=2, seed=1)
    assert {(f.model, f.data) for f in result.history.figures} == {
        ("personal", "own test (mean)"),
        ("personal", "own test (worst decile)"),
    }
    assert result.module is None


def test_evaluation_happens_every_so_many_rounds_and_after_the_last() -> None:
    result = undrift.run("fedavg", clients=8, participate=2, rounds=7, seed=1, eval_every=3)
    assert result.history.curve()[0] == [3, 6, 7]


def test_a_regression_is_judged_by_its_loss() -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(200, 3))
    y = x @ np.array([1.0, -2.0, 0.5])
    data = undrift.Dataset.from_arrays(x, y, regression=True)
    result = undrift.run(
        "fedavg",
        data=data,
        partition="iid",
        model=lambda: nn.Sequential(nn.Linear(3, 1), nn.Flatten(0)),
        loss=nn.functional.mse_loss,
        clients=4,
        rounds=20,
        seed=1,
    )
    assert result.history.main_curve == Figure(metric="loss")
    assert result.history.final < 0.01
    assert result.reached(0.5) is None


@pytest.mark.parametrize("outputs", [1, 7])
def test_a_model_with_too_few_outputs_is_refused(outputs: int) -> None:
    with pytest.raises(undrift.InvalidInput, match=f"the model has {outputs} outputs, and the data has 10 classes"):
        undrift.run("fedavg", model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, outputs)), clients=4, rounds=1)


def test_a_model_for_other_inputs_is_refused() -> None:
    with pytest.raises(undrift.InvalidInput, match=r"cannot take inputs of shape \(1, 8, 8\)"):
        undrift.run("fedavg", model=lambda: nn.Linear(100, 10), clients=4, rounds=1)


def test_feature_skew_changes_the_training_inputs_and_not_the_test_set() -> None:
    from undrift.experiment.description import Experiment
    from undrift.experiment.prepare import prepare_experiment

    plain, skewed = (
        prepare_experiment(Experiment.build({"clients": 5, "skew": skew}))
        for skew in ({}, {"rotation": 30, "noise": 0.2})
    )
    assert not torch.equal(plain.federation.x, skewed.federation.x)
    assert torch.equal(plain.federation.test.x, skewed.federation.test.x)
    assert plain.partition.fingerprint == skewed.partition.fingerprint
    assert plain.facts()["data_fingerprint"] != skewed.facts()["data_fingerprint"]


def test_a_class_that_no_client_holds_is_named() -> None:
    data = load("digits")
    few = undrift.Dataset.from_arrays(data.x[data.y < 8], data.y[data.y < 8], data.x_test, data.y_test, classes=10)
    with pytest.warns(UserWarning, match="no client holds class 8, 9, which arrays is tested on"):
        undrift.run("fedavg", data=few, clients=4, rounds=1)
