"""Code of somebody else: a method, a model, a data set and a partition from a file, a package and an entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import torch
from torch import Tensor

import undrift
from undrift import plugins
from undrift.algorithms import algorithms, create
from undrift.cli import flags
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.core.reduce import REDUCERS
from undrift.core.settings import positive
from undrift.core.stages import STAGES, Uploads
from undrift.data import PARTITIONERS, SOURCES, load
from undrift.deploy.protocol import Refusal
from undrift.deploy.site import Site
from undrift.experiment import prepare
from undrift.experiment.description import Experiment, parse_method
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.models import MODELS, spec

METHOD = '''
from typing import Annotated

from undrift import Averaging, Local
from undrift.core.algorithm import Broadcast, Trained
from undrift.core.records import Nothing
from undrift.core.settings import positive


class FedLeash(Averaging[Nothing]):
    """FedAvg with every step pulled back towards the received model."""

    leash: Annotated[float, "how strongly", positive()] = 0.1

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        w = down.x
        return Trained(local.descend(lambda x, b: local.grad(x, b) + self.leash * (x - w), w)), me
'''
OTHERS = """
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import nn

from undrift.data import Dataset, Partitioner, Source
from undrift.models import ModelSpec


class Moons(Source):
    samples: Annotated[int, "how many"] = 60

    def load(self, root: Path) -> Dataset:
        draw = np.random.default_rng(0)
        return Dataset.from_arrays(draw.normal(size=(self.samples, 3)), np.arange(self.samples) % 2, name="moons")


class Turns(Partitioner):
    def assign(self, p):
        return np.arange(p.samples) % p.clients, np.arange(p.samples)


