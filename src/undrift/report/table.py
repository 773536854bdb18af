"""A comparison as a table: for the terminal (Rich), as Markdown, and as plain cells that the page uses too."""

from __future__ import annotations

import math
import re
import textwrap
from typing import TYPE_CHECKING

from undrift.analysis.comparison import Comparison, CostToTarget, Row
from undrift.analysis.intervals import Spread
from undrift.core.figure import GLOBAL
from undrift.report import sentences as said
from undrift.report import words

if TYPE_CHECKING:
    from rich.table import Table

COST_TITLES = {
    "rounds": "rounds",
    "bytes_up": "upload",
    "bytes_down": "download",
    "macs": "client compute",
    "seconds": "time",
}


OWN_MEAN = "seeds' own mean"


def cost_headers(comparison: Comparison) -> list[str]:
    if comparison.target is None:
        return []
    goal = words.target_words(comparison.target, comparison.figure)
    first, *rest = (f"{title} to {goal}" for title in COST_TITLES.values())
    return [first, OWN_MEAN, *rest]


def headers(comparison: Comparison) -> list[str]:
    return ["method", "seeds", f"final {comparison.figure.metric}", "best", *cost_headers(comparison), "rejected"]


def ordered(comparison: Comparison) -> tuple[Row, ...]:
    """A few methods as they were asked for; many by rank."""
    return comparison.rows if len(comparison.rows) <= FEW else comparison.ranked


def cells(comparison: Comparison, row: Row) -> list[str]:
    """One row of the table as text."""
    label = row.label + (" (baseline)" if comparison.is_baseline(row) and len(comparison.rows) > 1 else "")
    model = row.group.figure.model
    label += "" if model == GLOBAL else f" ({model})"  # another figure than that of the others
    label += " (diverged)" if row.diverged else ""
    seeds, final, best, rejected = plain_cells(row)
    return [label, seeds, final, best, *cost_cells(comparison, row), rejected]


def plain_cells(row: Row) -> list[str]:
    """Seeds, final figure, best figure, rejected uploads."""
    rejected = str(row.rejected) + (f", {words.count(row.skipped, 'round')} skipped" if row.skipped else "")
    return [str(len(row.group.runs)), _spread(row, row.final), _spread(row, row.best), rejected]


def cost_cells(comparison: Comparison, row: Row) -> list[str]:
    """The costs to the target, the mean of the seeds' own rounds after the first."""
    if comparison.target is None:
        return []
    first, *rest = (_cost(row, column) for column in COST_TITLES)
    return [first, _own(row), *rest]


def _spread(row: Row, found: Spread) -> str:
    bad = sum(math.isnan(v) for v in found.values)
    if bad:
        return f"n/a ({bad} of {len(found.values)} seeds gave no number)"
    return words.spread(row.group.figure, found.mean, found.sd)


def _cost(row: Row, column: str) -> str:
    cost: CostToTarget | None = row.costs.get(column)
    if cost is None:
        return "–"
    if cost.value is None:
        return f"not reached in {words.count(row.group.rounds, 'round')}" if column == "rounds" else "–"
    text = words.cost(column, cost.value)
    if cost.ratio is not None:
        text += f" ({words.times(cost.ratio.value)})"
    return text


def _own(row: Row) -> str:
    """The mean of the rounds at which each seed by itself reached the target."""
    cost = row.costs.get("rounds")
    if cost is None:
        return "–"
    if cost.per_seed_mean is None:
        return f"{cost.reached} of {len(cost.per_seed)} seeds"
    return words.rounds(cost.per_seed_mean)


_ASIDE = ("seeds", "rejected")  # columns that most often hold the same in every row
_SHORT = {OWN_MEAN: "own mean", "upload": "up", "download": "down"}
NAME = 14  # characters of a method's name that stay together
FEW = 5  # so many methods stand side by side where they do not fit below each other, in the order they were asked for


