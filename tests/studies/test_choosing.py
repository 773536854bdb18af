"""Settings, methods and the end of a run are chosen by validation data where there are any; the test set only tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undrift
from undrift.core.errors import InvalidInput
from undrift.core.figure import VALIDATION, Figure
from undrift.core.training import Training
from undrift.data import Dataset
from undrift.ledger.history import History
from undrift.ledger.store import Ledger

CHOSEN, TESTED = Figure(data=VALIDATION), Figure()


def turned() -> Dataset:
    """Test data that are labelled the other way round: a test set that misleads."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(400, 2, generator=generator)
    y = (x[:, 0] > 0).long()
    return Dataset("turned", x[:300], y[:300], x[300:], 1 - y[300:], classes=2)


OPTIONS: dict[str, Any] = {"data": turned(), "partition": "iid", "model": "logistic", "clients": 3, "rounds": 2}


def test_a_sweep_chooses_by_validation() -> None:
    """A useless rate is best on the misleading test set; the validation data know better."""
    over = {"lr": [1e-6, 0.5]}
    by_test = undrift.sweep("fedavg", over, seeds=[1, 2], validation=0, **OPTIONS)
    by_validation = undrift.sweep("fedavg", over, seeds=[1, 2], validation=0.2, **OPTIONS)
    assert by_test.best["fedavg"].trial.point == {"lr": 1e-6}
    best = by_validation.best["fedavg"]
    assert best.trial.point == {"lr": 0.5}
    ends = [run for run in by_validation.histories if run.facts["training"]["lr"] == 0.5]
    assert best.figure.values == pytest.approx([run.curve(CHOSEN)[1][-1] for run in ends])
    assert best.tested is not None
    assert best.tested.values == pytest.approx([run.curve(TESTED)[1][-1] for run in ends])
    assert best.tested.mean < 0.2 < 0.8 < best.figure.mean
    table, sentences = by_validation.lines()
    assert table[0][4:6] == ["final accuracy on the validation data", "on the test set"]
    assert sentences == ["Settings are chosen by the validation data; the test set had no say in it."]
    assert "flatters" in by_test.lines()[1][0]
    assert by_validation.records()[0]["test_mean"] == best.tested.mean


def test_a_sweep_sets_a_tenth_apart_unless_it_is_told_otherwise() -> None:
    found = undrift.sweep("fedavg", {"lr": [1e-6, 0.5]}, seeds=[1, 2], **OPTIONS)
    assert {run.experiment["validation"] for run in found.histories} == {0.1}
    assert found.best["fedavg"].trial.point == {"lr": 0.5}  # by the misleading test set it would be the other
    assert "a tenth of every client's training data" in found.lines()[1][1]
    assert "--validation 0" in found.lines()[1][1]


def test_rounds_to_a_target_are_those_on_the_validation_data() -> None:
    some = {**OPTIONS, "rounds": 5, "target": 0.97}
    found = undrift.sweep("fedavg", {"lr": [1e-6, 0.05]}, seeds=[1, 2], by="rounds", **some)
    best, worst = found.scores["fedavg"]
    assert best.trial.point == {"lr": 0.05}
    curves = [run.curve(CHOSEN) for run in found.histories if run.facts["training"]["lr"] == 0.05]
    means = {r: np.mean([values[place] for _, values in curves]) for place, r in enumerate(curves[0][0])}
    assert best.figure.mean == min(r for r, mean in means.items() if mean >= 0.97)
    assert best.tested is not None
    assert best.tested.mean < 0.5
    assert found.words(worst) == "not reached"
    table, sentences = found.lines()
    assert table[0][4:6] == ["rounds to target on the validation data", "on the test set"]
    assert "no say in it" in sentences[0]


def test_advice_sets_a_tenth_apart_too(tmp_path: Path) -> None:
    options = {key: value for key, value in OPTIONS.items() if key != "rounds"} | {"seeds": [1, 2]}
    ledger = tmp_path / "runs.db"
    found = undrift.advise("rounds=10", algorithms="fedprox", ledger=ledger, **options)
    assert any("--validation 0" in sentence for sentence in found.sentences)
    assert all(standing.tested for standing in found.standings)
    own = undrift.advise("rounds=10", algorithms="fedprox", ledger=ledger, name="own", goal="personal", **options)
    every = undrift.advise("rounds=10", algorithms="fedprox", ledger=ledger, name="all", validation=0, **options)
    assert not any(s.tested for s in (*own.standings, *every.standings))
    with Ledger(ledger) as book:
        told = {run.name.split("/")[0]: run.experiment.get("validation") for run in book.runs()}
    assert told == {"advise": 0.1, "own": None, "all": 0.0}


def test_the_best_round_is_that_of_validation() -> None:
    found = undrift.sweep("fedavg", {"lr": [0.5]}, seeds=[1], by="best", validation=0.2, **OPTIONS | {"rounds": 4})
    (run,), score = found.histories, found.best["fedavg"]
    at, values = run.curve(CHOSEN)
    assert run.best_round == at[values.index(max(values))]
    assert score.figure.values == (max(values),)
    assert score.tested is not None
    assert score.tested.values == (dict(zip(*run.curve(TESTED), strict=True))[run.best_round],)


def test_advice_by_validation() -> None:
    options = {key: value for key, value in OPTIONS.items() if key != "rounds"} | {"seeds": [1, 2], "validation": 0.2}
    found = undrift.advise("rounds=5", algorithms=["fedavg", "fedprox"], pilot=1.0, **options)
    (first, *_), (table, sentences) = found.standings, found.lines()
    assert first.tested is not None
    assert first.tested.mean < 0.5 < first.score.mean
    assert table[0][3:5] == ["on validation data", "on the test set"]
    assert any("on the validation data" in sentence for sentence in sentences)
    assert any("On the test set, which had no say in it" in sentence for sentence in sentences)


