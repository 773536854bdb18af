"""Sweeps and pilots: what is tried, that it goes on after a crash, and what is concluded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from undrift.analysis.intervals import Spread
from undrift.core.errors import InvalidInput
from undrift.experiment.description import tag
from undrift.ledger.store import Ledger
from undrift.studies.advise import _survivors, run_pilot
from undrift.studies.conclusion import conclusion
from undrift.studies.heat import heat_map
from undrift.studies.jobs import Done, Observer, Place, Queued, work_off
from undrift.studies.outcome import Outcome, Score, heat
from undrift.studies.over import parse_over
from undrift.studies.pilot import Budget, Pilot, Standing
from undrift.studies.sweep import Sweep, planned_sweep, run_sweep

BASE: dict[str, Any] = {"clients": 5, "participate": 2, "rounds": 2, "partition": {"name": "iid"}}


def sweep(*over: str, methods: tuple[str, ...] = ("fedavg", "fedprox"), **rest: Any) -> Sweep:
    sections = tuple({"name": name} for name in methods)
    return Sweep(BASE, sections, tuple(parse_over(text, methods, BASE) for text in over), **rest)


def test_a_grid_is_every_combination_of_what_applies_to_a_method() -> None:
    plan = sweep("lr=0.01,0.1", "fedprox.mu=0.1,1,10")
    assert plan.points("fedavg") == [{"lr": 0.01}, {"lr": 0.1}]
    assert len(plan.points("fedprox")) == 6
    trial = plan.trial({"name": "fedprox"}, {"lr": 0.1, "fedprox.mu": 10.0})
    assert trial.values["algorithm"] == {"name": "fedprox", "mu": 10.0}
    assert trial.values["train"]["lr"] == 0.1
    assert trial.tag == "fedprox:lr=0.1:fedprox.mu=10"


def test_lists_are_varied_and_names_carry_all_that_differs() -> None:
    budgets = planned_sweep(BASE, "fedadm", ["budget=15,30,60"])
    assert [trial["budget"] for trial in budgets.points("fedadm")] == [(15.0,), (30.0,), (60.0,)]
    pairs = planned_sweep(BASE, "fedadm", ["budget=[10,20],[30,40]"])
    assert [trial["budget"] for trial in pairs.points("fedadm")] == [(10.0, 20.0), (30.0, 40.0)]
    in_python = planned_sweep(BASE, "fedadm", {"budget": [[10, 20], [30, 40]]})
    assert in_python.points("fedadm") == pairs.points("fedadm")
    twice = planned_sweep(BASE, "fedtr,fedtr:drift=dual", ["lr=0.1"])
    trials = [twice.trial(method, point) for method in twice.methods for point in twice.points(tag(method))]
    assert [trial.tag for trial in trials] == ["fedtr:lr=0.1", "fedtr:drift=dual:lr=0.1"]
    assert len({run.name for trial in trials for run in twice.runs(trial)}) == 6


def test_a_setting_given_for_all_goes_to_the_methods_that_have_it() -> None:
    plan = planned_sweep({**BASE, "algorithm": {"mu": 3.0}}, "fedavg,fedprox,fedprox:mu=1", ["lr=0.1"])
    sections = [plan.trial(method, {"lr": 0.1}).values["algorithm"] for method in plan.methods]
    assert sections == [{"name": "fedavg"}, {"name": "fedprox", "mu": 3.0}, {"name": "fedprox", "mu": 1.0}]


@pytest.mark.parametrize("text", ["fedprox:mu=1", "fedprox:train.lr=0.1"])
def test_what_a_method_fixes_is_not_varied(text: str) -> None:
    with pytest.raises(InvalidInput, match="leave one of them out"):
        planned_sweep(BASE, text, ["fedprox.mu=1,2", "lr=0.1,0.2"])


def test_trials_are_the_same_number_for_all_and_the_same_ones_again() -> None:
    plan = sweep("train.lr=0.001..1", "algorithm.mu=0.1..0.2", methods=("fedprox", "moon"), search="random", trials=7)
    for method in ("fedprox", "moon"):
        points = plan.points(method)
        assert len(points) == 7
        assert points == plan.points(method)
        assert all(0.001 <= p["train.lr"] <= 1 and 0.1 <= p["algorithm.mu"] <= 0.2 for p in points)
    assert plan.points("fedprox") != plan.points("moon")
    grid = sweep("lr=0.1,0.2,0.3,0.4", "fedprox.mu=1,2,3", trials=3)
    assert [len(grid.points(m)) for m in ("fedavg", "fedprox")] == [3, 3]


def test_a_wide_range_is_drawn_evenly_in_its_logarithm_and_whole_numbers_stay_whole() -> None:
    over = parse_over("lr=0.001..10", ["fedavg"], BASE)
    assert over.draw(0.5) == pytest.approx(0.1)
    narrow = parse_over("lr=0.1..0.5", ["fedavg"], BASE)
    assert narrow.draw(0.5) == pytest.approx(0.3)
    whole = parse_over("epochs=1..5", ["fedavg"], BASE)
    assert whole.draw(0.99) == 5
    assert isinstance(whole.draw(0.3), int)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mu=-1", "mu must be"),
        ("seed=1,2", "to vary"),
        ("fedprox.nu=1", "one of mu"),
        ("nothing.mu=1", "section or method"),
        ("lr=0.5..0.1", "smaller to a larger"),
        ("decay_mode=a..b", "not a number"),
    ],
)
def test_what_cannot_be_varied_is_said(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        parse_over(text, ["fedavg", "fedprox"], BASE)


def test_a_sweep_runs_each_seed_once_and_ends_with_a_table_and_a_heat_map(tmp_path: Path) -> None:
    plan = sweep("lr=0.01,0.1", "fedprox.mu=0.1,1", seeds=(1, 2))
    path, told = tmp_path / "ledger.sqlite", list[Done]()
    found = run_sweep(plan, path, workers=1, observer=Observer(told.append))
    assert len(told) == (2 + 4) * 2
    assert found.budget == 2
    best = found.scores["fedprox"][0]
    assert best.value == max(score.value for score in found.scores["fedprox"])
    assert len(best.figure.values) == 2
    x, y, columns, rows, values = heat(found, "fedprox") or pytest.fail("no heat map")
    assert {x, y} == {"lr", "fedprox.mu"}
    assert values.shape == (len(rows), len(columns)) == (2, 2)
    heat_map(found, tmp_path / "heat.png")
    assert (tmp_path / "heat.png").stat().st_size > 0
    assert [line[0] for line in found.lines()[0]] == [
        "method",
        *sorted(found.scores, key=lambda m: -found.best[m].value),
    ]
    with Ledger(path) as book:
        before = [(run.name, run.created, run.rounds) for run in book.runs()]
    assert run_sweep(plan, path, workers=1).scores == found.scores
    with Ledger(path) as book:
        assert [(run.name, run.created, run.rounds) for run in book.runs()] == before


def test_the_best_of_an_equal_number_of_trials() -> None:
    plan = sweep("lr=0.01,0.1")

    def scored(method: str, *values: float) -> list[Score]:
        trial = plan.trial({"name": method}, {})
        return [Score(trial, Spread.of([v]), v) for v in values]

    found = Outcome(plan, {"fedavg": scored("fedavg", 0.7, 0.5), "fedprox": scored("fedprox", 0.9, 0.6, 0.3)})
    assert found.expected("fedavg") == pytest.approx(0.7)
    # Two of (0.9, 0.6, 0.3): the best is 0.9 in two of three choices and 0.6 in the third.
    assert found.expected("fedprox") == pytest.approx((0.9 + 0.9 + 0.6) / 3)


def test_a_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    good = Queued("good", {**BASE, "runtime": "serial"})
    bad = Queued("bad", {**BASE, "runtime": "serial", "clients": 10**6})
    failed = work_off([bad, good], Place(tmp_path / "ledger.sqlite"), workers=1)
    assert [done.name for done in failed] == ["bad"]
    assert "fewer than 1000000 clients" in failed[0].error
    with Ledger(tmp_path / "ledger.sqlite") as book:
        assert [(run.name, run.status) for run in book.runs()] == [("good", "finished")]


def test_a_name_is_not_used_for_two_experiments(tmp_path: Path) -> None:
    work_off([Queued("one", {**BASE, "runtime": "serial"})], Place(tmp_path / "ledger.sqlite"), workers=1)
    changed = Queued("one", {**BASE, "runtime": "serial", "clients": 6, "rounds": 4})
    (failed,) = work_off([changed], Place(tmp_path / "ledger.sqlite"), workers=1)
    assert "another clients" in failed.error


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    line = [
        *(sys.executable, "-m", "undrift", "sweep", "-a", "fedavg,fedprox", "--over", "lr=0.02,0.1", "--seeds", "1"),
        *("--clients", "6", "--rounds", "40", "--workers", "2", "--ledger", str(path)),
    ]
    first = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    while first.poll() is None:  # until a run is finished and another is under way
        if path.exists() and path.stat().st_size:  # an empty file is no ledger yet
            with Ledger(path) as book:
                states = [run.status for run in book.runs() if run.rounds]
            if "finished" in states and "running" in states:
                break
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    with Ledger(path) as book:
        before = {run.name: run for run in book.runs()}
    assert 0 < sum(run.status == "finished" for run in before.values()) < 4
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with Ledger(path) as book:
        after = {run.name: run for run in book.runs()}
        assert len(after) == 4
        assert all(run.status == "finished" and run.rounds == 40 for run in after.values())
        for name, run in before.items():
            assert after[name].created == run.created  # gone on with, not begun again


# --- pilots -----------------------------------------------------------------------------------------------------------


def standing(method: str, *accuracies: float, traffic: float = 1000) -> Standing:
    cost = {"bytes": traffic, "macs": 100.0, "seconds": 1.0}
    return Standing(method, method.title(), 2, 20, 0.2, Spread.of(accuracies), cost)


PILOT = Pilot(BASE, Budget("rounds", 100))


def test_a_clear_winner_is_recommended_with_its_numbers() -> None:
    left = [standing("fedavg", 0.5, 0.52, 0.51), standing("feddyn", 0.8, 0.83, 0.81), standing("moon", 0.6, 0.61, 0.6)]
    take, sentences = conclusion(PILOT, left)
    assert take == "feddyn"
    text = " ".join(sentences)
    assert "After 20 % of the budget of 100 rounds (20 rounds), Feddyn stands at 81.3 %" in text
    assert "over Moon, the next" in text
    assert "Against FedAvg it gains +30.3 points" in text


def test_without_a_clear_winner_the_control_is_recommended_and_the_doubt_said() -> None:
    left = [standing("fedavg", 0.5, 0.6, 0.7), standing("feddyn", 0.7, 0.5, 0.65)]
    take, sentences = conclusion(PILOT, left)
    assert take == "fedavg"
    assert "cannot tell" in " ".join(sentences)


def test_better_than_the_control_but_not_told_apart_recommends_none() -> None:
    left = [
        standing("fedavg", 0.3, 0.3, 0.3),
        standing("feddyn", 0.7, 0.5, 0.6, traffic=2000),
        standing("moon", 0.6, 0.6, 0.65),
    ]
    take, sentences = conclusion(PILOT, left)
    assert take == ""
    assert "Moon has the cheapest rounds" in " ".join(sentences)


def test_chance_drops_no_one_early() -> None:
    ranked = [
        standing("feddyn", 0.7, 0.71, 0.72),
        standing("moon", 0.5, 0.6, 0.7),
        standing("fedprox", 0.45, 0.7, 0.6),  # not told from the last of the better half
        standing("fedtrip", 0.1, 0.11, 0.1),
    ]
    pilot = Pilot(BASE, Budget("rounds", 100), finalists=1)
    assert _survivors(pilot, ranked) == ["feddyn", "moon", "fedprox"]
    ranked[2] = standing("fedavg", 0.2, 0.2, 0.2)  # clearly worse, but the control
    assert _survivors(pilot, ranked) == ["feddyn", "moon", "fedavg"]
    ranked[2] = standing("fedprox", 0.2, 0.2, 0.2)
    assert _survivors(pilot, ranked) == ["feddyn", "moon"]


def test_budgets_buy_rounds() -> None:
    assert Budget.parse("bytes=1e6") == Budget("bytes", 1e6)
    assert Budget("bytes", 1e6).rounds(0.5, 1000) == 500
    for text in ("bytes", "bytes=", "miles=3", "rounds=0", "rounds=nan", "rounds=inf"):
        with pytest.raises(InvalidInput, match="rounds=200"):
            Budget.parse(text)


def test_a_pilot_halves_and_keeps_the_control(tmp_path: Path) -> None:
    methods = ("fedprox", "fedavgm", "scaffold", "fedrep", "moon", "fedtrip")
    pilot = Pilot({**BASE}, Budget("bytes", 5e6), methods, seeds=(1, 2), finalists=2)
    found = run_pilot(pilot, tmp_path / "ledger.sqlite", workers=1)
    places = {s.method: s for s in found.standings}
    assert set(places) == {"fedavg", *methods}
    assert "no global model" in places["fedrep"].error
    last = max(s.rung for s in found.standings if not s.error)
    assert places["fedavg"].rung == last
    assert 2 <= sum(s.rung == last and not s.error for s in found.standings) < 6
    assert min(s.rung for s in found.standings if not s.error) < last
    # The budget is in bytes: SCAFFOLD sends twice as much per round, so the same rung gives it half the rounds.
    rung = places["scaffold"].rung
    others = [s for s in found.standings if s.method in ("fedprox", "moon") and s.rung == rung and not s.error]
    assert all(abs(places["scaffold"].rounds - s.rounds / 2) <= 1 for s in others)
    assert len(found.sentences) >= 2
    again = run_pilot(pilot, tmp_path / "ledger.sqlite", workers=1)
    assert again.sentences == found.sentences
