"""A limit for every method: runs end where one more round would use more, and go on counting where they are resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

import undrift
from undrift.algorithms import create
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.core.training import Training
from undrift.experiment.limit import TIME, Limit, use

SMALL = {"clients": 4, "participate": 2, "seed": 3, "partition": "iid", "runtime": "serial"}
ONE = Training(steps=1)
FEDADM = create("fedadm", budget=(3.0,))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("bites=3", "did you mean 'bytes'"),
        ("bytes", "write bytes= and a positive number"),
        ("time=-1", "write time= and a positive number"),
        ("time=nan", "write time= and a positive number"),
    ],
)
def test_bad_limits_are_refused_before_the_first_round(text: str, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        undrift.run("fedavg", rounds=1, limit=text, **SMALL)


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "central"])
def test_a_run_ends_before_it_uses_more_bytes_or_macs(method: str) -> None:
    free = undrift.run(method, rounds=3, **SMALL).history
    for name in ("bytes", "macs"):
        a_round = use(name, free.rounds[0])
        if not a_round:  # whoever has all data sends nothing
            continue
        limited = undrift.run(method, rounds=50, eval_every=4, limit=f"{name}={5.5 * a_round}", **SMALL).history
        used = Limit.parse(f"{name}=1").used(limited.rounds)[name]
        assert 4 <= len(limited.rounds) < 50
        assert used <= 5.5 * a_round < used + 2 * a_round
        assert limited.curve()[0][-1] == len(limited.rounds)  # the end is evaluated
        assert limited.rounds[0].bytes_up == free.rounds[0].bytes_up


def test_of_several_resources_the_scarcest_ends_the_run() -> None:
    a_round = undrift.run("fedavg", rounds=1, **SMALL).history.rounds[0]
    limit = f"bytes={3.5 * use('bytes', a_round)}, macs={100 * a_round.macs}, seconds=1e6"
    assert len(undrift.run("fedavg", rounds=20, limit=limit, **SMALL).history.rounds) == 3


def test_simulated_time_is_the_same_for_methods_that_take_the_same_steps() -> None:
    runs = {m: undrift.run(m, rounds=100, limit="time=3", **SMALL).history for m in ("fedavg", "fedprox")}
    times = {m: [row.notes[TIME] for row in history.rounds] for m, history in runs.items()}
    assert times["fedavg"] == times["fedprox"]
    assert len(set(times["fedavg"])) == len(times["fedavg"])  # drawn anew every round
    assert sum(times["fedavg"]) <= 3 < sum(times["fedavg"]) + 2 * max(times["fedavg"])
    few = undrift.run("fedavg", rounds=100, limit="time=3", training=ONE, **SMALL).history
    assert len(few.rounds) > len(runs["fedavg"].rounds)  # fewer steps, more rounds


def test_fedadm_ends_by_its_own_budget_within_the_same_limit() -> None:
    own = undrift.run(FEDADM, rounds=500, training=ONE, eval_every=500, **SMALL).history
    both = undrift.run(FEDADM, rounds=500, training=ONE, eval_every=500, limit="time=4", **SMALL).history
    assert len(own.rounds) == len(both.rounds)
    assert 2.5 < Limit.parse("time=4").used(both.rounds)["time"] < 3.3


def test_what_was_used_is_remembered_over_a_pause_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = str(tmp_path / "ledger.sqlite")
    flags = ["--clients", "4", "--participate", "2", "--seed", "3", "--ledger", book, "-q", "--limit", "time=3"]
    assert command(["run", "--name", "whole", "--rounds", "100", *flags]) == 0
    assert command(["run", "--name", "paused", "--rounds", "2", *flags]) == 0
    assert command(["resume", "paused", "--rounds", "100", "--ledger", book, "-q"]) == 0
    capsys.readouterr()
    shown = []
    for name in ("whole", "paused"):
        assert command(["show", name, "--ledger", book]) == 0
        shown.append([line for line in capsys.readouterr().out.splitlines() if "limit" in line or " rounds " in line])
    assert shown[0] == shown[1]
    assert "of 3 s" in "".join(shown[0])