def test_patience(tmp_path: Path) -> None:
    """Nothing gets better at this rate, so that the second evaluation is one too many."""
    training = undrift.Training(lr=1e-7)
    some = {**OPTIONS, "rounds": 30, "training": training, "validation": 0.2}
    result = undrift.run(patience=2, **some)
    values = result.history.curve(CHOSEN)[1]
    assert values == [values[0]] * 3
    assert len(result.history.rounds) == 3
    assert len(undrift.run(patience=2, **some | {"eval_every": 3}).history.rounds) == 9
    where: dict[str, Any] = {"ledger": tmp_path / "runs.db", "name": "one"}
    undrift.run(patience=2, **where, **some | {"rounds": 2})
    with Ledger(tmp_path / "runs.db") as book:
        assert book.run("one").rounds == 2
    undrift.run(patience=2, resume=True, **where, **some)
    with Ledger(tmp_path / "runs.db") as book:
        assert History.of(book, book.run("one")).best_round == 1
        assert book.run("one").rounds == 3


def test_patience_waits_while_it_gets_better() -> None:
    result = undrift.run(patience=3, validation=0.3, **OPTIONS | {"rounds": 25, "data": "digits"})
    values = result.history.curve(CHOSEN)[1]
    best = values.index(max(values))
    assert len(values) == min(25, best + 1 + 3)
    assert max(values[:1]) < max(values)


def test_patience_needs_validation() -> None:
    with pytest.raises(InvalidInput, match=r"patience = 2: it goes by validation data.*set validation = 0.1"):
        undrift.run(patience=2, **OPTIONS)


# --- figures that fall, or that are no shares ------------------------------------------------------------------------


def line() -> Dataset:
    """Numbers to be told from others: a line with noise."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(300, 3, generator=generator)
    y = x @ torch.tensor([2.0, -1.0, 0.5]) + 0.1 * torch.randn(300, generator=generator)
    return Dataset("line", x[:240], y[:240], x[240:], y[240:], classes=None)


NUMBERS: dict[str, Any] = {"data": line(), "partition": "iid", "model": "linear", "clients": 3, "rounds": 4}


@pytest.mark.parametrize(("headline", "target"), [("rmse", 0.5), ("mae", 0.4), ("r2", 0.95)])
def test_a_target_of_any_figure(headline: str, target: float, tmp_path: Path) -> None:
    found = undrift.compare(
        "fedavg,fedprox:mu=5", seeds=[1, 2], headline=headline, target=target, training=Training(lr=0.02), **NUMBERS
    )
    row = found.rows[0]
    curves = [run.curve(Figure(metric=headline))[1] for run in row.group.runs]
    means = np.mean(curves, axis=0)
    good = means >= target if headline == "r2" else means <= target
    assert row.rounds == 1 + int(np.argmax(good))
    assert good.any()
    assert not good.all()
    for seed, curve in enumerate(curves):
        met = [r for r, v in enumerate(curve, 1) if (v >= target if headline == "r2" else v <= target)]
        assert row.costs["rounds"].per_seed[seed] == met[0]
    text = repr(found)
    assert f"to {target:g}" in text
    assert "%" not in text.split("Target")[0]


def test_a_target_must_suit_its_figure() -> None:
    with pytest.raises(InvalidInput, match=r"target = 1.5: it must be a share in \(0, 1\], for example 0.9 for 90 %"):
        undrift.run(target=1.5, **OPTIONS)
    with pytest.raises(InvalidInput, match=r"target = 1.5: it must be a share"):
        undrift.run(target=1.5, headline="f1", **OPTIONS)
    with pytest.raises(InvalidInput, match="target = nan: it must be a number that is finite"):
        undrift.run(target=float("nan"), headline="rmse", **NUMBERS)
    assert undrift.run(target=1.5, headline="perplexity", **OPTIONS).reached(1.5) is None


def test_a_sweep_speaks_in_the_unit_of_its_figure() -> None:
    found = undrift.sweep("fedavg", {"lr": [0.001, 0.05]}, seeds=[1, 2], headline="r2", **NUMBERS)
    table, _ = found.lines()
    assert table[0][4] == "final r2 on the validation data"
    assert not [cell for row in table for cell in row if "%" in cell]
    best = found.best["fedavg"]
    assert best.trial.point == {"lr": 0.05}
    assert best.figure.mean <= 1
    fallen = undrift.sweep("fedavg", {"lr": [0.001, 0.05]}, seeds=[1], headline="rmse", **NUMBERS)
    assert fallen.best["fedavg"].trial.point == {"lr": 0.05}
    assert not [cell for row in fallen.lines()[0] for cell in row if "%" in cell]
    ends = [abs(score.value) for score in fallen.scores["fedavg"]]
    assert ends == sorted(ends)


def test_advice_by_a_figure_that_falls() -> None:
    options = {key: value for key, value in NUMBERS.items() if key != "rounds"} | {"training": Training(lr=0.02)}
    found = undrift.advise("rounds=10", algorithms="fedprox,fedavgm", seeds=[1, 2], headline="rmse", **options)
    ends = [standing.score.mean for standing in found.standings if not standing.error]
    assert ends == sorted(ends)
    assert all(standing.what == Figure(metric="rmse") for standing in found.standings)
    assert "a rmse of" in " ".join(found.sentences)
    assert "points" not in " ".join(found.sentences)


def test_patience_needs_a_global_model() -> None:
    with pytest.raises(InvalidInput, match=r"patience = 2: .* has no global model"):
        undrift.run("local", patience=2, validation=0.2, **OPTIONS)