class Thin(ModelSpec):
    width: Annotated[int, "neurons"] = 4

    def build(self, shape, classes):
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), self.width), nn.Linear(self.width, classes))
"""

PASSAGE = '''
from typing import Annotated

import torch

from undrift import Reducer, Stage, at_least


class Rounded(Stage):
    """Every number of an update is rounded to a grid: what a quantised upload would hold."""

    carries = ("longest",)

    grid: Annotated[float, "distance of the grid's lines", at_least(0)] = 0.25

    def changed(self, updates, lengths):
        rounded = {name: (rows / self.grid).round() * self.grid for name, rows in updates.items()}
        return rounded, torch.ones(len(lengths), dtype=torch.bool), {"length": lengths}

    def learnt(self, carried, lengths, notes):
        return {"longest": max([carried.get("longest", 0.0), *lengths])}


class Median(Reducer):
    """The median of every coordinate."""

    def combined(self, rows, weights):
        return rows.median(0).values
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "fedleash.py").write_text(METHOD)
    (tmp_path / "others.py").write_text(OTHERS)
    (tmp_path / "passage.py").write_text(PASSAGE)
    monkeypatch.chdir(tmp_path)
    registries = (algorithms(), SOURCES, PARTITIONERS, MODELS, STAGES, REDUCERS)
    known = [dict.copy(registry) for registry in registries]
    yield tmp_path
    for registry, before in zip(registries, known, strict=True):
        for name in set(dict.keys(registry)) - set(before):
            dict.pop(registry, name)
    for name in [n for n in sys.modules if n.startswith(plugins.PREFIX)]:
        del sys.modules[name]


def typed(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> int:
    """A command as it is typed: which settings are flags is seen from the words themselves."""
    monkeypatch.setattr(sys, "argv", ["undrift", *words])
    flags._options.cache_clear()
    try:
        return command(words)
    finally:
        flags._options.cache_clear()


SETTING = ["--data", "digits", "--model", "mlp", "--clients", "5", "--rounds", "2", "--ledger", "runs.db"]


class TestFiles:
    def test_a_method_by_its_file(self, folder: Path) -> None:
        assert create("./fedleash.py", leash=0.3).values()["leash"] == 0.3
        ours = undrift.run(create("fedprox", mu=0.3), clients=4, rounds=2)
        theirs = undrift.run(create("./fedleash.py", leash=0.3), clients=4, rounds=2)
        assert ours.value == theirs.value

    def test_settings_are_flags_and_a_run_goes_on(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        words = ["run", "--algorithm", "./fedleash.py", "--leash", "0.5", "--name", "one", *SETTING]
        assert typed(monkeypatch, words) == 0, capsys.readouterr().err
        with Ledger("runs.db") as book:
            stored = book.run("one").experiment["algorithm"]
        assert stored == {"name": str(folder / "fedleash.py"), "weights": "samples", "leash": 0.5}
        assert command(["resume", "one", "--ledger", "runs.db", "--rounds", "3"]) == 0, capsys.readouterr().err
        assert command(["show", "one", "--ledger", "runs.db"]) == 0

    def test_a_run_does_not_go_on_with_a_file_that_has_changed(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert command(["run", "--algorithm", "./fedleash.py", "--name", "one", *SETTING]) == 0
        (folder / "fedleash.py").write_text(METHOD.replace("self.leash *", "2 * self.leash *"))
        for name in [n for n in sys.modules if n.startswith(plugins.PREFIX)]:
            del sys.modules[name]
        assert command(["resume", "one", "--ledger", "runs.db", "--rounds", "3"]) == 2
        assert "the method's file" in " ".join(capsys.readouterr().err.split())

    def test_a_record_that_names_a_file_is_no_reason_to_run_it(self, folder: Path) -> None:
        (folder / "trap.py").write_text("raise SystemExit('run')")
        assert algorithms().get("./trap.py") is None

    def test_data_partition_and_model(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["run", "--data", "./others.py", "--partition", "./others.py:Turns", "--model", "others.py:Thin"]
        more = ["--samples", "80", "--width", "7", "--clients", "4", "--rounds", "1", "--ledger", "runs.db"]
        assert command([*words, *more, "--name", "all"]) == 0, capsys.readouterr().err
        with Ledger("runs.db") as book:
            run = book.run("all")
        assert run.facts["samples"] == [16, 16, 16]
        assert run.facts["parameters"] == 3 * 7 + 7 + 7 * 2 + 2
        assert Experiment.build(run.experiment).values() == run.experiment
        assert len(load("./others.py", samples=20)) == 16
        assert spec("./others.py").values() == {"width": 4}

    def test_a_comparison(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["compare", "-a", "fedprox:mu=0.3,./fedleash.py:leash=0.3", "--seeds", "1", *SETTING]
        assert command(words) == 0, capsys.readouterr().err
        with Ledger("runs.db") as book:
            values = [History.of(book, run).final for run in book.runs()]
        assert len(values) == 2
        assert values[0] == values[1]

    def test_worker_processes_find_the_file(self, folder: Path) -> None:
        options = {"clients": 4, "rounds": 2}
        here = undrift.run("./fedleash.py", **options)  # type: ignore[arg-type]
        there = undrift.run("./fedleash.py", runtime="processes", workers=2, **options)  # type: ignore[arg-type]
        assert here.value == there.value

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("./nothing.py", None, "there is no file ./nothing.py"),
            ("./empty.py", "x = 1", "defines no algorithm: a class that inherits from Algorithm"),
            ("./two.py", METHOD + METHOD.replace("FedLeash", "FedRein"), "write ./two.py:FedLeash or ./two.py:FedRein"),
            ("./odd.py", "x = 1\ndef f(:\n", r"cannot be imported \(line 2\): SyntaxError"),
            ("./broken.py", "x = 1\n\ny = x / 0\n", r"cannot be imported \(line 3\): ZeroDivisionError"),
            ("./absent.py", "import no_such_module_anywhere", "there is no module no_such_module_anywhere"),
            ("./fedleash.py:FedLesh", None, "did you mean"),
            ("./fedleash.py:positive", None, "is no algorithm: it must inherit from Algorithm"),
            ("no_such_package_anywhere.methods:X", None, "there is no module no_such_package_anywhere"),
        ],
    )
    def test_what_is_wrong_is_one_sentence(
        self, folder: Path, name: str, text: str | None, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if text is not None:
            (folder / name).write_text(text)
        with pytest.raises(InvalidInput, match=words):
            create(name)
        assert command(["run", "--algorithm", name, *SETTING]) == 2
        assert "Traceback" not in capsys.readouterr().err
        assert not (folder / "runs.db").exists()


class TestUploads:
    """Stages and reducers of somebody else's."""

    WORDS: ClassVar[list[str]] = ["--stages", "./passage.py:grid=0.01", "--reducer", "./passage.py"]

    def test_on_the_command_line(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert command(["run", "--name", "one", *self.WORDS, *SETTING]) == 0, capsys.readouterr().err
        with Ledger("runs.db") as book:
            run = book.run("one")
            notes = [row.notes for row in book.rounds(run)]
        file = folder / "passage.py"
        assert run.experiment["uploads"] == {"guard": 1000.0, "stages": f"{file}:grid=0.01", "reducer": str(file)}
        assert [sorted(noted) for noted in notes] == [["length", "longest"]] * 2
        assert notes[0]["longest"] <= notes[1]["longest"]
        experiment = Experiment.build(run.experiment)
        assert experiment.values() == run.experiment
        (folder / "again.toml").write_text(experiment.to_toml())
        assert Experiment.load("again.toml").values() == run.experiment

    def test_a_run_goes_on_with_what_a_stage_carries(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        more = [*self.WORDS, *SETTING]
        assert command(["run", "--name", "whole", *more, "--rounds", "4"]) == 0, capsys.readouterr().err
        assert command(["run", "--name", "half", *more]) == 0
        assert command(["resume", "half", "--ledger", "runs.db", "--rounds", "4"]) == 0, capsys.readouterr().err
        with Ledger("runs.db") as book:
            whole, half = book.run("whole"), book.run("half")
            assert [r.notes for r in book.rounds(whole)] == [r.notes for r in book.rounds(half)]
            ends = [book.snapshot(run) for run in (whole, half)]
        assert ends[0] is not None
        assert ends[1] is not None
        assert all(torch.equal(ends[1].server[name], value) for name, value in ends[0].server.items())
        (folder / "passage.py").write_text(PASSAGE.replace("0.25", "0.5"))
        for name in [n for n in sys.modules if n.startswith(plugins.PREFIX)]:
            del sys.modules[name]
        assert command(["resume", "half", "--ledger", "runs.db", "--rounds", "5"]) == 2
        assert "the files of stages and reducer differ" in " ".join(capsys.readouterr().err.split())

    def test_what_they_do(self, folder: Path) -> None:
        options: dict[str, Any] = {"clients": 5, "rounds": 1, "model": "logistic", "uploads": Uploads(guard=None)}
        plain = undrift.run("fedavg", **options)
        coarse = undrift.run("fedavg", **options | {"uploads": Uploads(stages="./passage.py:grid=1000", guard=None)})
        start, _ = prepare.prepare_experiment(Experiment.build({"model": "logistic", "clients": 5})).federation.start()
        assert torch.equal(flat(coarse), start)  # no update reaches half a line of such a grid
        assert not torch.equal(flat(plain), start)
        middle = undrift.run("fedavg", **options | {"uploads": Uploads(reducer="./passage.py")})
        assert not torch.equal(flat(plain), flat(middle))

    @pytest.mark.parametrize("runtime", ["threads", "processes", "batched"])
    def test_in_every_runtime(self, folder: Path, runtime: str) -> None:
        uploads = Uploads(stages="./passage.py:grid=0.001", reducer="./passage.py")
        options: dict[str, Any] = {"clients": 5, "rounds": 2, "model": "logistic", "uploads": uploads}
        here, there = undrift.run("fedavg", **options), undrift.run("fedavg", runtime=runtime, **options)
        near = 1.1e-3 if runtime == "batched" else 0  # a number between two lines may go either way
        torch.testing.assert_close(flat(here), flat(there), rtol=0, atol=near)

    def test_objects_of_one_s_own_classes(self, folder: Path) -> None:
        class Halved(undrift.Stage):
            by: Annotated[float, "how much is left", positive()] = 0.5

            def changed(self, updates: Any, lengths: Tensor) -> Any:
                halved = {name: self.by * rows for name, rows in updates.items()}
                return halved, torch.ones(len(lengths), dtype=torch.bool), {}

        uploads = Uploads.of(Halved(by=0.25), reducer=undrift.Uploads().one)
        assert uploads.values() == {"clip": None, "guard": 1000.0, "stages": "halved:by=0.25", "reducer": "mean"}
        assert uploads == Uploads(stages="halved:by=0.25")
        options: dict[str, Any] = {"clients": 3, "rounds": 1, "model": "logistic"}
        plain, quarter = undrift.run("fedavg", **options), undrift.run("fedavg", uploads=uploads, **options)
        start, _ = prepare.prepare_experiment(Experiment.build({"model": "logistic", "clients": 3})).federation.start()
        torch.testing.assert_close(flat(quarter) - start, 0.25 * (flat(plain) - start), rtol=1e-4, atol=1e-6)

        class Clip(undrift.Stage):
            pass

        with pytest.raises(InvalidInput, match="a stage is called 'clip' already"):
            Uploads.of(Clip())

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"stages": "clap"}, "unknown stage 'clap'.*did you mean 'clip'"),
            ({"stages": "./passage.py:grit=1"}, "did you mean 'grid'"),
            ({"stages": "./passage.py:grid"}, "no name 'grid'|unknown name 'grid'"),
            ({"stages": "./passage.py:grid=-1"}, "grid = -1"),
            ({"stages": "clip"}, "Clip needs bound"),
            ({"stages": "./none.py"}, "there is no file ./none.py"),
            ({"reducer": "./fedleash.py"}, "defines no reducer: a class that inherits from Reducer"),
            ({"reducer": "mean,mean"}, "it must be one"),
            ({"reducer": ""}, "it must be one"),
        ],
    )
    def test_what_is_wrong_is_one_sentence(
        self, folder: Path, given: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(InvalidInput, match=words):
            Uploads(**given)  # type: ignore[arg-type]
        flags = [word for name, value in given.items() for word in (f"--{name}", value)]
        assert command(["run", *flags, *SETTING]) == 2
        assert "Traceback" not in capsys.readouterr().err
        assert not (folder / "runs.db").exists()

    def test_a_reducer_that_makes_something_else(self, folder: Path) -> None:
        (folder / "odd.py").write_text(PASSAGE.replace("rows.median(0).values", "rows"))
        with pytest.raises(InvalidInput, match=r"reducer Median: of 4 rows of shape .* it must make one of that shape"):
            undrift.run("fedavg", clients=4, rounds=1, uploads=Uploads(reducer="./odd.py"))

    @pytest.mark.parametrize("section", [{"stages": "./trap.py"}, {"reducer": "trap:Median"}])
    def test_a_site_follows_no_path_that_a_coordinator_names(self, folder: Path, section: dict[str, str]) -> None:
        (folder / "trap.py").write_text("raise SystemExit('run')")
        with pytest.raises(Refusal, match="by their installed names alone"):
            Site._stages({"uploads": section})
        assert len(Site._stages({"uploads": {"stages": "clip:bound=3"}})) == 1

    def test_there_must_be_something_to_combine(self, folder: Path) -> None:
        with pytest.raises(InvalidInput, match="uploads no mean: there is nothing for the reducer to combine"):
            undrift.run("local", clients=4, rounds=1, uploads=Uploads(reducer="./passage.py"))


def flat(result: undrift.Result) -> Tensor:
    assert result.module is not None
    return torch.cat([p.detach().reshape(-1) for p in result.module.parameters()])


@pytest.mark.parametrize(
    ("text", "name", "settings"),
    [
        ("fedprox:mu=0.3", "fedprox", {"mu": 0.3}),
        ("./fedleash.py", "./fedleash.py", {}),
        ("./fedleash.py:leash=2", "./fedleash.py", {"leash": 2.0}),
        ("./fedleash.py:FedLeash:leash=2", "./fedleash.py:FedLeash", {"leash": 2.0}),
        ("undrift.algorithms.fedprox:FedProx:mu=0.3", "undrift.algorithms.fedprox:FedProx", {"mu": 0.3}),
    ],
)
def test_references_with_settings(folder: Path, text: str, name: str, settings: dict[str, object]) -> None:
    assert parse_method(text) == {"name": name, **settings}


PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "stranger"
version = "1.0"

[project.entry-points]
"undrift.algorithms" = { leash = "stranger:FedLeash" }
"undrift.data" = { moons = "stranger:Moons" }
"undrift.partitions" = { turns = "stranger:Turns" }
"undrift.models" = { thin = "stranger:Thin", broken = "stranger:Nothing1" }
"undrift.stages" = { rounded = "stranger:Rounded" }
"undrift.reducers" = { median = "stranger:Median" }

[tool.hatch.build.targets.wheel]
include = ["stranger.py"]
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which a stranger's package was installed, from its wheel."""
    place = tmp_path_factory.mktemp("stranger")
    source, packages = place / "source", place / "packages"
    source.mkdir()
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "stranger.py").write_text(METHOD + OTHERS + PASSAGE)
    build = ["hatchling", "build", "-t", "wheel", "-d", str(place)]
    install = ["pip", "install", "-q", "--no-deps", "--no-index", "--find-links", str(place)]
    for words in (build, [*install, "--target", str(packages), "stranger"]):
        done = subprocess.run([sys.executable, "-m", *words], cwd=source, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return packages


@pytest.mark.parametrize("runtime", ["serial", "processes"])
def test_an_installed_package(installed: Path, tmp_path: Path, runtime: str) -> None:
    """A package with entry points, and a new process that looks for them: by name alone, in workers too."""
    words = ["run", "-a", "leash", "--data", "moons", "--partition", "turns", "--model", "thin", "--leash", "0.2"]
    words += ["--stages", "rounded:grid=0.001", "--reducer", "median", "--runtime", runtime, "--workers", "2"]
    words += ["--clients", "3", "--rounds", "2", "--ledger", "runs.db", "--name", "one"]
    done = subprocess.run(
        [sys.executable, "-m", "undrift", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{Path(undrift.__file__).parents[1]}:{installed}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "model 'broken' of stranger cannot be loaded" in " ".join((done.stdout + done.stderr).split())
    with Ledger(tmp_path / "runs.db") as book:
        stored = book.run("one").experiment
    names = [stored[key]["name"] for key in ("algorithm", "data", "partition", "model")]
    assert names == ["leash", "moons", "turns", "thin"]
    assert (stored["uploads"]["stages"], stored["uploads"]["reducer"]) == ("rounded:grid=0.001", "median")
