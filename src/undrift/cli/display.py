"""The live display: method, seed, round, accuracy so far, time left. Plain lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from undrift.cli.common import console, errors, interactive
from undrift.experiment.progress import Progress as Where
from undrift.experiment.progress import Watcher

REFRESH = 4  # times a second
COLUMNS = (
    TextColumn("{task.description}"),
    TextColumn("seed {task.fields[seed]}"),
    BarColumn(bar_width=24),
    TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
    TextColumn("{task.fields[value]}", justify="right"),
    TextColumn("[dim]{task.fields[left]}[/]", justify="right"),
)


class Display:
    """Follows one run after the other."""

    def __init__(self, live: Progress | None) -> None:
        self._live = live
        self._tasks: dict[tuple[str, int], TaskID] = {}
        self._last = 0.0

    def __call__(self, where: Where) -> None:
        if self._live is None:
            return
        key = (where.label, where.seed)
        last = where.round >= where.rounds
        # A fast run has hundreds of rounds a second: the display must not be what it spends its time on.
        if key in self._tasks and not last and where.seconds - self._last < 0.1 and where.seconds > self._last:
            return
        self._last = 0.0 if last else where.seconds
        if key not in self._tasks:
            self._tasks[key] = self._live.add_task(
                escape(where.label), total=where.rounds, seed=where.seed, value="", left=""
            )
        left = where.seconds_left
        self._live.update(
            self._tasks[key],
            completed=where.round,
            value="" if where.value is None else f"{100 * where.value:.1f} %",
            left="done" if last else "" if left is None else f"{left:.0f} s left",
        )


@contextmanager
def watching(quiet: bool) -> Iterator[Watcher]:
    """A watcher for runs: a live display on a terminal, nothing elsewhere."""
    if quiet or not interactive():
        yield Display(None)
        return
    shown = console if console.is_terminal else errors
    with Progress(*COLUMNS, console=shown, refresh_per_second=REFRESH) as live:
        yield Display(live)


def count(value: float) -> str:
    """A number with a unit that fits: 1.2 M."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.3g}"


def size(value: float) -> str:
    """Bytes with a unit that fits: 1.2 MB."""
    return f"{count(value)}B" if abs(value) >= 1e3 else f"{value:.0f} B"
