"""A real Ray cluster of two nodes on this machine: same bits, whoever dies; and clusters that are refused."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

if importlib.util.find_spec("ray") is None:
    pytest.skip("needs ray", allow_module_level=True)

import undrift.runtimes.ray as runtime  # noqa: I001  (before Ray itself is imported: it sets the secret of a cluster)
import ray
from conformance import problem
from conformance.test_conformance import assert_same, assert_same_runs
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.stages import Uploads
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.runtimes import raysum
from undrift.runtimes.sums import SumsHere
from worked import crowd, play

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]

RUN = ["run", "-a", "scaffold", "--data", "digits", "--clients", "6", "--rounds", "6", "--seed", "3", "--name", "it"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that does no work, to which this process is connected, and two nodes of one core each."""
    from ray.cluster_utils import Cluster

    ray.shutdown()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    both = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        both.add_node(num_cpus=1)
    ray.init(address=both.address, log_to_driver=False, logging_level="error")
    try:
        yield both
    finally:
        ray.shutdown()
        both.shutdown()


@pytest.fixture(scope="class")
def local() -> Iterator[None]:
    """A local cluster for many tests."""
    ray.shutdown()  # of whatever tests before these have left connected
    assert runtime.connect(2)
    try:
        yield
    finally:
        ray.shutdown()


def mortal(here: Federation, order: Path, victim: Callable[[], int | None]) -> Federation:
    """The same, but the first worker that sees the order kills a process. A nested function travels whole."""
    usual = here.loss

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        if order.exists():
            process = victim()
            if process is not None:
                order.unlink(missing_ok=True)
                os.kill(process, signal.SIGKILL)
        return usual(outputs, targets)

    return replace(here, loss=loss)


