"""A whole run with sites and a ledger: the bits of the rehearsal, resumed or not, and read by the usual commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.core.figure import OWN_MEAN, Figure
from undrift.deploy.coordinator import Abandoned
from undrift.deploy.journal import Journal, entries
from undrift.deploy.pipe import Direct, Failure
from undrift.deploy.policy import Policy
from undrift.deploy.site import Site
from undrift.experiment.deployed import Installed
from undrift.experiment.description import read_toml
from undrift.experiment.execute import Result, execute
from undrift.experiment.federate import Federated, Witnessed, federate, fingerprint, rehearsal
from undrift.experiment.prepare import prepare_experiment
from undrift.experiment.recorder import InMemory
from undrift.experiment.sitedata import held
from undrift.ledger.store import Ledger

SITES = 3
NAMES = [f"site{number}" for number in range(SITES)]
EXPERIMENT = """
name = "trial"
rounds = 6
{more}
[algorithm]
name = "{method}"
[model]
name = "{model}"
[train]
lr = 0.1
batch_size = 16
[deploy]
deadline = 60
attempts = 2
pause = 0.001
"""


class Trial:
    """Sites with their parts of the digits, a coordinator's ledger, and a pipe that can be cut."""

    def __init__(self, folder: Path, method: str, model: str = "logistic", more: str = "", **part: Any) -> None:
        self.folder = folder
        self.file = folder / "trial.toml"
        self.file.write_text(EXPERIMENT.format(method=method, model=model, more=more))
        self.sites = [self.site(number, **part) for number in range(SITES)]
        self.journal = Journal(folder / "journal.jsonl")
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        self.calls = 0
        self.cut: Callable[[int], bool] = lambda calls: False

    def site(self, number: int, **part: Any) -> Site:
        values = {"data": {"name": "digits"}, "part": {"number": number + 1, "of": SITES, **part}}
        data, _ = held(values, "the data")
        return Site(self.folder / NAMES[number], NAMES[number], data, Policy(experiments=("trial",)), Installed())

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        self.calls += 1
        for name, message in messages.items():
            if self.cut(self.calls):
                yield name, Failure("is cut off")
            else:
                yield from Direct({s.name: s.answer for s in self.sites}).call({name: message}, seconds)

    def play(self, again: str | None = None) -> Result:
        run = None if again is None else self.ledger.run(again)
        federated = Federated.load(self.file) if run is None else Federated.of(run)
        return federate(federated, self, NAMES, self.ledger, self.journal, again=run, patience=1)

    def played(self) -> dict[int, str]:
        lines = [line for line in entries(self.folder / "journal.jsonl") if line["what"] == "round"]
        found = {line["round"]: line["bits"] for line in lines}
        assert all(found[line["round"]] == line["bits"] for line in lines)  # also where a round was played twice
        return found

    def rehearsed(self) -> tuple[dict[int, str], Result]:
        found: list[str] = []
        prepared = prepare_experiment(rehearsal(read_toml(self.file), SITES, str(self.file)))
        witness = Witnessed(InMemory(prepared), lambda entry: found.append(fingerprint(entry)))
        result = execute(prepared, witness)
        return dict(enumerate(found, 1)), result

    def close(self) -> None:
        self.ledger.close()
        self.journal.close()
        for site in self.sites:
            site.close()


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    made: list[Trial] = []

    def make(*words: Any, **more: Any) -> Trial:
        made.append(Trial(tmp_path, *words, **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("method", ["scaffold", "fedtrip", "mime", "fedproto"])
def test_sites_give_the_bits_and_the_figures_of_the_rehearsal(trial: Callable[..., Trial], method: str) -> None:
    here = trial(method, "mlp")
    result = here.play()
    bits, rehearsed = here.rehearsed()
    assert here.played() == bits
    for model in ("global", "personal"):
        figure = Figure(model, OWN_MEAN, "accuracy")
        mine, theirs = ([v for _, f, v in r.history.metrics if f == figure] for r in (result, rehearsed))
        assert mine == theirs
    assert result.run is not None
    assert result.run.status == "finished"


def test_a_method_with_public_data_takes_them_from_the_coordinator(trial: Callable[..., Trial]) -> None:
    here = trial("pfedmo", "mlp", 'public = 0.1\nseed = 1\ndata = "digits"', public=0.1)
    here.play()
    assert here.played() == here.rehearsed()[0]


def test_without_public_data_such_a_method_is_refused(trial: Callable[..., Trial]) -> None:
    with pytest.raises(InvalidInput, match="needs public data at the coordinator"):
        trial("pfedmo").play()


def test_a_run_that_stopped_goes_on_with_the_same_bits(trial: Callable[..., Trial]) -> None:
    here = trial("scaffold")
    here.cut = lambda calls: calls > 7
    with pytest.raises(Abandoned, match="is cut off"):
        here.play()
    assert 0 < len(here.played()) < 6
    here.cut = lambda calls: False
    here.play(again="trial")
    assert here.played() == here.rehearsed()[0]
    assert here.ledger.run("trial").rounds == 6


def test_a_site_that_comes_back_with_other_data_is_not_let_in(trial: Callable[..., Trial]) -> None:
    here = trial("scaffold")
    here.cut = lambda calls: calls > 7
    with pytest.raises(Abandoned):
        here.play()
    here.cut = lambda calls: False
    data = here.sites[1].data
    here.sites[1].data = replace(data, x=torch.cat([data.x, data.x[:1]]), y=torch.cat([data.y, data.y[:1]]))
    with pytest.raises(InvalidInput, match="site1 has other data than it began with"):
        here.play(again="trial")


def test_a_site_that_refuses_is_named_at_once_and_nothing_is_recorded(trial: Callable[..., Trial]) -> None:
    here = trial("scaffold")
    here.sites[2].policy = Policy(experiments="any", largest_rounds=5)
    with pytest.raises(InvalidInput, match="site2 allows at most 5 rounds, and this experiment has 6"):
        here.play()
    assert here.ledger.runs() == []


def test_the_usual_commands_read_the_run(
    trial: Callable[..., Trial], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = trial("fedavg")
    here.play()
    here.ledger.flush()
    ledger = ["--ledger", str(tmp_path / "ledger.sqlite")]
    assert command(["show", "trial", *ledger]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "sites" in shown
    assert "was the last in 6 of 6 rounds (median: training" in shown  # the pipe calls one site after the other
    assert command(["report", "trial", *ledger, "--output", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"worked":"seconds worked at site2"' in page
    assert "site2 was the last in 6 of 6 rounds" in page
    assert command(["resume", "trial", "--rounds", "8", *ledger]) == 2
    assert "undrift deploy run --resume trial" in " ".join(capsys.readouterr().err.split())


def test_the_command_rehearses_what_the_sites_do(trial: Callable[..., Trial], tmp_path: Path) -> None:
    here = trial("scaffold", "mlp")
    deployed = here.play()
    book = tmp_path / "rehearsal.sqlite"
    assert command(["run", str(here.file), "--sites", str(SITES), "--ledger", str(book), "--quiet"]) == 0
    assert deployed.run is not None
    here.ledger.flush()
    with Ledger(book) as rehearsed:
        mine, theirs = here.ledger.snapshot(deployed.run), rehearsed.snapshot(rehearsed.run("trial"))
    assert mine is not None
    assert theirs is not None
    assert mine.round == theirs.round == 6
    for here_, there in ((mine.server, theirs.server), (mine.buffers, theirs.buffers)):
        assert here_.keys() == there.keys()
        assert all(torch.equal(here_[key], there[key]) for key in here_)


@pytest.mark.parametrize("flags", [["--clients", "7"], ["--runtime", "threads"]])
def test_a_rehearsal_of_something_else_is_refused(
    trial: Callable[..., Trial], tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    book = tmp_path / "rehearsal.sqlite"
    words = ["run", str(trial("fedavg").file), "--sites", "3", *flags, "--ledger", str(book)]
    assert command(words) == 2
    assert "is not what 3 sites do" in " ".join(capsys.readouterr().err.split())
    assert not book.exists()