def render(comparison: Comparison, width: int = 170) -> Table:
    """The table for a terminal: a row per method, or a column per method where those would not fit."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(title=_title(comparison), caption=_caption(comparison), caption_justify="left", title_justify="left")
    lines = [headers(comparison), *(cells(comparison, row) for row in ordered(comparison))]
    narrow = width < _natural(lines)
    if narrow and len(comparison.rows) <= FEW:
        lines = [list(line) for line in zip(*lines, strict=True)]
    slim = narrow and len(comparison.rows) > FEW
    if slim:
        lines, shared = _slim(lines, width)
        table.title = "; ".join([_title(comparison), *shared])
        table.box, table.pad_edge, table.padding = SIMPLE_HEAD, False, (0, 0)
    for place, title in enumerate(lines[0]):
        table.add_column(
            Text(title), justify="left" if place == 0 else "right", overflow="fold", no_wrap=slim and not place
        )
    for line in lines[1:]:
        table.add_row(*(Text(cell) for cell in line))
    return table


def _natural(lines: list[list[str]]) -> int:
    """The width at which no cell is folded, borders included."""
    return sum(max(map(len, column)) + 3 for column in zip(*lines, strict=True)) + 1


def _slim(lines: list[list[str]], width: int) -> tuple[list[list[str]], list[str]]:
    """Many methods on a narrow terminal: what all have in common is said once, and the target is not repeated."""
    labels, *rest = (list(column) for column in zip(*lines, strict=True))
    shared = [column for column in rest if column[0] in _ASIDE and len(set(column[1:])) == 1]
    slim = [["\n".join(textwrap.wrap(label, max(NAME, width // 6))) for label in labels]]
    for title, *values in (column for column in rest if column not in shared):
        short = title.split(" to ")[0].removeprefix("client ")
        short = "final" if title.startswith("final") else _SHORT.get(short, short)
        slim.append([short, *(re.sub(r"not reached in .*", "not reached", v) for v in values)])
    return [list(line) for line in zip(*slim, strict=True)], [f"{title}: {value}" for title, value, *_ in shared]


def sentences(comparison: Comparison) -> list[str]:
    """What may be concluded, headline first."""
    return [str(sentence) for sentence in said.concluded(comparison)]


def text(comparison: Comparison) -> str:
    """The table and the verdict as plain text, columns aligned."""
    lines = [headers(comparison), *(cells(comparison, row) for row in ordered(comparison))]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def drawn_line(line: list[str]) -> str:
        return "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])

    drawn = [drawn_line(line) for line in lines]
    drawn.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join([*(line.rstrip() for line in drawn), "", *_after(comparison)]) + "\n"


def markdown(comparison: Comparison) -> str:
    """The table and the verdict as Markdown."""
    lines = [headers(comparison), ["---", *("---:" for _ in headers(comparison)[1:])]]
    lines += [cells(comparison, row) for row in ordered(comparison)]
    drawn = ["| " + " | ".join(_plain(cell) for cell in line) + " |" for line in lines]
    return "\n".join([*drawn, "", *(f"* {_plain(s)}" for s in _after(comparison))]) + "\n"


def _plain(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _after(comparison: Comparison) -> list[str]:
    return [*sentences(comparison), *(f"Note: {said.remark(r)}." for r in comparison.remarks), _caption(comparison)]


def _title(comparison: Comparison) -> str:
    facts = next(row.group.runs[0].facts for row in comparison.rows if row.group.figure == comparison.figure)
    what = f"{words.metric(comparison.figure, facts)} over seeds (mean ± standard deviation)"
    return what if comparison.target is None else f"{what}, and the cost to the target"


def _caption(comparison: Comparison) -> str:
    if comparison.target is None:
        return "No target: the methods are compared at the end."
    source = said.target_source(comparison)
    how = f" ({source})" if source else ""
    aim = words.target_words(comparison.target, comparison.figure)
    limit = "most" if comparison.figure.better == "lower" else "least"
    return (
        f"Target {aim}{how}: the first evaluated round at which the mean over seeds, unsmoothed, is at {limit} the "
        "target. (×) is the baseline's cost over the method's: above 1 is cheaper."
    )
