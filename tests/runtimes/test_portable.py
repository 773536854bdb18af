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
for name in ("sched_getaffinity", "memfd_create", "posix_fallocate", "fork", "sysconf", "getuid", "O_DIRECTORY"):
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


WINDOWS = """
import asyncio, concurrent.futures, importlib, multiprocessing, os, pkgutil, pty, sys, tempfile, types, urllib.request
import click, matplotlib.pyplot, numpy, PIL.Image, psutil, pyarrow.parquet, rich.console, rich.live, rich.progress
import rich.prompt, safetensors.torch, sklearn.datasets, torch, torchmetrics, typer
from pathlib import Path

import fcntl  # what stands in for Windows' own way to lock a byte of a file

def locking(fd, mode, count):
    fcntl.lockf(fd, mode, count, os.lseek(fd, 0, os.SEEK_CUR))

sys.modules["msvcrt"] = types.SimpleNamespace(
    locking=locking, LK_NBLCK=fcntl.LOCK_EX | fcntl.LOCK_NB, LK_UNLCK=fcntl.LOCK_UN
)
for name in ("fcntl", "resource", "pwd", "grp", "termios", "readline"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "memfd_create", "posix_fallocate", "fork", "sysconf", "getuid", "geteuid",
             "O_DIRECTORY", "O_CLOEXEC", "killpg", "mkfifo", "register_at_fork"):
    if hasattr(os, name):
        delattr(os, name)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
sys.platform = "win32"

import undrift

ABSENT = ("flwr", "nvflare")  # packages that are not everywhere; what needs them is left out without them
for module in pkgutil.walk_packages(undrift.__path__, "undrift."):
    if module.name.startswith(("undrift.__main__", "undrift.runtimes.ray")):  # starts at once; Ray sees another system
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ABSENT:
            raise
print("imported")
with tempfile.TemporaryDirectory() as folder:
    book = Path(folder) / "book.sqlite"
    result = undrift.run("fedavg", data="digits", clients=3, rounds=2, runtime="auto", ledger=book)
    with undrift.Ledger(book) as ledger:
        print(len(result.history.rounds), [run.status for run in ledger.runs()])
    print(result.save(Path(folder) / "model.safetensors").stat().st_size > 1000)
    from undrift.ledger.lock import LockFile, is_taken
    print(LockFile.of(book).take(7), is_taken(book, 7), LockFile.of(book).release(7), is_taken(book, 7))
"""


def test_a_system_like_windows_imports_every_module_and_runs_locks_and_saves() -> None:
    done = subprocess.run([sys.executable, "-c", WINDOWS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "imported\n2 ['finished']\nTrue\nTrue True None False\n"


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
