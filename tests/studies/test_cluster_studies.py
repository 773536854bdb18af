"""Whole runs over a real Ray cluster: the figures and the bits of runs at home, whoever is stopped or killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from undrift import advise, compare, sweep
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.papers import over, table
from undrift.studies import cluster
from undrift.studies.jobs import Place, Queued
from undrift.studies.reproduce import reproduce

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"
)

STUDY: dict[str, Any] = {"seeds": (1, 2), "clients": 6, "participate": 2, "eval_every": 3}
COMPARE = ["compare", "-a", "fedavg,scaffold", "--seeds", "1..2", "--clients", "6", "--participate", "2"]
PATIENCE = 60  # seconds after which a process that should have ended has not
AGENTS = 150  # and one of Ray's own agents, which first look for the rest of their cluster for a minute


def queue(count: int, **values: Any) -> list[Queued]:
    return [Queued(str(i), values) for i in range(count)]


def test_whole_runs_travel_where_they_keep_more_cores_busy() -> None:
    assert cluster.whole(queue(4), 2)
    assert cluster.whole(queue(100, participate=100), 64)
    assert not cluster.whole(queue(1), 2), "a single run spreads its clients"
    assert not cluster.whole(queue(4, participate=100), 64)
    assert cluster.whole(queue(4, clients=3), 64)


def contents(path: Path) -> dict[str, Any]:
    """All that does not tell the time: what was measured, and what the server and every client hold, to the bit."""
    with Ledger(path) as book:
        return {run.name: content(book, run) for run in book.runs()}


def content(book: Ledger, run: Run) -> Any:
    stored = book.snapshot(run)
    assert stored is not None
    held: list[Any] = [stored.server, stored.buffers, *(book.kept(run, client) for client in range(6))]
    tensors = [
        {name: value.numpy().tobytes() for name, value in (h[0] if isinstance(h, tuple) else h).items()} if h else None
        for h in held
    ]
    rounds = [(row.round, row.bytes_up, row.gradients, row.drift, row.notes) for row in book.rounds(run)]
    return run.status, run.facts["data_fingerprint"], rounds, book.metrics(run), book.rejections(run), tensors


@pytest.fixture(scope="module")
def nodes() -> Iterator[None]:
    """Two nodes of one core each; this process is connected to the first."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    import undrift.runtimes.ray  # noqa: F401  (before a cluster is started: it sets the secret of one)

    ray.shutdown()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        both = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        both.add_node(num_cpus=1)
    ray.init(address=both.address, log_to_driver=False, logging_level="error")
    try:
        yield
    finally:
        ray.shutdown()
        both.shutdown()


