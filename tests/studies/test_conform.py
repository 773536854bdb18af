"""What ``undrift conform`` says of our own methods, and of those that break a promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import undrift
from undrift import Averaging, Broadcast, Local, Nothing, Trained
from undrift.algorithms import algorithms
from undrift.cli import run as command
from undrift.studies.conform import QUESTIONS, conform

calls = 0


def failures(kind: type) -> set[str]:
    answers = list(conform(kind))
    assert [answer.question for answer in answers] == list(QUESTIONS)
    return {answer.question for answer in answers if not answer.holds}


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mime", "fedrep", "pfedmo"])
def test_our_own(name: str) -> None:
    assert failures(algorithms()[name]) == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(algorithms()))
def test_all_our_own(name: str) -> None:
    assert failures(algorithms()[name]) == set()


class Ascending(Averaging[Nothing]):
    """Goes the wrong way."""

    title: ClassVar[str] = "Ascending"

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        return Trained(2 * down.x - local.descend(local.grad, down.x)), me


class Careless(Averaging[Nothing]):
    """Writes into what it received."""

    title: ClassVar[str] = "Careless"

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        x = local.descend(local.grad, down.x)
        down.x.mul_(0.5)
        return Trained(x), me


class Forgetful(Averaging[Nothing]):
    """Counts its calls beside the state, so that a run depends on what ran before it."""

    title: ClassVar[str] = "Forgetful"

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        global calls
        calls += 1
        return Trained(local.descend(local.grad, down.x) + 1e-3 * calls * torch.ones_like(down.x)), me


class Failing(Averaging[Nothing]):
    title: ClassVar[str] = "Failing"

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        raise ArithmeticError("not today")


def test_one_that_does_not_learn() -> None:
    assert failures(Ascending) == {"the loss falls"}


def test_one_that_writes_into_its_message() -> None:
    assert "a client's work leaves its message as it was" in failures(Careless)


def test_one_with_a_memory_of_its_own() -> None:
    assert {"the same seed gives the same bits", "a resumed run ends with the same bits"} <= failures(Forgetful)


def test_one_that_fails_says_where() -> None:
    answer = next(iter(conform(Failing)))
    assert not answer.holds
    assert "ArithmeticError: not today" in answer.remark
    assert "client_update" in answer.details


def test_a_new_method_runs_and_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(["new", "method", "fedleash"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedleash.md", "fedleash.py", "test_fedleash.py"]
    assert command(["conform", "./fedleash.py"]) == 0
    assert "11 of 11 hold" in capsys.readouterr().out
    words = ["run", "--algorithm", "./fedleash.py", "--radius", "0.5", "--rounds", "2", "--quiet"]
    subprocess.run([sys.executable, "-m", "undrift", *words], check=True, timeout=100)
    assert command(["new", "method", "fedleash"]) == 2
    assert command(["new", "method", "fedavg"]) == 2
    assert command(["new", "method", "No Good"]) == 2
    method = algorithms()[str(tmp_path / "fedleash.py")]
    wide = undrift.run(method(radius=1e6), rounds=3)
    assert wide.accuracy == pytest.approx(undrift.run("fedavg", rounds=3).accuracy, abs=0.01)
