"""How far runs are: a live display on a terminal, a plain line every few rounds where there is none.

Within a round that takes more than two seconds it says how many clients have answered; an evaluation that takes long is
named; several runs have an overall bar with the time that is left.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from undrift.cli.common import errors
from undrift.experiment.progress import Progress as Where
from undrift.experiment.progress import Within
from undrift.report import words
from undrift.studies.jobs import Done, Observer

REFRESH = 4  # times a second
LONG = 2.0  # seconds of a round, or of an evaluation, after which it is said what happens inside
SELDOM = 1.0  # seconds between two plain lines
LINES = 10  # plain lines of a run, about
FEW = 12  # runs up to which those that are done stay on the screen
COLUMNS = (
    TextColumn("{task.description}"),
    TextColumn("{task.fields[seed]}"),
    BarColumn(bar_width=24),
    TextColumn("{task.fields[unit]} {task.fields[at]}"),
    TextColumn("{task.fields[value]}", justify="right"),
    TextColumn("[dim]{task.fields[left]}[/]", justify="right"),
)


class Live:
    """Follows runs on a terminal; ``runs`` is how many there will be, None where nobody knows."""

    def __init__(self, screen: Progress, runs: int | None) -> None:
        self._screen, self._runs = screen, runs
        self._tasks: dict[str, TaskID] = {}
        self._shown: dict[str, float] = {}
        self._began = time.monotonic()
        self._done = self._skipped = 0
        self._overall = None if runs == 1 else screen.add_task("[bold]all runs[/]", total=runs, **_fields("run"))

    def tell(self, done: Done) -> None:
        if done.error:
            _failed(done)
        if self._overall is None:
            return
        self._done += 1
        self._skipped += not self._tasks  # it was done before
        played, left = self._done - self._skipped, ""
        if played and self._runs is not None:
            spent = time.monotonic() - self._began
            left = f"{words.duration(spent / played * (self._runs - self._done))} left"
        at = f"{self._done}" if self._runs is None else f"{self._done}/{self._runs}"
        self._screen.update(self._overall, completed=self._done, at=at, left=left)

    def watch(self, where: Where) -> None:
        last = where.round >= where.rounds
        # A fast run has hundreds of rounds a second: the display must not be what it spends its time on.
        now = time.monotonic()
        if not last and now - self._shown.get(where.run, -1.0) < 0.1:
            return
        self._shown[where.run] = now
        left = where.seconds_left
        said = "done" if last else "" if left is None else f"{words.duration(left)} left"
        value = "" if where.value is None else words.figure(where.figure, where.value)
        task, at = self._task(where), f"{where.round}/{where.rounds}"
        self._screen.update(task, completed=where.round, at=at, value=value, left=said)
        if last and (self._runs is None or self._runs > FEW):
            self._screen.update(task, visible=False)

    def within(self, where: Within) -> None:
        now = time.monotonic()
        long = where.seconds > LONG or (where.doing == "evaluating" and now - self._shown.get(where.run, now) > LONG)
        if long:
            said = f"{where.clients} of {where.of} clients" if where.doing == "training" else "evaluating"
            self._screen.update(self._task(where), left=said)

    def _task(self, where: Where | Within) -> TaskID:
        if where.run not in self._tasks:
            fields = _fields("round", f"seed {where.seed}")
            self._tasks[where.run] = self._screen.add_task(escape(_title(where)), total=where.rounds, **fields)
        return self._tasks[where.run]


def _fields(unit: str, seed: str = "") -> dict[str, Any]:
    return {"unit": unit, "seed": seed, "at": "", "value": "", "left": ""}


def _title(where: Where | Within) -> str:
    """Who is at work: the method, and what a sweep varies beside it."""
    study, *method = where.run.split("/")[:-1] or [""]
    varied = [pair for part in method for pair in part.split(":")[1:] if pair not in where.label]
    return ", ".join([where.label, *varied]) if study else where.label


class Plain:
    """Follows runs in lines, for pipes, files and CI."""

    def __init__(self, runs: int | None) -> None:
        self._runs, self._done = runs, 0
        self._last = time.monotonic()

    def tell(self, done: Done) -> None:
        self._done += 1
        if done.error:
            _failed(done)
        elif self._runs != 1 and self._rested():
            of = "" if self._runs is None else f" of {self._runs}"
            errors.print(f"{self._done}{of} runs done")

    def watch(self, where: Where) -> None:
        step = max(1, math.ceil(where.rounds / LINES))
        last = where.round >= where.rounds
        if not (last or where.round % step == 0) or not self._rested():
            return
        parts = [f"round {where.round} of {where.rounds}"]
        if where.value is not None:
            parts.append(words.figure(where.figure, where.value))
        if where.seconds_left and not last:
            parts.append(f"{words.duration(where.seconds_left)} left")
        if where.seconds > 10 and where.evaluating > 0.5 * where.seconds:
            parts.append(f"{where.evaluating / where.seconds:.0%} of the time is evaluation")
        errors.print(f"{escape(_title(where))}, seed {where.seed}: {', '.join(parts)}")

    def within(self, where: Within) -> None:
        if where.seconds > LONG and where.doing == "training" and self._rested(10 * SELDOM):
            inside = f"round {where.round} of {where.rounds}, {where.clients} of {where.of} clients"
            errors.print(f"{escape(_title(where))}, seed {where.seed}: {inside}")

    def _rested(self, pause: float = SELDOM) -> bool:
        now = time.monotonic()
        if now - self._last < pause:
            return False
        self._last = now
        return True


@contextmanager
def watching(quiet: bool, runs: int | None = 1) -> Iterator[Observer]:
    """Who is told how far runs are: a live display on a terminal, lines elsewhere, nobody where it is to be quiet."""
    if quiet:
        yield Observer(tell=_failed)
    elif errors.is_terminal and "CI" not in os.environ:
        with Progress(*COLUMNS, console=errors, refresh_per_second=REFRESH) as screen:
            live = Live(screen, runs)
            yield Observer(live.tell, live.watch, live.within)
    else:
        plain = Plain(runs)
        yield Observer(plain.tell, plain.watch, plain.within)


def _failed(done: Done) -> None:
    if done.error:
        errors.print(f"[yellow]failed:[/] {escape(done.name)}: {escape(done.error)}")
