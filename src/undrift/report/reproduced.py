"""A reproduced table in words: in the paper's own layout, three lines a cell (printed, measured, verdict)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from undrift.papers import Column, Table
from undrift.report import words
from undrift.studies.reproduce import Cell, Reproduced, Verdict

if TYPE_CHECKING:
    from rich.table import Table as Drawn

UNITS = {
    "rounds": "rounds of the mean curve to the target",
    "gflops": "GFLOPs of a client as the paper counts them",
    "accuracy": "% at the end, or in the round that is named",
    "best": "%, the best round",
    "last ten": "%, the mean of the last ten rounds",
    "curves": "% at the end",
    "series": "% at the end",
}

SAID: dict[Verdict, str] = {
    "agrees": "agree",
    "differs": "differ",
    "table contradicts itself": "contradicted by the paper itself",
    "not comparable": "not comparable",
    "one seed": "measured with one seed",
    "not run": "not run",
}


def number(table: Table, value: float) -> str:
    """A number of a table, with as many digits as its paper gives."""
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "not reached"
    if table.measure == "rounds":
        return words.rounds(value)
    return f"{value:.4g}" if table.measure == "gflops" else f"{value:.2f}"


def lines(table: Table, cell: Cell) -> list[str]:
    """Printed, measured and verdict; what does not exist is left out."""
    found = [] if cell.printed is None else [number(table, cell.printed)]
    if cell.values:
        half = "" if not math.isfinite(cell.half) else f" ± {words.amount(cell.half)}"
        found.append(("" if cell.printed is None else "→ ") + number(table, cell.measured) + half)
    return [*found, cell.verdict] if cell.verdict else found or ["–"]


def grid(found: Reproduced) -> tuple[list[str], list[tuple[str, list[list[str]]]]]:
    """Titles, and rows of a name and cells, in the layout of the paper."""
    table = found.table
    if table.transposed:
        rows = [(c.label, [lines(table, found.cell(m, c)) for m in table.methods]) for c in found.columns]
        return list(table.methods), rows
    rows = [(m, [lines(table, found.cell(m, c)) for c in found.columns]) for m in table.methods]
    return [column.label for column in found.columns], rows


def drawn(found: Reproduced) -> Drawn:
    """For a terminal."""
    from rich.table import Table as Drawn
    from rich.text import Text

    titles, rows = grid(found)
    table = Drawn(title=title(found), title_justify="left", caption=caption(found), caption_justify="left")
    table.add_column("")
    for name in titles:
        table.add_column(Text(name), justify="right", overflow="fold")
    for name, cells in rows:
        table.add_row(Text(name), *(Text("\n".join(cell)) for cell in cells), end_section=True)
    return table


def markdown(found: Reproduced) -> str:
    """For a page of documentation."""
    titles, rows = grid(found)
    head = [["", *titles], ["---", *("---:" for _ in titles)]]
    body = [[name, *("<br>".join(cell) for cell in cells)] for name, cells in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [*head, *body]) + "\n"


def title(found: Reproduced) -> str:
    table = found.table
    return f"{table.source} of {table.paper}: {table.title}"


def caption(found: Reproduced) -> str:
    """What the numbers are, how many runs stand behind them, and what to beware of."""
    table = found.table
    said = [f"Printed → measured ± half of the 95 % interval; {UNITS[table.measure]}."]
    said.append(f"{_seeds(found)}; the paper's numbers are of {words.count(table.trials, 'trial')}.")
    said += [f"Not comparable: {why}." for why in dict.fromkeys(table.incomparable.values())]
    return " ".join(said)


def _seeds(found: Reproduced) -> str:
    counts = sorted({len(cell.values) for cell in found.cells.values()})
    if counts == [0]:
        return "Nothing was run"
    listed = words.series([str(seed) for seed in found.seeds]) if len(found.seeds) < 4 else _span(found.seeds)
    where = "" if len(counts) == 1 else f" ({counts[0]} to {counts[-1]} a cell)"
    return f"Seeds {listed}{where}" if len(found.seeds) > 1 else f"Seed {listed}{where}"


def _span(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]} to {seeds[-1]}" if whole else words.series([str(seed) for seed in seeds])


def tally(found: Reproduced) -> str:
    """How many cells agree, in one sentence."""
    verdicts = [cell.verdict for cell in found.cells.values() if cell.verdict]
    if not verdicts:
        return "No printed number is on record for these cells."
    counts = [(verdicts.count(verdict), text) for verdict, text in SAID.items() if verdict in verdicts]
    return f"Of {words.count(len(verdicts), 'printed number')}: {', '.join(f'{n} {text}' for n, text in counts)}."


def command(table: Table, columns: Sequence[Column], seeds: Sequence[int], quick: bool) -> str:
    """The command that gives this table."""
    some = "" if len(columns) == len(table.columns) else f" --columns {','.join(c.name for c in columns)}"
    span = f" --seeds {seeds[0]}..{seeds[-1]}" if seeds else ""
    return f"undrift reproduce {table.reference}{some}{span}{' --quick' if quick else ''}"
