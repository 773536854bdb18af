"""Pictures of anything that runs recorded: figures, the method's notes, drift; against any cost."""

from __future__ import annotations

from pathlib import Path

import pytest

import undrift
from undrift.analysis.series import names, series
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.ledger.history import History
from undrift.ledger.store import Ledger

RUNS = ["adm1", "adm2", "avg"]


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedADM with two seeds and FedAvg with one, three rounds each."""
    path = tmp_path_factory.mktemp("series") / "ledger.sqlite"
    for seed in (1, 2):
        undrift.run("fedadm", ledger=path, name=f"adm{seed}", clients=4, rounds=3, seed=seed, eval_training=True)
    undrift.run("fedavg", ledger=path, name="avg", clients=4, rounds=3, seed=1)
    return path


def test_everything_that_was_recorded_has_a_name_and_its_numbers(book: Path) -> None:
    with Ledger(book) as ledger:
        adm, avg = (History.of(ledger, ledger.run(name)) for name in ("adm1", "avg"))
    assert {"accuracy", "loss", "loss on training", "tau", "mu", "B"} <= set(names([adm]))
    assert any(name.startswith("drift ") for name in names([avg]))
    assert series(adm, "loss") == adm.curve(undrift.core.figure.Figure(metric="loss"))
    assert series(adm, "tau") == ([1, 2, 3], [row.notes["tau"] for row in adm.rounds])
    with pytest.raises(InvalidInput, match="unknown series 'tau'"):
        series(avg, "tau")


@pytest.mark.parametrize("axis", ["rounds", "bytes", "macs", "seconds"])
@pytest.mark.parametrize("name", ["tau", "loss on training", "loss"])
def test_a_series_is_drawn_against_any_cost(book: Path, tmp_path: Path, name: str, axis: str) -> None:
    out = tmp_path / "picture.svg"
    assert command(["plot", "series", *RUNS, "--of", name, "--axis", axis, "--ledger", str(book), "-o", str(out)]) == 0
    text = out.read_text()
    assert name in text
    assert "FedADM" in text
    assert ("FedAvg" in text) == (name == "loss")  # it has neither tau nor a training loss


def test_a_series_that_nobody_recorded_is_refused(book: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["plot", "series", *RUNS, "--of", "tua", "--ledger", str(book), "-o", "x.svg"]) == 2
    assert "did you mean 'tau'" in capsys.readouterr().err
    assert not Path("x.svg").exists()