@pytest.mark.cluster
@pytest.mark.usefixtures("nodes")
class TestTwoNodes:
    @pytest.fixture(scope="class")
    def home(self, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
        path = tmp_path_factory.mktemp("home") / "ledger.sqlite"
        return path, compare(["fedavg", "scaffold"], rounds=8, runtime="serial", ledger=path, side_by_side=1, **STUDY)

    def test_a_comparison_equals_the_one_at_home(
        self, home: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Leg by leg of one round each, the runs cross the border as often as they can."""
        monkeypatch.setattr(cluster, "FIRST", 0.0)
        path, heard = tmp_path / "ledger.sqlite", []
        found = compare(["fedavg", "scaffold"], rounds=8, runtime="ray", ledger=path, watch=heard.append, **STUDY)
        assert contents(path) == contents(home[0])
        assert found.figures == home[1].figures
        assert sorted((where.run, where.round) for where in heard) == [
            (run, round) for run in sorted(contents(path)) for round in range(1, 9)
        ]

    def test_more_rounds_go_on_where_it_stopped(self, home: tuple[Path, Any], tmp_path: Path) -> None:
        path = tmp_path / "ledger.sqlite"
        compare(["fedavg", "scaffold"], rounds=3, runtime="serial", ledger=path, side_by_side=1, **STUDY)
        with Ledger(path) as book:
            began = {run.name: run.created for run in book.runs()}
        compare(["fedavg", "scaffold"], rounds=8, runtime="ray", ledger=path, resume=True, **STUDY)
        with Ledger(path) as book:
            assert {run.name: run.created for run in book.runs()} == began
        whole, gone_on = contents(home[0]), contents(path)
        assert {name: run[-1] for name, run in gone_on.items()} == {name: run[-1] for name, run in whole.items()}

    def test_a_killed_worker_does_not_show(
        self, home: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cluster, "FIRST", 0.0)
        killed: list[int] = []

        def kill_one(where: Any) -> None:
            at_work = [p for p in psutil.Process().children(recursive=True) if "ray::leg" in " ".join(p.cmdline())]
            if not killed and at_work:
                killed.append(at_work[0].pid)
                at_work[0].kill()

        path = tmp_path / "ledger.sqlite"
        compare(["fedavg", "scaffold"], rounds=8, runtime="ray", ledger=path, watch=kill_one, **STUDY)
        assert killed
        assert contents(path) == contents(home[0])

    @pytest.mark.parametrize("share", [{}, {"participate": 2, "clients": 6}])
    def test_a_sweep_and_an_advice_equal_those_at_home(self, share: dict[str, Any], tmp_path: Path) -> None:
        """Whole runs, or the clients of one run at a time: whichever keeps the two cores busy."""
        for study in (
            lambda **where: sweep("fedprox", {"mu": [0.01, 1.0]}, rounds=3, seeds=(1,), **share, **where),
            lambda **where: advise("rounds=20", algorithms="fedavg,slowmo,fednova", seeds=(1, 2), **share, **where),
        ):
            books = {where: tmp_path / f"{where}.sqlite" for where in ("serial", "ray")}
            home, spread = (study(runtime=where, ledger=book) for where, book in books.items())
            assert str(spread) == str(home)
            assert figures(books["ray"]) == figures(books["serial"])
            for book in books.values():
                book.unlink()

    def test_a_table_is_reproduced_as_at_home(self, tmp_path: Path) -> None:
        base = table("fedtrip/table4")
        change = {"data": {"name": "digits"}, "partition": {"name": "iid"}, "rounds": 3, "clients": 3, "participate": 2}
        values = over(base.columns[0].experiment, change) | {"model": {"name": "mlp"}}
        small = replace(base, columns=(replace(base.columns[0], experiment=values, target=0.2),))
        home, spread = (
            reproduce(small, Place(tmp_path / f"{where}.sqlite"), seeds=[1, 2], quick=True, plan={"runtime": where})
            for where in ("serial", "ray")
        )
        assert not spread.failed
        assert spread.trials == home.trials
        assert len(spread.trials) == len(base.methods)

    def test_what_a_method_refuses_is_said_and_the_others_run(self, tmp_path: Path) -> None:
        good = Queued("good", {"data": "digits", "clients": 2, "rounds": 1, "runtime": "ray"})
        bad = Queued("bad", {**good.values, "clients": 10**6})
        failed = cluster_failures([bad, good], tmp_path)
        assert [done.name for done in failed] == ["bad"]
        assert failed[0].refused
        assert "fewer than 1000000 clients" in failed[0].error


def cluster_failures(items: list[Queued], folder: Path) -> list[Any]:
    from undrift.studies.jobs import Place, work_off

    return work_off(items, Place(folder / "ledger.sqlite"))


def outside() -> dict[str, str]:
    """The environment without what Ray has put into it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


@contextmanager
def under_way(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison over a local cluster, when two runs have rounds behind them and many before them."""
    line = [sys.executable, "-m", "undrift", *COMPARE, "--rounds", "4000", "--runtime", "ray", "--workers", "2"]
    with subprocess.Popen(
        [*line, "--ledger", str(path)], env=outside(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            while sum(run.rounds > 0 for run in runs(path)) < 2:
                assert process.poll() is None, process.communicate()
            yield process
        finally:
            process.kill()


def figures(path: Path) -> dict[str, Any]:
    """What was measured, by run."""
    with Ledger(path) as book:
        return {run.name: (run.status, run.rounds, book.metrics(run)) for run in book.runs()}


def runs(path: Path) -> list[Run]:
    if not path.exists() or not path.stat().st_size:
        return []
    with Ledger(path) as book:
        return book.runs()


@pytest.mark.cluster
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_study_that_is_stopped_leaves_no_process_and_its_rounds(how: signal.Signals, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    with under_way(path) as process:
        started = psutil.Process(process.pid).children(recursive=True)
        arguments = {each: [each.name(), *each.cmdline()] for each in started}
        before = {run.name: run.rounds for run in runs(path)}
        os.kill(process.pid, how)
        _, said = process.communicate(timeout=PATIENCE)
        at_work = [p for p in started if "agent" not in " ".join(arguments[p]).lower()]
        _, alive = psutil.wait_procs(at_work, timeout=PATIENCE)
        _, waiting = psutil.wait_procs(started, timeout=AGENTS)
    assert (alive, waiting) == ([], [])
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[how]
    left = runs(path)
    assert {run.status for run in left} <= {"stopped", "finished"}
    assert all(run.rounds >= before[run.name] for run in left if run.name in before)
    if how != signal.SIGKILL:
        assert "Traceback" not in said
        assert any(run.rounds > before.get(run.name, 0) for run in left), "what was under way is kept"
        assert "To go on: undrift compare" in " ".join(said.split())


@pytest.mark.cluster
def test_a_study_whose_driver_was_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken.sqlite", tmp_path / "whole.sqlite"
    with under_way(broken) as process:
        started = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait()
        psutil.wait_procs(started, timeout=AGENTS)
    rounds = max(run.rounds for run in runs(broken)) + 2
    for path, more in ((broken, ["--resume", "--runtime", "ray", "--workers", "2"]), (whole, ["--runtime", "serial"])):
        line = [sys.executable, "-m", "undrift", *COMPARE, "--rounds", str(rounds), "--ledger", str(path), *more]
        done = subprocess.run(line, env=outside(), text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
    found, home = contents(broken), contents(whole)
    assert found.keys() == home.keys()
    for name in home:
        assert found[name][-1] == home[name][-1], "what the server and the clients hold"
        assert found[name][2] == home[name][2]
