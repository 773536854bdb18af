"""The model at the best figure on the validation data is what a run gives, also after it was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import undrift
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.core.figure import VALIDATION, Figure
from undrift.ledger.store import Ledger

# So large a rate that the figure goes up and down: the best round is not the last.
OPTIONS: dict[str, Any] = {"model": "logistic", "clients": 5, "rounds": 8, "validation": 0.1, "keep": "best"}
TRAINING: dict[str, Any] = {"lr": 8.0, "batch_size": 4, "epochs": 1}


def run(rounds: int = 8, **more: Any) -> undrift.Result:
    return undrift.run(training=undrift.Training(**TRAINING), **OPTIONS | {"rounds": rounds} | more)


def flat(result: undrift.Result) -> torch.Tensor:
    assert result.module is not None
    return torch.cat([p.detach().reshape(-1) for p in result.module.parameters()])


def test_the_best_model_is_given(tmp_path: Path) -> None:
    for ledger in (None, tmp_path / "runs.db"):
        found = run(ledger=ledger)
        at, values = found.history.curve(Figure(data=VALIDATION))
        best = at[values.index(max(values))]
        assert found.round == best == found.history.best_round
        assert best < 8
        alone = run(rounds=best, keep="last")  # a run that ends there
        assert torch.equal(flat(found), flat(alone))
        assert not torch.equal(flat(found), flat(run(keep="last")))


def test_the_same_after_a_kill(tmp_path: Path) -> None:
    whole = run(ledger=tmp_path / "whole.db", name="one")
    for at in (2, 5, 7):
        ledger = tmp_path / f"killed{at}.db"
        program = f"""
import os, signal, undrift
def watch(progress):
    if progress.round == {at}:
        os.kill(os.getpid(), signal.SIGKILL)
undrift.run(training=undrift.Training(**{TRAINING}), **{OPTIONS}, ledger={str(ledger)!r}, name="one", watch=watch)
"""
        done = subprocess.run([sys.executable, "-c", program], check=False)
        assert done.returncode == -signal.SIGKILL
        again = run(ledger=ledger, name="one", resume=True)
        assert torch.equal(flat(again), flat(whole))
        assert again.round == whole.round


def test_the_command_takes_it_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger, file = tmp_path / "runs.db", tmp_path / "model.safetensors"
    words = ["run", "--model", "logistic", "--clients", "5", "--rounds", "8", "--validation", "0.1", "--keep", "best"]
    words += ["--lr", "8", "--batch-size", "4", "--epochs", "1", "--runtime", "serial", "--name", "one"]
    assert command([*words, "--ledger", str(ledger)]) == 0
    assert command(["export-model", "one", "--ledger", str(ledger), "-o", str(file)]) == 0, capsys.readouterr().err
    found = run()
    assert found.module is not None
    written = load_file(file)
    assert all(torch.equal(written[name], value) for name, value in found.module.state_dict().items())
    assert f"round {found.round}, the best on the validation data" in file.with_suffix(".md").read_text()


def test_an_unkept_model_costs_nothing(tmp_path: Path) -> None:
    run(keep="last", ledger=tmp_path / "runs.db", name="one")
    with Ledger(tmp_path / "runs.db") as book:
        assert book.snapshot(book.run("one"), best=True) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"validation": None}, "keep = 'best': it goes by validation data"),
        ({"algorithm": "local"}, "has no global model"),
    ],
)
def test_what_cannot_be_kept(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        run(**options)
