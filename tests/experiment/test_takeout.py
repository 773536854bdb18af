"""A trained model can be had out of a run, and it is the one that was evaluated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import undrift
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.experiment.takeout import module_of
from undrift.ledger.store import Ledger

SMALL = ["--clients", "4", "--rounds", "2", "--steps", "3", "--quiet"]


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "ledger.sqlite"


def accuracy(module: torch.nn.Module) -> float:
    data = undrift.data.load("digits")
    with torch.no_grad():
        return float((module.eval()(data.x_test).argmax(1) == data.y_test).float().mean())


def test_a_result_saves_what_it_was_judged_by(tmp_path: Path) -> None:
    result = undrift.run("fedavg", clients=4, rounds=2, training=undrift.Training(steps=3))
    assert result.module is not None
    path = result.save(tmp_path / "deep" / "model.safetensors")
    result.module.load_state_dict({name: torch.zeros_like(t) for name, t in result.module.state_dict().items()})
    result.module.load_state_dict(load_file(path))
    assert accuracy(result.module) == pytest.approx(result.accuracy)
    with safe_open(path, "pt") as file:
        assert file.metadata()["rounds"] == "2"
    again = torch.load(result.save(tmp_path / "model.pt"), weights_only=True)
    assert again.keys() == result.module.state_dict().keys()


def test_the_command_writes_model_and_card(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["run", "-a", "fedtrip", "--name", "mine", *SMALL]) == 0
    assert command(["export-model", "mine"]) == 0
    with Ledger(ledger) as book:
        run = book.run("mine")
        taken = module_of(book, run)
        assert accuracy(taken.module) == pytest.approx(taken.history.final)
    card = Path("mine.md").read_text(encoding="utf-8")
    assert json.loads(card.split("```json")[1].split("```")[0])["algorithm"]["name"] == "fedtrip"
    assert load_file("mine.safetensors").keys() == taken.module.state_dict().keys()
    assert command(["export-model", "mine"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_personal_models(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["run", "-a", "fedrep", "--name", "own", *SMALL]) == 0
    assert command(["export-model", "own"]) == 2
    assert "FedRep has no global model" in capsys.readouterr().err
    for client in ("0", "1"):
        assert command(["export-model", "own", "--client", client, "-o", f"{client}.safetensors"]) == 0
    one, other = load_file("0.safetensors"), load_file("1.safetensors")
    same = [name for name in one if torch.equal(one[name], other[name])]
    assert same, "the representation is shared"
    assert len(same) < len(one), "the heads are not"
    assert command(["export-model", "own", "--client", "17"]) == 2


def test_what_cannot_be_exported(ledger: Path) -> None:
    result = undrift.run("local", clients=4, rounds=1, training=undrift.Training(steps=1))
    with pytest.raises(InvalidInput, match="no global model"):
        result.save("x.safetensors")
    result = undrift.run("fedavg", clients=4, rounds=1, training=undrift.Training(steps=1))
    with pytest.raises(InvalidInput, match="must end in"):
        result.save("x.docx")
    Path("file").touch()
    with pytest.raises(InvalidInput, match="cannot be written"):
        result.save("file/x.pt")
    assert not list(Path().glob(".*.part"))
