"""How a command ends: its exit code, and a sentence where a run did not learn.

0    all is well
1    a bug in undrift
2    the input, or the machine, does not allow it
3    it ran, but a run failed or diverged
130  stopped by Ctrl-C
143  stopped by SIGTERM
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.markup import escape

from undrift.analysis.health import Health, health
from undrift.cli.common import command_line, errors
from undrift.ledger.history import History
from undrift.report import words
from undrift.version import versions

OK, BUG, BAD_INPUT, UNWELL, STOPPED, TERMINATED = 0, 1, 2, 3, 130, 143


@contextmanager
def terminable() -> Iterator[list[int]]:
    """SIGTERM stops as Ctrl-C does: what runs is recorded as stopped, and workers end. The signals that came."""
    came: list[int] = []

    def stop(signum: int, frame: Any) -> None:
        came.append(signum)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)


def surroundings(error: BaseException) -> str:
    """What the machine does not allow, as a sentence."""
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror[0].lower()}{error.strerror[1:]}"
    if isinstance(error, MemoryError):
        return "there is not enough memory"
    return str(error)


def report_bug(error: Exception) -> None:
    """A traceback, which no input should ever cause, and how to report it."""
    errors.print("".join(traceback.format_exception(error)), markup=False, end="")
    errors.print(
        "[bold red]undrift:[/] this is a bug. Please report it to the authors with the lines above, the command "
        f"({escape(command_line())}) and the versions: {escape(versions())}"
    )


def judged(histories: Sequence[History]) -> int:
    """Say which of the runs did not learn; the exit code."""
    code, seen = OK, set[str]()
    for history in histories:
        found = health(history)
        if found.state == "diverged":
            code = UNWELL
        if not found.sound and history.label not in seen:
            seen.add(history.label)
            alike = [h for h in histories if h.label == history.label]
            errors.print(f"[yellow]warning:[/] {escape(sentence(history, found, len(alike) > 1))}")
    return code


def sentence(history: History, found: Health, named: bool = False) -> str:
    """What became of a run, and which setting to look at."""
    who = f"{history.label}, seed {history.seed}," if named else history.label
    since = "" if found.since is None else f" from round {found.since} on"
    figure = history.main_curve
    state = {
        "diverged": f"diverged{since}: {found.reason}",
        "chance": f"is at chance{since}: {found.reason}",
        "fell": f"fell to {words.figure(figure, found.value)} (best {words.figure(figure, found.best)})",
    }[found.state]
    lost = f"; {found.rejected} of {words.count(found.uploads, 'upload')} rejected" if found.rejected else ""
    look = ", ".join(f"{suspect.setting} = {suspect.value}" for suspect in found.suspects[:2])
    return f"{who} {state}{lost}" + (f"; the likely setting: {look}" if look else "")
