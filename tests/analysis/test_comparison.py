"""Comparisons: cost to a target, ratios with their uncertainty, and what must not be compared."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ledgers import add_run, entry, histories
from undrift.analysis.comparison import Comparison, comparison
from undrift.analysis.intervals import paired_difference
from undrift.analysis.verdict import verdicts
from undrift.core.errors import InvalidInput
from undrift.core.figure import Figure
from undrift.ledger.history import History
from undrift.ledger.rows import RoundRow
from undrift.ledger.store import Ledger
from undrift.report import table
from undrift.report.sentences import Sentence, headline_of, remark, said, target_source


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        yield ledger


def told(found: Comparison) -> list[Sentence]:
    return [said(verdict) for verdict in verdicts(found)]


def test_target_is_met_by_the_mean_over_seeds_not_by_the_mean_of_first_rounds(book: Ledger) -> None:
    # Seed 1 is at 0.9 in round 1, seed 2 in round 4; their mean is at 0.9 only in round 4. Own first rounds: 1 and 4.
    add_run(book, "fedavg", 1, [0.9, 0.8, 0.8, 0.9])
    add_run(book, "fedavg", 2, [0.1, 0.5, 0.8, 0.9])
    (row,) = comparison(histories(book), 0.9).rows
    assert row.costs["rounds"].value == 4
    assert row.costs["rounds"].per_seed == (1, 4)
    assert row.costs["rounds"].per_seed_mean == 2.5
    assert row.costs["bytes_up"].value == 4 * 1000
    assert row.costs["macs"].value == 4 * 10_000
    assert row.costs["seconds"].value == pytest.approx(4 * 0.5)
    assert row.final.mean == pytest.approx(0.9)
    assert row.best.mean == pytest.approx(0.9)


def test_ratios_are_the_baselines_cost_over_the_methods(book: Ledger) -> None:
    for seed in (1, 2, 3):
        add_run(book, "scaffold", seed, [0.5, 0.9, 0.9, 0.9], up=2000)
        add_run(book, "fedavg", seed, [0.2, 0.4, 0.6, 0.9])
    found = comparison(histories(book), 0.9)
    scaffold, fedavg = found.rows
    assert found.is_baseline(fedavg)  # FedAvg is the baseline although it is not the first
    assert fedavg.costs["rounds"].ratio is None
    ratio = scaffold.costs["rounds"].ratio
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high, ratio.pairs) == (2, 2, 2, 3)  # the same on every seed: no spread
    assert scaffold.costs["bytes_up"].ratio.value == 1  # type: ignore[union-attr]  # twice the bytes in half the rounds
    assert "2.00 times sooner than FedAvg" in str(headline_of(found))
    assert "1.5 times the traffic per round" in str(headline_of(found))
    assert "no clear difference" not in str(headline_of(found))


def test_seeds_that_disagree_are_no_clear_difference(book: Ledger) -> None:
    curves = {
        "fedavg": ([0.1, 0.5, 0.9], [0.1, 0.9, 0.9], [0.1, 0.5, 0.9]),
        "fedtrip": ([0.1, 0.9, 0.9], [0.1, 0.5, 0.9], [0.9, 0.9, 0.9]),
    }
    for method, runs in curves.items():
        for seed, accuracies in enumerate(runs, 1):
            add_run(book, method, seed, accuracies)
    found = comparison(histories(book), 0.8)
    ratio = found.rows[1].costs["rounds"].ratio
    assert ratio is not None
    assert ratio.low < 1 < ratio.high
    assert "no clear difference" in str(told(found)[0])


def test_a_verdict_looks_at_the_end_as_well_as_at_the_target(book: Ledger) -> None:
    for seed in (1, 2, 3):
        add_run(book, "fedavg", seed, [0.2, 0.4, 0.6, 0.9, 0.9])
        add_run(book, "fedtrip", seed, [0.5, 0.9, 0.8, 0.6, 0.5 + seed / 100])
        add_run(book, "scaffold", seed, [0.5, 0.91, 0.9, 0.88, 0.885])
    found = comparison(histories(book), 0.9)
    fell, lower = sorted(verdicts(found), key=lambda v: v.row.label)
    assert fell.fell
    assert fell.standing == "unclear"  # sooner, and then lost: no praise
    assert "then fell to 52.0 %" in str(said(fell))
    assert "2.00 times sooner" in str(said(fell))
    assert not lower.fell  # within two points of the target
    assert "but ended at 88.5 %, -1.5 points" in str(said(lower))
    assert str(headline_of(found)).startswith(
        "None of the others was clearly sooner than FedAvg, which reached 90 % in 4"
    )


def test_who_diverged_is_said_to_have_diverged_and_comes_last(book: Ledger) -> None:
    for seed in (1, 2, 3):
        add_run(book, "fedavg", seed, [0.2, 0.5, 0.7, 0.8])
        add_run(book, "scaffold", seed, [0.1, 0.2, 0.3, 0.4])
        add_run(book, "fedtrip", seed, [0.8, 0.9, 0.05, 0.05, 0.05] if seed == 1 else [0.8, 0.9, 0.8, 0.8, 0.8])
    runs = [diverging(run) if run.label == "FedTrip" and run.seed == 1 else run for run in histories(book)]
    found = comparison(runs, 0.8)
    assert [row.label for row in found.ranked] == ["FedAvg", "SCAFFOLD", "FedTrip"]
    (verdict,) = [v for v in verdicts(found) if v.row.label == "FedTrip"]
    assert (verdict.kind, verdict.standing) == ("diverged", "worse")
    assert str(said(verdict)) == (
        "FedTrip diverged in 1 of 3 seeds (the loss grew from round 3 on; it ended at 55.0 %, FedAvg at 80.0 %)."
    )
    assert "FedTrip" not in str(headline_of(found))
    assert "FedTrip (diverged)" in table.text(found)


def diverging(run: History) -> History:
    """The same run with a loss that explodes where the accuracy is at chance."""
    accuracy = dict(zip(*run.curve(), strict=True))
    metrics = [(at, f, 1e6 if f.metric == "loss" and accuracy[at] <= 0.05 else v) for at, f, v in run.metrics]
    return replace(run, metrics=metrics)


def test_a_baseline_at_chance_sets_no_target(book: Ledger) -> None:
    for seed in (1, 2, 3):
        add_run(book, "fedavg", seed, [0.05, 0.06])
        add_run(book, "fedtrip", seed, [0.05, 0.7])
    found = comparison(histories(book))
    assert found.target is None
    assert "reached" not in str(headline_of(found))


def test_what_the_interval_calls_chance_is_not_praised(book: Ledger) -> None:
    curves = {
        "fedavg": ([0.1, 0.5, 0.9], [0.1, 0.9, 0.9], [0.1, 0.5, 0.9]),
        "fedtrip": ([0.1, 0.9, 0.9], [0.1, 0.5, 0.9], [0.9, 0.9, 0.9]),
    }
    for method, runs in curves.items():
        for seed, accuracies in enumerate(runs, 1):
            add_run(book, method, seed, accuracies)
    found = comparison(histories(book), 0.6)
    (verdict,) = verdicts(found)
    assert verdict.standing == "unclear"
    lead = "FedTrip reached 60 % in 2 rounds, FedAvg in 2, at equal traffic per round"
    for sentence in (said(verdict), headline_of(found)):
        assert sentence.claim == f"{lead}: no clear difference."


def test_central_training_has_no_cost_ratio_and_does_not_win(book: Ledger) -> None:
    for seed in (1, 2, 3):
        add_run(book, "fedavg", seed, [0.2, 0.4, 0.9])
        add_run(book, "central", seed, [0.9, 0.95, 0.95])
        add_run(book, "fedtrip", seed, [0.2, 0.4, 0.9])
    found = comparison(histories(book), 0.9)
    central = next(row for row in found.rows if row.group.name == "central")
    assert central.rounds == 1
    assert all(cost.ratio is None for cost in central.costs.values())
    (told,) = [str(said(v)) for v in verdicts(found) if v.row is central]
    assert told.startswith("central ended at 95.0 %, +5 points against FedAvg")
    assert "per round" not in told
    assert "central" not in str(headline_of(found))


def test_labels_say_only_what_tells_runs_apart(book: Ledger) -> None:
    for lr, momentum in ((0.1, 0.5), (0.2, 0.9)):
        add_run(book, "fedavg", 1, [0.5], name=f"lr{lr}", train={"lr": lr, "momentum": momentum, "batch_size": 16})
    assert {row.label for row in comparison(histories(book)).rows} == {"FedAvg [lr=0.1]", "FedAvg [lr=0.2]"}


def test_many_methods_are_ranked(book: Ledger) -> None:
    for place, name in enumerate(("a", "b", "c", "d", "e", "fedavg")):
        add_run(book, name, 1, [0.1 * place, 0.5 + 0.05 * place])
    lines = table.text(comparison(histories(book), 0.65)).splitlines()[2:8]
    assert [line.split()[0] for line in lines] == ["FedAvg", "e", "d", "c", "b", "a"]


def test_one_seed_measures_no_chance_and_two_are_too_few(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.1, 0.2, 0.9])
    add_run(book, "fedtrip", 1, [0.1, 0.9, 0.9])
    (verdict,) = told(comparison(histories(book), 0.9))
    assert "one seed: chance is not measured" in str(verdict)
    add_run(book, "fedavg", 2, [0.1, 0.2, 0.9])
    add_run(book, "fedtrip", 2, [0.1, 0.9, 0.9])
    (verdict,) = told(comparison(histories(book), 0.9))
    assert "2 seeds: too few to tell it from chance" in str(verdict)


def test_many_methods_fit_a_narrow_terminal_without_a_broken_word(book: Ledger) -> None:
    names = ("fedavg", "fedtrip", "scaffold", "FastSlowMo", "Centralised training", "FedProx")
    for place, name in enumerate(names):
        for seed in (1, 2, 3):
            add_run(book, name, seed, [0.1, 0.5 + 0.1 * place, 0.55 + 0.01 * seed])
    found = comparison(histories(book), 0.58)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table.render(found, 80))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    shown = " ".join(" ".join(lines).split())
    for word in ("FastSlowMo", "Centralised", "SCAFFOLD", "(baseline)", "rounds", "compute", "seeds: 3; rejected: 0"):
        assert word in shown
    assert len([line for line in lines if line.startswith(" Fed")]) == 3  # one row for each


def test_what_is_not_reached_is_never_a_number(book: Ledger) -> None:
    for seed in (1, 2, 3):
        add_run(book, "fedavg", seed, [0.1, 0.2, 0.3])
        add_run(book, "fedtrip", seed, [0.1, 0.95, 0.95])
    found = comparison(histories(book), 0.9)
    fedavg, fedtrip = found.rows
    assert fedavg.costs["rounds"].value is None
    assert fedavg.costs["rounds"].per_seed_mean is None
    assert fedtrip.costs["rounds"].ratio is None
    assert "not reached in 3 rounds" in table.cells(found, fedavg)
    assert "0 of 3 seeds" in table.cells(found, fedavg)
    assert "FedTrip reached 90 % in 2 rounds, FedAvg did not in 3" in str(headline_of(found))
    both = comparison(histories(book), 0.99)
    assert "did not reach 99 % in 3 rounds, nor did FedAvg" in str(told(both)[0])
    assert "+65 points against FedAvg" in str(told(both)[0])


def test_runs_on_different_data_stand_side_by_side(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.5, 0.9])
    add_run(book, "fedtrip", 1, [0.9, 0.9], data="other")
    found = comparison(histories(book), 0.9)
    assert all(cost.ratio is None for row in found.rows for cost in row.costs.values())
    told = str(headline_of(found))
    assert told == "On toy, FedAvg reached 90 % in 2 rounds and ended at 90.0 % after 2 rounds; " + (
        "on other, FedTrip reached 90 % in 1 round and ended at 90.0 % after 2 rounds."
    )
    assert any("different data" in remark(r) and "not compared" in remark(r) for r in found.remarks)


def test_runs_that_differ_in_training_do_not_melt_into_one_mean(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.5, 0.9], name="slow", train={"lr": 0.01})
    add_run(book, "fedavg", 2, [0.5, 0.7], name="fast", train={"lr": 0.1})
    found = comparison(histories(book), 0.9)
    assert {row.label for row in found.rows} == {"FedAvg [lr=0.01]", "FedAvg [lr=0.1]"}


def test_a_seed_twice_counts_once(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.5, 0.9])
    add_run(book, "fedavg", 1, [0.5, 0.9], name="again")
    found = comparison(histories(book), 0.9)
    assert found.rows[0].group.seeds == (1,)
    assert any("repeats seed 1" in remark(r) for r in found.remarks)


def test_unfinished_runs_are_left_out_where_finished_ones_are_and_said(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.5, 0.9])
    add_run(book, "fedavg", 2, [0.5], status="stopped", planned=2)
    found = comparison(histories(book), 0.9)
    assert found.rows[0].group.seeds == (1,)
    assert any("without fedavg-toy-seed2 (stopped, round 1)" in remark(r) for r in found.remarks)


def test_an_accuracy_that_is_no_number_is_said_and_reaches_nothing(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.5, None])
    add_run(book, "fedavg", 2, [0.5, 0.9])
    found = comparison(histories(book), 0.9)
    (row,) = found.rows
    assert math.isnan(row.final.mean)
    assert row.costs["rounds"].value is None
    assert row.costs["rounds"].per_seed == (None, 2)
    assert "n/a (1 of 2 seeds gave no number)" in table.cells(found, row)
    assert any("gave no number" in remark(r) for r in found.remarks)


def test_without_a_target_it_is_what_the_baseline_reached(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.5, 0.876])
    add_run(book, "fedtrip", 1, [0.9, 0.9])
    found = comparison(histories(book))
    assert found.target == 0.87
    assert "what FedAvg reached" in target_source(found)


def test_a_run_without_rounds_is_nothing_to_compare(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [], planned=5, status="stopped")
    with pytest.raises(InvalidInput, match="nothing to compare"):
        comparison(histories(book))


@pytest.mark.parametrize("target", [0, -1, 90])
def test_a_target_is_a_share(book: Ledger, target: float) -> None:
    add_run(book, "fedavg", 1, [0.5])
    with pytest.raises(InvalidInput, match="share"):
        comparison(histories(book), target)


def test_markdown_keeps_names_from_becoming_markup(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.5], label="<script>alert(1)</script>|x")
    text = table.markdown(comparison(histories(book), 0.4))
    assert "<script>" not in text
    assert "\\|x" in text


def test_text_has_a_line_per_method(book: Ledger) -> None:
    add_run(book, "fedavg", 1, [0.5])
    add_run(book, "fedtrip", 1, [0.6])
    lines = table.text(comparison(histories(book), 0.4)).splitlines()
    assert lines[2].startswith("FedAvg (baseline)")
    assert lines[3].startswith("FedTrip")


def history(method: str, seed: int, curve: tuple[str, str, str], values: list[float]) -> History:
    """A run without a ledger, judged by the given figure."""
    rows = [
        RoundRow(i, bytes_up=3, bytes_down=2, macs=7, seconds=0.25, participants=2) for i in range(1, len(values) + 1)
    ]
    metrics = [(i, Figure(*curve), v) for i, v in enumerate(values, 1)]
    return History(method, seed, rows, metrics, len(values), experiment={"algorithm": {"name": method}})


def test_personal_models_are_not_compared_with_global_ones() -> None:
    runs = [history("fedavg", s, ("global", "test", "accuracy"), [0.5, 0.6]) for s in (1, 2, 3)]
    runs += [history("fedrep", s, ("personal", "own test (mean)", "accuracy"), [0.8, 0.9]) for s in (1, 2, 3)]
    found = comparison(runs, 0.6)
    personal = found.rows[1]
    assert personal.costs["rounds"].value == 1
    assert personal.costs["rounds"].ratio is None
    assert personal.gain is None
    assert "not compared" in str(told(found)[0])
    assert "fedavg reached 60 % in 2 rounds" in str(headline_of(found))
    assert any("fedrep is judged by the accuracy of the personal model" in remark(r) for r in found.remarks)


def test_data_without_classes_are_compared_by_their_loss() -> None:
    loss = ("global", "test", "loss")
    runs = [history("fedavg", s, loss, [2.0, 1.0 + s / 100]) for s in (1, 2, 3)]
    runs += [history("fedtrip", s, loss, [2.0, 0.5 + s / 100]) for s in (1, 2, 3)]
    found = comparison(runs, 0.9)
    assert (found.figure.metric, found.target) == ("loss", None)
    assert found.rows[1].costs == {}
    assert "fedtrip ended at a loss of 0.52, -0.5 against fedavg" in str(headline_of(found))
    assert "final loss" in table.headers(found)


share = st.integers(1, 1000).map(lambda n: n / 1000)  # accuracies and targets as evaluations and people give them


@given(st.lists(share, min_size=5, max_size=5), share)
def test_one_run_agrees_with_its_own_history(values: list[float], target: float) -> None:
    run = history("fedavg", 1, ("global", "test", "accuracy"), values)
    reached = run.reached(target)
    (row,) = comparison([run], target).rows
    if reached is None:
        assert row.costs["rounds"].value is None
    else:
        for column in ("rounds", "bytes_up", "bytes_down", "macs", "seconds"):
            assert row.costs[column].value == pytest.approx(getattr(reached, column))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=3, max_size=12))
def test_interval_holds_the_estimate_and_lies_within_the_pairs(pairs: list[tuple[float, float]]) -> None:
    found = paired_difference([a for a, _ in pairs], [b for _, b in pairs])
    differences = [a - b for a, b in pairs]
    assert found.value == pytest.approx(sum(differences) / len(differences))
    slack = 1e-9
    assert min(differences) - slack <= found.low <= found.value + slack
    assert found.value - slack <= found.high <= max(differences) + slack


def test_interval_covers_a_true_difference_about_as_often_as_it_says() -> None:
    import numpy as np

    generator = np.random.Generator(np.random.Philox(key=5))
    trials, covered = 400, 0
    for _ in range(trials):
        mine, theirs = generator.normal(0.3, 1, 8), generator.normal(0, 1, 8)
        found = paired_difference(mine.tolist(), theirs.tolist())
        covered += found.low <= 0.3 <= found.high
    assert 0.90 <= covered / trials <= 0.99


def test_a_share_of_which_less_is_better_has_no_target(book: Ledger) -> None:
    """An error that falls below 0.9 at once has not reached anything."""
    for method in ("fedavg", "fedtrip"):
        run = add_run(book, method, 1, [])
        for at, value in enumerate((0.95, 0.2), 1):
            book.record(run, replace(entry(at, 0.5), metrics=[(Figure(metric="calibration_error"), value)]))
    book.flush()
    named = [replace(h, experiment={**h.experiment, "headline": "calibration_error"}) for h in histories(book)]
    found = comparison(named, 0.9)
    assert found.figure == Figure(metric="calibration_error")
    assert found.target is None