@pytest.mark.usefixtures("local")
class TestBits:
    def test_large_states_stay_in_the_cluster(self, monkeypatch: pytest.MonkeyPatch) -> None:
        here = problem.federation("network")
        serial = play(here, "scaffold", 4)
        monkeypatch.setattr(runtime, "LARGE", 1)
        with runtime.Ray(here) as cluster:
            put: list[Any] = []
            usual = ray.put
            monkeypatch.setattr(runtime.ray, "put", lambda value: put.append(value) or usual(value))
            assert_same_runs(play(here, "scaffold", 4, runtime=lambda _: cluster), serial)
            states = [value for value in put if isinstance(value, dict)]
            assert len(states) == 1, "only what a client keeps before its first round is sent by the driver"

    def test_uploads_pass_their_stages(self) -> None:
        here, uploads = problem.federation("network"), Uploads(clip=0.05)
        serial = play(here, "fedavg", 2, uploads=uploads)
        assert serial[0].cohort.notes["clipped"] == 1.0
        with runtime.Ray(here) as cluster:
            assert_same_runs(play(here, "fedavg", 2, runtime=lambda _: cluster, uploads=uploads), serial)

    @pytest.mark.parametrize("name", ["fedavg", "scaffold", "feddane", "pfedmo", "fedproto"])
    def test_sums_of_workers_are_those_of_one_process(self, name: str) -> None:
        here, uploads = problem.federation("network"), Uploads(clip=None if name == "fedproto" else "median")
        with raysum.Sums(here, 2) as cluster:
            found = play(here, name, 3, runtime=lambda _: cluster, uploads=uploads)
        assert_same_runs(found, play(here, name, 3, runtime=lambda f: SumsHere(f, 2), uploads=uploads))

    def test_sums_of_batch_norm(self) -> None:
        here = problem.federation("network")
        module = nn.Sequential(nn.Linear(problem.INPUTS, 5), nn.BatchNorm1d(5), nn.Linear(5, problem.CLASSES))
        here = replace(here, module=module)
        with raysum.Sums(here, 3) as cluster:
            (found,) = play(here, "fedavg", 1, runtime=lambda _: cluster)
        (home,) = play(here, "fedavg", 1, runtime=lambda f: SumsHere(f, 3))
        assert found.snapshot.buffers is not None
        assert_same(found.snapshot.buffers, home.snapshot.buffers)

    def test_a_hostile_client_does_not_spoil_a_sum(self) -> None:
        for far, reason in ((1e8, "its update has norm"), (float("nan"), "x is not finite")):
            here = crowd(far)
            with raysum.Sums(here, 3) as cluster:
                (found,) = play(here, "fedavg", 1, runtime=lambda _, on=cluster: on)
            (home,) = play(here, "fedavg", 1, runtime=lambda f: SumsHere(f, 3))
            assert list(found.rejected) == [3]
            assert found.rejected[3].startswith(reason)
            assert_same_runs([found], [home])
            assert found.drift == home.drift

    def test_an_error_within_a_sum_says_whose_it_was(self) -> None:
        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            raise ArithmeticError("the loss gave up")

        here = replace(problem.federation("network"), loss=loss)
        with raysum.Sums(here, 2) as cluster, pytest.raises(ArithmeticError, match="gave up") as caught:
            play(here, "fedavg", 1, runtime=lambda _: cluster)
        assert any("client" in note and "round 1" in note for note in caught.value.__notes__)

    def test_an_error_says_whose_it_was(self) -> None:
        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            raise ArithmeticError("the loss gave up")

        here = replace(problem.federation("network"), loss=loss)
        with runtime.Ray(here) as cluster, pytest.raises(ArithmeticError, match="gave up") as caught:
            play(here, "fedavg", 1, runtime=lambda _: cluster)
        assert any("client" in note and "round 1" in note for note in caught.value.__notes__)

    def test_a_model_that_is_not_on_the_node(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "only_here.py").write_text("def loss(outputs, targets):\n    return outputs.sum()\n")
        monkeypatch.syspath_prepend(tmp_path)
        here = replace(problem.federation("network"), loss=__import__("only_here").loss)
        with runtime.Ray(here) as cluster, pytest.raises(InvalidInput, match=r"the loss cannot be imported .* install"):
            play(here, "fedavg", 1, runtime=lambda _: cluster)

    def test_what_cannot_travel(self) -> None:
        here = replace(problem.federation("network"), loss=Unsendable())
        with pytest.raises(InvalidInput, match="the loss cannot be sent to the cluster"):
            runtime.Ray(here)

    def test_quiet_and_private(self) -> None:
        """Nothing listens but on this machine, nothing is reported, and the secret is in no file."""
        import psutil

        mine = psutil.Process().children(recursive=True)
        addresses = set()
        for process in mine:
            with contextlib.suppress(psutil.NoSuchProcess):
                found = [c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
                addresses |= {ip.removeprefix("::ffff:") for ip in found}  # of IPv4, as IPv6 writes it
        assert addresses == {"127.0.0.1"}
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


class Unsendable:
    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.sum()

    def __reduce__(self) -> Any:
        raise TypeError("stays here")


def test_a_killed_worker_does_not_show(cluster: Any, tmp_path: Path) -> None:
    here, order, driver = problem.federation("network"), tmp_path / "order", os.getpid()
    serial = play(here, "scaffold", 3)
    order.touch()
    doomed = mortal(here, order, lambda: None if os.getpid() == driver else os.getpid())
    with runtime.Ray(doomed) as on:
        assert_same_runs(play(doomed, "scaffold", 3, runtime=lambda _: on), serial)
    assert not order.exists()


def test_a_killed_node_does_not_show(cluster: Any, tmp_path: Path) -> None:
    here, order, driver = problem.federation("network"), tmp_path / "order", os.getpid()
    serial = play(here, "scaffold", 3)
    head = ray.get_runtime_context().get_node_id()

    def raylet() -> int | None:
        """The parent of a worker is its node; the head is spared."""
        if os.getpid() == driver or __import__("ray").get_runtime_context().get_node_id() == head:
            return None
        return os.getppid()

    order.touch()
    doomed = mortal(here, order, raylet)
    with runtime.Ray(doomed) as on:
        assert_same_runs(play(doomed, "scaffold", 3, runtime=lambda _: on), serial)
    assert not order.exists()


def command(*arguments: str, folder: Path, **more: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONUNBUFFERED": "1"} | more
    return subprocess.Popen(
        [sys.executable, "-m", "undrift", *arguments],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def curve(ledger: Path) -> list[tuple[int, str, float]]:
    with Ledger(ledger) as book:
        return [(m[0], str(m[1]), m[2]) for m in History.of(book, book.run("it")).metrics]


def test_a_killed_driver_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.sqlite", tmp_path / "broken.sqlite"
    done = command(*RUN, "--runtime", "serial", "--ledger", str(whole), folder=tmp_path)
    assert done.wait() == 0, done.communicate()[0]
    driver = command(
        *RUN, "--rounds", "400", "--runtime", "ray", "--workers", "2", "--ledger", str(broken), folder=tmp_path
    )
    try:
        while driver.poll() is None and _rounds(broken) < 2:
            pass
        assert driver.poll() is None, driver.communicate()[0]
    finally:
        driver.kill()
        driver.wait()
    left = _rounds(broken)
    assert 2 <= left < 400
    goes_on = command("resume", "it", "--rounds", str(max(6, left + 1)), "--ledger", str(broken), folder=tmp_path)
    assert goes_on.wait() == 0, goes_on.communicate()[0]
    assert curve(broken)[: len(curve(whole))] == curve(whole)


def _rounds(ledger: Path) -> int:
    try:
        with Ledger(ledger) as book:
            return len(History.of(book, book.run("it")).rounds)
    except InvalidInput:
        return 0


def test_a_node_with_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.cluster_utils import Cluster

    import undrift

    shutil.copytree(Path(undrift.__file__).parent, tmp_path / "undrift")
    (tmp_path / "undrift" / "version.py").write_text('def version():\n    return "0.0.1"\n')
    ray.shutdown()
    both = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        with monkeypatch.context() as patch:
            patch.setenv("PYTHONPATH", str(tmp_path))
            both.add_node(num_cpus=1)
        ray.init(address=both.address, log_to_driver=False, logging_level="error")
        with pytest.raises(InvalidInput, match=r"has undrift 0\.0\.1 \(here .*\): install the same versions"):
            runtime.Ray(problem.federation("network"))
    finally:
        ray.shutdown()
        both.shutdown()


def test_an_address_where_nobody_answers(tmp_path: Path) -> None:
    asked = command(*RUN, "--runtime", "ray", "--ray-address", "127.0.0.1:1", folder=tmp_path)
    said = asked.communicate()[0]
    assert asked.returncode == 2
    assert "no Ray cluster answers at '127.0.0.1:1'" in said.replace("\n", " ")
    assert "Traceback" not in said


def test_auto_where_the_last_cluster_has_ended(tmp_path: Path) -> None:
    """Ray remembers it, and would ask for it for minutes."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1")
    asked = command(*RUN, "--runtime", "ray", "--ray-address", "auto", folder=tmp_path, RAY_TMPDIR=str(tmp_path))
    said = " ".join(asked.communicate()[0].split())
    assert asked.returncode == 2
    assert "no Ray cluster answers at 'auto'" in said
    assert "refused" in said, "the machine was asked, not Ray"
    assert not list(tmp_path.glob("*.sqlite"))
