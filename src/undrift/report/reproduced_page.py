"""A reproduced table as one HTML page: the table in the paper's layout, and its figures in the paper's form.

No scripts and no other files: the pictures are in the page.
"""

from __future__ import annotations

import html
import math
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from undrift.core.files import refuse_existing, written
from undrift.papers import Column
from undrift.report import reproduced as said
from undrift.report.plots import drawing, style
from undrift.studies.reproduce import Reproduced
from undrift.version import version

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Draw = Callable[[Reproduced, Column, Any], None]  # draws a column of a table on axes
WIDE, HIGH, ACROSS = 3.4, 2.5, 2  # inches of one panel; panels side by side
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1a1a1a; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .35rem .7rem; text-align: right; vertical-align: top; border-bottom: 1px solid #ddd; }
th:first-child { text-align: left; }
td span { display: block; white-space: nowrap; }
.agrees { color: #006d3c; } .differs { color: #a33a00; } .other { color: #555; }
svg { max-width: 100%; height: auto; }
code { background: #f3f3f3; padding: .1rem .3rem; }
"""


def write_page(found: Reproduced, path: Path, *, force: bool = False) -> None:
    refuse_existing(path, force)
    text = page(found)
    with written(path, force=force) as temporary:
        temporary.write_text(text, encoding="utf-8")


def page(found: Reproduced) -> str:
    title = html.escape(said.title(found))
    command = said.command(found.table, found.columns, found.seeds, found.cut is not None)
    parts = [
        f"<h1>{title}</h1>",
        f"<p>{html.escape(said.tally(found))}</p>",
        _table(found),
        f"<p>{html.escape(said.caption(found))}</p>",
        *(f"<figure>{svg}<figcaption>{html.escape(words)}</figcaption></figure>" for words, svg in figures(found)),
        f"<p>undrift {html.escape(version())}: <code>{html.escape(command)}</code></p>",
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _table(found: Reproduced) -> str:
    titles, rows = said.grid(found)
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in ["", *titles])
    body = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th>' + "".join(f"<td>{_cell(cell)}</td>" for cell in cells) + "</tr>"
        for name, cells in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(lines: list[str]) -> str:
    shown = []
    for line in lines:
        kind = line if line in ("agrees", "differs") else "other" if re.match(r"[a-z]", line) else ""
        shown.append(f'<span class="{kind}">{html.escape(line)}</span>')
    return "".join(shown)


def figures(found: Reproduced) -> list[tuple[str, str]]:
    """Captions and pictures, as SVG."""
    measure = found.table.measure
    drawn: list[tuple[str, Draw]] = []
    if measure == "series":
        drawn += [(f"{name} over rounds, mean over seeds", _series(name)) for name in found.table.series]
    if measure in ("best", "last ten"):
        drawn.append(("One box per method: what each seed gave; printed (diamond)", _boxes))
    if measure in ("rounds", "gflops"):
        drawn.append(("Measured (bar, with its 95 % interval) and printed (diamond)", _bars))
    drawn.append(("Mean over seeds; the band is one standard deviation", curves))
    pictures = []
    with tempfile.TemporaryDirectory() as folder:
        for place, (words, draw) in enumerate(drawn):
            path = Path(folder) / f"{place}.svg"
            panels(found, draw, path)
            text = path.read_text(encoding="utf-8")
            pictures.append((words, text[text.index("<svg") :]))
    return pictures


def panels(found: Reproduced, draw: Draw, path: Path, *, force: bool = False) -> None:
    """A picture with a panel for each column."""
    rows = math.ceil(len(found.columns) / ACROSS)
    with drawing(path, WIDE * ACROSS, HIGH * rows + 0.4, force=force) as (figure, _):
        for place, column in enumerate(found.columns):
            axes = figure.add_subplot(rows, ACROSS, place + 1)
            axes.set_title(column.label)
            draw(found, column, axes)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)


def curves(found: Reproduced, column: Column, axes: Axes) -> None:
    figure = found.table.figure
    unit = 100 if figure is None or figure.share else 1
    for place, method in enumerate(found.table.methods):
        trials = found.trials.get((method, column.name), ())
        if not trials:
            continue
        colour, dash = style(place)
        values = unit * np.array([trial.values for trial in trials if trial.at == trials[0].at])
        mean, spread = values.mean(0), values.std(0)
        axes.plot(trials[0].at, mean, dash, color=colour, label=method)
        axes.fill_between(trials[0].at, mean - spread, mean + spread, color=colour, alpha=0.12, linewidth=0)
    if column.target is not None:
        axes.axhline(100 * column.target, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_xlabel("round")
    axes.set_ylabel("accuracy in %" if figure is None else f"{figure.metric}, {figure.data}")


def _bars(found: Reproduced, column: Column, axes: Axes) -> None:
    for place, method in enumerate(found.table.methods):
        cell = found.cell(method, column)
        if math.isfinite(cell.measured):
            half = cell.half if math.isfinite(cell.half) else 0
            axes.bar(place, cell.measured, color=style(place)[0], alpha=0.8, yerr=half, width=0.7)
        if cell.printed is not None and math.isfinite(cell.printed):
            axes.plot(place, cell.printed, "D", color="black", markersize=4)
    axes.set_xticks(range(len(found.table.methods)), list(found.table.methods), rotation=30, ha="right")
    axes.set_ylabel("rounds" if found.table.measure == "rounds" else "GFLOPs")


def _boxes(found: Reproduced, column: Column, axes: Axes) -> None:
    cells = [found.cell(method, column) for method in found.table.methods]
    axes.boxplot([list(cell.values) for cell in cells], widths=0.6, medianprops={"color": "#D55E00"})
    for place, cell in enumerate(cells):
        if cell.printed is not None:
            axes.plot(place + 1, cell.printed, "D", color="black", markersize=4)
    axes.set_xticks(range(1, len(cells) + 1), list(found.table.methods), rotation=30, ha="right")
    axes.set_ylabel("accuracy in %")


def _series(name: str) -> Draw:
    def draw(found: Reproduced, column: Column, axes: Axes) -> None:
        for place, method in enumerate(found.table.methods):
            rows = [trial.series[name] for trial in found.trials.get((method, column.name), ())]
            length = min(map(len, rows), default=0)
            if not length:
                continue
            values = np.array([[math.nan if v is None else v for v in row[:length]] for row in rows])
            axes.plot(range(1, length + 1), values.mean(0), color=style(place)[0], label=method)
        axes.set_xlabel("round")
        axes.set_ylabel(name)

    return draw
