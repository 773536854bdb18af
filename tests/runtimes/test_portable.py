"""Systems that lack what Linux has: undrift imports without it, and there is another way to do the same."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable

import pytest
import torch

from conformance.problem import federation
from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from undrift.core.loop import Loop
from undrift.runtimes import auto, memory
from undrift.runtimes.batched import Batched
from undrift.runtimes.cores import cores
from undrift.runtimes.processes import Processes
from undrift.runtimes.serial import Serial

BARE = """
import os, sys
for name in ("sched_getaffinity", "memfd_create", "posix_fallocate", "fork", "sysconf", "getuid"):
    if hasattr(os, name):
        delattr(os, name)
sys.modules["resource"] = None
import undrift
from undrift import algorithms, data, models, experiment
import undrift.cli, undrift.runtimes.threads, undrift.runtimes.batched, undrift.runtimes.auto, undrift.ledger.store
undrift.Dataset, undrift.run, undrift.Ledger
result = undrift.run("fedavg", data="digits", clients=3, rounds=1, runtime="auto")
print(len(result.history.rounds))
"""


def test_a_system_without_them_imports_undrift_and_runs() -> None:
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_cores_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert cores() == 6
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def after_two_rounds(make: Callable[[], object]) -> bytes:
    with make() as runtime:  # type: ignore[attr-defined]
        loop = Loop(runtime.federation, create("scaffold"), runtime, 4)
        snapshot = loop.play(loop.play(loop.start()).snapshot).snapshot
        return snapshot.server.encode()  # type: ignore[no-any-return]


def test_processes_without_memory_files_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    job = federation()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a file in their place is the ordinary way there, and nothing to warn of
        assert after_two_rounds(lambda: Processes(job, 2)) == after_two_rounds(lambda: Serial(job))


def test_blocks_where_nobody_says_how_much_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "sysconf", refuse)
    assert memory.free_memory() == memory.MODEST
    monkeypatch.delattr(os, "sysconf")
    assert memory.free_memory() == memory.MODEST
    job = federation()
    with Batched(job) as runtime:
        loop = Loop(job, create("fedavg"), runtime, 6)
        assert torch.isfinite(loop.play(loop.start()).snapshot.server.x).all()


def test_where_no_clean_process_can_be_forked_threads_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    monkeypatch.setattr(auto, "cores", lambda: 64)
    monkeypatch.setattr(auto, "_eager", lambda federation: 1.0)
    with pytest.raises(InvalidInput, match="cannot start worker processes as they are needed: use the threads"):
        Processes(federation(), 2)
    choice = auto.choose(federation())
    assert choice.name == "threads"
    assert "this system cannot start worker processes" in choice.why
