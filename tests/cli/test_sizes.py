"""Sizes that cannot work are refused at once, in one sentence, before anything takes memory or starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import undrift
from undrift import cli
from undrift.core.errors import InvalidInput
from undrift.models import spec

MLP = ("--model", "mlp")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--workers", "1000000"), "workers = 1000000: it must be at most"),
        ((*MLP, "--hidden", "1000000000000"), "this machine has"),
        ((*MLP, "--hidden", "1e12"), "it must be a whole number"),
        ((*MLP, "--hidden", "9000000000000000000"), "too many weights to count"),
        ((*MLP, "--layers", "100000"), "--layers 100000: it must be a whole number in [1, 1000]"),
        (("--seed", str(2**64)), "and below 2^64"),
        (("--seed", "9" * 400), "and below 2^64"),
        (("--rounds", "1" + "0" * 30), "and below 2^64"),
        (("--lr", "1" + "0" * 400), "it must be a number > 0"),
    ],
)
def test_what_cannot_work_is_refused_at_once(
    flags: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["run", "--rounds", "1", *flags]) == 2
    out, err = capsys.readouterr()
    assert words in " ".join(err.split())
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert out == ""


@pytest.mark.parametrize(
    ("seeds", "words"), [("1..99999999999", "at most 10,000"), ("9" * 30, "write 1..5"), (str(2**64), "2^64 - 1")]
)
def test_seeds_that_cannot_be_run_are_refused(
    seeds: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["compare", "--algorithms", "fedavg,fedprox", "--seeds", seeds, "--rounds", "1"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_the_largest_seed_is_one_of_its_own() -> None:
    largest, zero = (undrift.run("fedavg", rounds=1, clients=3, seed=seed) for seed in (2**64 - 1, 0))
    assert largest.value != zero.value or largest.history.rounds != zero.history.rounds


def test_from_python_a_model_too_large_for_the_machine_is_refused_and_one_that_fits_is_not() -> None:
    with pytest.raises(InvalidInput, match="weights; training them takes at least"):
        spec("mlp", hidden=10**10).factory((1, 8, 8), 10)
    assert sum(p.numel() for p in spec("mlp", hidden=7).factory((1, 8, 8), 10)().parameters()) == 65 * 7 + 8 * 10


def test_a_sweep_with_too_many_workers_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ["--over", "lr=0.1,0.2", "--seeds", "1", "--rounds", "1", "--workers", "1000000"]
    assert cli.run(["sweep", "-a", "fedavg", *flags]) == 2
    assert "workers = 1000000: it must be at most" in " ".join(capsys.readouterr().err.split())
