"""Clients in threads: the bits of the serial runtime, errors with their client's name, and Ctrl-C at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conformance.problem import federation
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.runtimes.crew import Crew
from undrift.runtimes.threads import Threads
from worked import play


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_bits_do_not_depend_on_the_number_of_threads(workers: int) -> None:
    job = federation(momentum=0.9)
    threads = play(job, "scaffold", 4, participate=5, runtime=lambda f: Threads(f, workers))
    serial = play(job, "scaffold", 4, participate=5)
    for mine, theirs in zip(threads, serial, strict=True):
        assert torch.equal(mine.snapshot.server.x, theirs.snapshot.server.x)
        assert mine.drift == theirs.drift


def test_more_threads_than_cores_are_warned_about() -> None:
    workers = len(os.sched_getaffinity(0)) + 1
    with pytest.warns(UserWarning, match=f"{workers} workers"):
        Threads(federation(), workers).close()


def test_batch_norm_statistics_stay_with_their_thread() -> None:
    job = replace(federation(), module=nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)))
    threads = play(job, "fedavg", 4, participate=5, runtime=lambda f: Threads(f, 3))
    serial = play(job, "fedavg", 4, participate=5)
    assert torch.equal(threads[-1].snapshot.buffers.floats, serial[-1].snapshot.buffers.floats)
    assert torch.equal(threads[-1].snapshot.server.x, serial[-1].snapshot.server.x)


def test_dropout_is_refused_because_its_masks_come_from_one_stream() -> None:
    job = replace(federation(), module=nn.Sequential(nn.Linear(12, 8), nn.Dropout(0.2), nn.Linear(8, 3)))
    with pytest.raises(InvalidInput, match=r"dropout.*use the runtime processes or serial"):
        Threads(job)


class Broken(nn.Module):
    """Fails on the samples of one client."""

    def __init__(self, marker: float) -> None:
        super().__init__()
        self.layer, self.marker = nn.Linear(12, 3), marker

    def forward(self, x: Tensor) -> Tensor:
        if bool((x[:, 0] == self.marker).any()):
            raise ValueError("no such value")
        out: Tensor = self.layer(x)
        return out


def test_an_error_names_its_client_and_the_next_round_goes_on() -> None:
    job = federation()
    culprit = 2
    marker = float(job.x[job.rows(culprit)[0], 0])
    with Threads(replace(job, module=Broken(marker)), 2) as runtime:
        with pytest.raises(ValueError, match="no such value") as caught:
            play(replace(job, module=Broken(marker)), "fedavg", 1, job.population.size, runtime=lambda f: runtime)
        assert f"client {job.population.name(culprit)}, round 1, step" in caught.value.__notes__[0]
        assert [piece["n"].item() for piece in runtime.map(count, {"y": job.y}, [3, 1, 2])] == [3, 1, 2]


def count(federation: Federation, tensors: Any, item: int) -> dict[str, Tensor]:
    return {"n": torch.tensor(len(tensors["y"][:item]))}


def test_results_come_from_several_threads_at_once() -> None:
    """Two items that wait for each other can only be done by two threads."""
    crew, both = Crew(2), threading.Barrier(2, timeout=30)
    assert sorted(crew.each(lambda item: both.wait() * 0 + item, [1, 2])) == [1, 2]
    crew.close()


def test_an_end_of_the_asking_thread_ends_the_helpers_work() -> None:
    """A helper in an endless loop is dropped when the other item fails."""
    crew, begun = Crew(2), threading.Event()

    def work(item: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            while True:
                pass
        begun.wait(30)
        raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        list(crew.each(work, ["a", "b"]))
    assert sorted(crew.each(lambda item: item, [1, 2, 3])) == [1, 2, 3]  # and the helper is there again
    crew.close()


def test_ctrl_c_does_not_wait_for_a_client(tmp_path: Path) -> None:
    code = tmp_path / "endless.py"
    code.write_text(
        "import os\n"
        "from undrift.runtimes.crew import Crew\n"
        "def work(item):\n"
        "    os.write(1, b'at %d\\n' % item)\n"  # in one piece, whoever else is writing
        "    while True:\n"
        "        pass\n"
        "list(Crew(2).each(work, [1, 2]))\n",
        encoding="utf-8",
    )
    with subprocess.Popen([sys.executable, str(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert sorted(process.stdout.readline() for _ in range(2)) == [b"at 1\n", b"at 2\n"]
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert b"KeyboardInterrupt" in errors
