"""A picture of anything that runs recorded round by round, against rounds or any cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from undrift.analysis.groups import grouped
from undrift.analysis.series import names, series
from undrift.core.errors import InvalidInput, unknown
from undrift.ledger.history import History
from undrift.report import words
from undrift.report.plots import AXES, LINE, WIDTH, drawing, folded, legend_shape, style


def draw(
    histories: Sequence[History], name: str, path: str | Path, *, axis: str = "rounds", force: bool = False
) -> None:
    """The mean over the seeds of each method, with a band of one s.d.; methods without such a series are left out."""
    if axis not in AXES:
        raise unknown("axis", axis, AXES)
    known = names(histories)
    if name not in known:
        raise unknown("series", name, known)
    groups = [group for group in grouped(histories)[0] if name in names(group.runs)]
    if not groups:
        raise InvalidInput(f"there is nothing to draw: no finished run has the series {name}")
    columns, rows = legend_shape([group.label for group in groups])
    with drawing(path, WIDTH, 3.2 + LINE * rows, force) as (figure, mpl):
        axes = figure.subplots()
        for place, group in enumerate(groups):
            colour, dash = style(place)
            found = [series(run, name) for run in group.runs]
            at = [r for r in found[0][0] if all(r in rounds for rounds, _ in found)]  # the rounds that all seeds have
            values = np.array([[v for r, v in zip(*one, strict=True) if r in at] for one in found])
            x = np.mean([_cost(run, axis)[np.array(at, int) - 1] for run in group.runs], axis=0)
            mean = values.mean(axis=0)
            axes.plot(x, mean, color=colour, linestyle=dash, label=folded(group.label))
            if len(values) > 1:
                spread = values.std(axis=0, ddof=1)
                axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        axes.set(xlabel=AXES[axis], ylabel=name)
        if axis != "rounds":
            column = {"bytes": "bytes_up"}.get(axis, axis)
            axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: words.cost(column, v)))
            axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def _cost(history: History, axis: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if axis == "bytes":
        return np.asarray(history.cumulative("bytes_up") + history.cumulative("bytes_down"), np.float64)
    return np.asarray(history.cumulative(axis), np.float64)
