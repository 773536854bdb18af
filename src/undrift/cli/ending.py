"""How a command ends: its exit code, and a sentence where a run did not learn.

0    all is well
1    a bug in undrift
2    the input cannot be used
3    it ran, but a run failed or diverged
130  stopped by Ctrl-C
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from undrift.analysis.health import Health, health
from undrift.cli.common import errors
from undrift.ledger.history import History
from undrift.report import words

OK, BUG, BAD_INPUT, UNWELL, STOPPED = 0, 1, 2, 3, 130


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
