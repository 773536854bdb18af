"""A queue of described runs, worked off by processes. Whoever starts the same queue again goes on where it stopped:
runs are known by their names, finished ones are left alone and unfinished ones resumed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from undrift.core.errors import InvalidInput
from undrift.data import Dataset, data_root
from undrift.experiment.description import Experiment
from undrift.experiment.prepare import completed
from undrift.experiment.start import check_described, resume_experiment, start_experiment
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger


@dataclass(frozen=True)
class Job:
    """One run: its name in the ledger and its description, to be played up to the description's rounds."""

    name: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Done:
    """A job that was worked off; ``error`` is a sentence where it failed."""

    name: str
    error: str = ""


Tell = Callable[[Done], None]


def work_off(
    jobs: Sequence[Job],
    ledger: Path,
    *,
    workers: int | None = None,
    root: str | Path | None = None,
    tell: Tell = lambda done: None,
) -> list[Done]:
    """Work off all jobs, a few at a time. A job that fails does not stop the others."""
    if len({job.name for job in jobs}) < len(jobs):
        raise InvalidInput("two of the runs would have the same name")
    with Ledger(ledger, create=True) as book:
        known = {run.name: run for run in book.runs()}
        waiting = [job for job in jobs if not _is_done(known.get(job.name), job)]
    for job in jobs:
        if job not in waiting:
            tell(Done(job.name))
    count = min(workers or os.cpu_count() or 1, max(1, len(waiting)))
    results = _here(waiting, ledger, root) if count == 1 else _there(waiting, ledger, root, count)
    failed = []
    for done in results:
        tell(done)
        if done.error:
            failed.append(done)
    return failed


def _is_done(run: Run | None, job: Job) -> bool:
    return run is not None and run.status == "finished" and run.rounds >= int(job.values["rounds"])


def _here(jobs: Sequence[Job], ledger: Path, root: str | Path | None) -> Iterator[Done]:
    for job in jobs:
        yield _perform(job, ledger, root)


def _there(jobs: Sequence[Job], ledger: Path, root: str | Path | None, count: int) -> Iterator[Done]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_quiet) as pool:
        futures = [pool.submit(_perform, job, ledger, root) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BrokenProcessPool:
            raise InvalidInput(
                "a worker process was killed, perhaps for want of memory: the same command goes on where it stopped"
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _quiet() -> None:
    """Many runs at once: one thread each, and no warnings that would come once per worker."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)


@cache
def _dataset(section: str, root: str | None) -> Dataset:
    """Loaded once per process, not once per run."""
    return Experiment.build({"data": json.loads(section)}).data.load(data_root(root))


def _perform(job: Job, ledger: Path, root: str | Path | None) -> Done:
    try:
        experiment = replace(Experiment.build(job.values, job.name), name=job.name)
        dataset = _dataset(json.dumps(experiment.values()["data"]), None if root is None else str(root))
        experiment = completed(experiment, dataset)
        with Ledger(ledger) as book:
            earlier = next((run for run in book.runs() if run.name == job.name), None)
            if earlier is None:
                start_experiment(experiment, book, root=root, dataset=dataset)
            else:
                check_described(earlier, experiment)
                resume_experiment(earlier, book, root=root, rounds=experiment.plan.rounds)
    except Exception as error:
        if isinstance(error, InvalidInput):
            return Done(job.name, str(error))
        return Done(job.name, f"{type(error).__name__}: {error}")
    return Done(job.name)
