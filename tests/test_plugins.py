"""Code of somebody else: a method, a model, a data set and a partition from a file, a package and an entry point."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import undrift
from undrift import plugins
from undrift.algorithms import algorithms, create
from undrift.cli import flags
from undrift.cli import run as command
from undrift.core.errors import InvalidInput
from undrift.data import PARTITIONERS, SOURCES, load
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "fedleash.py").write_text(METHOD)
    (tmp_path / "others.py").write_text(OTHERS)
    monkeypatch.chdir(tmp_path)
    known = [dict.copy(registry) for registry in (algorithms(), SOURCES, PARTITIONERS, MODELS)]
    yield tmp_path
    for registry, before in zip((algorithms(), SOURCES, PARTITIONERS, MODELS), known, strict=True):
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


def test_an_installed_package(folder: Path) -> None:
    """What an installer writes for a package with entry points, and a new process that looks for them."""
    (folder / "stranger.py").write_text(METHOD + OTHERS)
    about = folder / "stranger-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    entries = {"algorithms": "leash = stranger:FedLeash", "data": "moons = stranger:Moons"}
    entries |= {"partitions": "turns = stranger:Turns", "models": "thin = stranger:Thin\nbroken = stranger:Nothing1"}
    text = "\n".join(f"[undrift.{group}]\n{lines}\n" for group, lines in entries.items())
    (about / "entry_points.txt").write_text(text)
    words = ["run", "-a", "leash", "--data", "moons", "--partition", "turns", "--model", "thin", "--leash", "0.2"]
    words += ["--clients", "3", "--rounds", "1", "--ledger", "runs.db", "--name", "one"]
    done = subprocess.run(
        [sys.executable, "-m", "undrift", *words], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{Path(undrift.__file__).parents[1]}:{folder}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "model 'broken' of stranger cannot be loaded" in " ".join((done.stdout + done.stderr).split())
    with Ledger(folder / "runs.db") as book:
        stored = book.run("one").experiment
    assert [stored[key]["name"] for key in ("algorithm", "data", "partition", "model")] == [
        "leash",
        "moons",
        "turns",
        "thin",
    ]
