"""How far runs are, in a notebook: a bar for each in HTML, under the cell. Where no notebook is, nothing is shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from html import escape
from typing import Any

from undrift.experiment.progress import Progress, Watcher

SELDOM = 0.2  # seconds between two drawings
MANY = 12  # runs that are shown, the latest


def watcher(given: Watcher | None = None) -> Watcher | None:
    """Who follows the rounds: the one who was named, or else the notebook that this runs in, if it does."""
    return given or (Bars() if _in_notebook() else None)


class Bars:
    """Draws where each run is, in one place that is drawn anew."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, int], Progress] = {}
        self._place: Any = None
        self._drawn = 0.0

    def __call__(self, where: Progress) -> None:
        self._runs[where.label, where.seed] = where
        if time.monotonic() - self._drawn < SELDOM and where.round < where.rounds:
            return
        self._drawn = time.monotonic()
        from IPython.display import HTML, display

        drawn = HTML(html(list(self._runs.values())[-MANY:]))
        if self._place is None:
            self._place = display(drawn, display_id=True)
        else:
            self._place.update(drawn)


def html(runs: Sequence[Progress]) -> str:
    return f"<table>{''.join(map(_row, runs))}</table>"


def _row(run: Progress) -> str:
    left = run.seconds_left
    cells = (
        escape(run.label),
        f"seed {run.seed}",
        f'<progress value="{run.round}" max="{run.rounds}"></progress>',
        f"round {run.round} of {run.rounds}",
        "" if run.value is None else f"{100 * run.value:.1f} %" if run.figure.share else f"{run.value:.4g}",
        "" if not left else f"{left:.0f} s left",
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _in_notebook() -> bool:
    """IPython is asked only where somebody has imported it; in a terminal it has no kernel."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
