"""Worker processes: same bits, no traces, and what happens when they die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

from conformance.problem import Network, federation
from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.loop import Loop
from undrift.runtimes.processes import Processes
from undrift.runtimes.serial import Serial
from worked import play

POISON = 12345.0  # an input that kills the worker which sees it


class Mortal(Network):
    """Kills its process when it sees the poison, or when there is a file that says so; never the process it is from."""

    def __init__(self, order: str = "") -> None:
        super().__init__(12, 8, 3)
        self.order, self.born = order, os.getpid()

    def features(self, x: Tensor) -> Tensor:
        if os.getpid() != self.born:
            if (x == POISON).any():
                os.kill(os.getpid(), signal.SIGKILL)
            if self.order and os.path.exists(self.order):
                os.unlink(self.order)
                os.kill(os.getpid(), signal.SIGKILL)
        return super().features(x)


class Failing(Network):
    def __init__(self) -> None:
        super().__init__(12, 8, 3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 5 and self.training:
            raise ArithmeticError("the layer gave up")
        return super().forward(x)


def models(job: Federation, runtime: Any, name: str = "scaffold", rounds: int = 4) -> list[Tensor]:
    return [result.snapshot.server.x for result in play(job, name, rounds, participate=4, runtime=runtime)]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def pids(runtime: Processes) -> list[int]:
    return [handle.process.pid for handle in runtime._handles.values()]


def gone(numbers: list[int]) -> bool:
    """Have the processes ended, if not now then soon?"""
    processes = [psutil.Process(n) for n in numbers if psutil.pid_exists(n)]
    return psutil.wait_procs(processes, timeout=30)[1] == []


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_workers_does_not_show_in_the_bits(workers: int) -> None:
    job = federation(momentum=0.9)
    assert same(models(job, Serial), models(job, lambda f: Processes(f, workers)))


def test_cost_notes_and_drift_are_those_of_the_serial_runtime() -> None:
    job = federation()
    serial = play(job, "fedtrip", 3, participate=4)
    other = play(job, "fedtrip", 3, participate=4, runtime=lambda f: Processes(f, 2))
    for a, b in zip(serial, other, strict=True):
        b.spent.seconds = a.spent.seconds
        assert (a.spent, a.notes, a.drift) == (b.spent, b.notes, b.drift)


def test_buffers_travel() -> None:
    job = replace(federation(), module=nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    serial = play(job, "fedavg", 3, participate=4)
    other = play(job, "fedavg", 3, participate=4, runtime=lambda f: Processes(f, 2))
    assert torch.equal(serial[-1].snapshot.buffers.floats, other[-1].snapshot.buffers.floats)
    assert torch.equal(serial[-1].snapshot.server.x, other[-1].snapshot.server.x)


def test_many_short_clients_travel_in_bundles() -> None:
    job = federation()
    job = replace(job, indices=job.indices, offsets=torch.arange(0, 97).numpy())  # 96 clients with one sample each
    serial = play(job, "fedprox", 3, participate=60)
    other = play(job, "fedprox", 3, participate=60, runtime=lambda f: Processes(f, 2))
    assert torch.equal(serial[-1].snapshot.server.x, other[-1].snapshot.server.x)


def test_files_take_the_place_of_shared_memory_and_it_is_said() -> None:
    job = federation()
    before = set(os.listdir(tempfile.gettempdir()))
    with pytest.warns(UserWarning, match="shared memory is too small"):
        found = models(job, lambda f: Processes(f, 2, shared_limit=16))
    assert same(found, models(job, Serial))
    assert not [name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith("undrift")]


def test_a_worker_killed_between_rounds_is_replaced() -> None:
    job = federation()
    with Processes(job, 2) as runtime:
        loop = Loop(job, create("scaffold"), runtime, 4)
        snapshot, found = loop.start(), []
        for _ in range(4):
            first, *_ = pids(runtime)
            os.kill(first, signal.SIGKILL)
            result = loop.play(snapshot)
            snapshot = result.snapshot
            found.append(snapshot.server.x)
            assert first not in pids(runtime)
    assert same(found, models(job, Serial))


def test_a_worker_killed_in_the_middle_of_a_client_is_replaced(tmp_path: Path) -> None:
    order = tmp_path / "die"
    job = replace(federation(), module=Mortal(str(order)))
    expected = models(job, Serial)
    order.touch()
    assert same(models(job, lambda f: Processes(f, 2)), expected)
    assert not order.exists(), "no worker died: nothing was tested"


def test_a_client_that_kills_every_worker_is_named() -> None:
    job = federation()
    x = job.x.clone()
    x[int(job.offsets[2]), 0] = POISON
    job = replace(job, module=Mortal(), x=x, names=("ann", "bob", "cem", "dan", "eve", "fay"))
    with Processes(job, 2) as runtime:
        loop = Loop(job, create("fedavg"), runtime, 6)
        with pytest.raises(RuntimeError, match="client cem, round 1: the worker process died 3 times"):
            loop.play(loop.start())
        assert pids(runtime) == []


def test_an_error_in_a_client_arrives_with_its_name() -> None:
    job = replace(federation(), module=Failing())
    with Processes(job, 1) as runtime:
        loop = Loop(job, create("fedavg"), runtime, 6)
        with pytest.raises(ArithmeticError, match="gave up") as caught:
            loop.play(loop.start())
    assert any("client" in note and "step" in note for note in caught.value.__notes__)


def test_after_an_error_the_runtime_can_be_used_again() -> None:
    job = federation()
    with Processes(job, 2) as runtime:
        with pytest.raises(ZeroDivisionError):
            runtime.map(_divide, {"x": torch.ones(3)}, [1, 0])
        (half,) = runtime.map(_divide, {"x": torch.ones(3)}, [2])
    assert half["x"].tolist() == [0.5] * 3


def _divide(job: Federation, tensors: Mapping[str, Tensor], item: int) -> dict[str, Tensor]:
    assert 1 / item
    return {"x": tensors["x"] / item}


def _rows(job: Federation, tensors: Mapping[str, Tensor], item: tuple[int, int]) -> dict[str, Tensor]:
    return {"sum": (tensors["big"][item[0] : item[1]] * tensors["w"]).sum(0), "n": torch.tensor(len(job.x))}


def test_map_gives_what_the_loop_gives() -> None:
    job = federation()
    tensors = {"big": torch.arange(600_000.0).view(-1, 2), "w": torch.tensor([1.0, -0.5])}
    items = [(begin, begin + 1000) for begin in range(0, 5000, 1000)]
    serial = Serial(job).map(_rows, tensors, items)
    with Processes(job, 2) as runtime:
        for _ in range(2):
            found = runtime.map(_rows, tensors, items)
            assert all(torch.equal(a[k], b[k]) for a, b in zip(serial, found, strict=True) for k in a)
            tensors["big"] += 1  # a tensor that changed is sent again
            serial = Serial(job).map(_rows, tensors, items)


def test_close_leaves_no_process_and_no_memory_behind() -> None:
    before = set(os.listdir("/dev/shm"))
    job = federation()
    runtime = Processes(job, 2)
    numbers = pids(runtime)
    runtime.close()
    assert gone(numbers)
    assert set(os.listdir("/dev/shm")) <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_end_of_the_parent_leaves_anything_behind(number: signal.Signals) -> None:
    before = set(os.listdir("/dev/shm"))
    script = Path(__file__).with_name("endless.py")
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert len(workers) == 2, parent.stderr.read()
        family = [process.pid for process in psutil.Process(parent.pid).children(recursive=True)]
        assert set(workers) <= set(family)
        if number == signal.SIGINT:  # as the terminal does it: to all of them
            os.killpg(parent.pid, number)
        else:
            parent.send_signal(number)
        try:
            parent.wait(timeout=30)
        finally:
            parent.kill()  # it would be waited for again, for ever
        assert gone(family)
        errors = parent.stderr.read()
    assert set(os.listdir("/dev/shm")) <= before
    if number == signal.SIGINT:
        assert errors.count("Traceback") == 1, "only the parent may complain"


@pytest.mark.parametrize("workers", [0, -1])
def test_no_workers_are_refused(workers: int) -> None:
    with pytest.raises(InvalidInput, match="at least 1 worker"):
        Processes(federation(), workers)


def test_more_workers_than_cores_are_warned_about() -> None:
    workers = len(os.sched_getaffinity(0)) + 1
    with pytest.warns(UserWarning, match=f"{workers} workers"), Processes(federation(), workers) as runtime:
        assert len(pids(runtime)) == workers


def test_a_model_that_cannot_be_pickled_is_refused_by_its_attribute() -> None:
    module = nn.Sequential(nn.Linear(12, 3))
    module[0].activation = lambda x: x
    job = replace(federation(), module=module)
    with pytest.raises(InvalidInput, match=r"the model .* `0\.activation` .* serial runtime"):
        Processes(job, 1)


def test_a_loss_that_cannot_be_pickled_is_refused() -> None:
    job = replace(federation(), loss=lambda outputs, y: outputs.sum())
    with pytest.raises(InvalidInput, match=r"the loss cannot be sent .* serial runtime"):
        Processes(job, 1)
