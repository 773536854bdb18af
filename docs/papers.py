"""Write the recorded results of the papers' tables into their pages, with pictures.

    python docs/papers.py                              # pages and pictures from what is recorded
    python docs/papers.py LEDGER fedtrip/table4 ...    # first record what a ledger holds of these tables, whole columns

What stands between ``<!-- recorded PAPER/TABLE -->`` and ``<!-- /recorded -->`` is replaced.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from undrift.papers import Table, table
from undrift.papers import records as shipped
from undrift.report import reproduced as said
from undrift.report.reproduced_page import curves, panels
from undrift.studies.reproduce import collected, from_records

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "src" / "undrift" / "papers" / "recorded"
MARKED = re.compile(r"(<!-- recorded (\S+?/\S+?) -->\n).*?(<!-- /recorded -->)", re.S)
SEEDS = range(1, 101)


def block(reference: str) -> str:
    """The table and what it is, as Markdown."""
    found = from_records(table(reference))
    return f"{said.markdown(found)}\n{said.caption(found)} {said.tally(found)}\n"


def filled(text: str) -> str:
    return MARKED.sub(lambda match: f"{match[1]}\n{block(match[2])}\n{match[3]}", text)


def record(ledger: Path, asked: Table) -> None:
    """Add the runs of a table that a ledger holds to the paper's file; runs that are there already are replaced."""
    path = RECORDS / f"{asked.paper}.csv"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[1:] if path.exists() else []
    trials = {cell: runs for cell, runs in collected(asked, asked.columns, SEEDS, ledger).items() if runs}
    new = shipped.text(asked, trials).splitlines(keepends=True)
    mine = {tuple(line.split(",")[:3]) for line in new}
    kept = [line for line in lines if tuple(line.split(",")[:3]) not in mine]
    path.write_text(shipped.HEAD + "".join([*kept, *new]), encoding="utf-8")


def main() -> None:
    if len(sys.argv) > 1:
        for reference in sys.argv[2:]:
            record(Path(sys.argv[1]), table(reference))
    for page in sorted((DOCS / "papers").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        page.write_text(filled(text), encoding="utf-8")
        for name in re.findall(r"\]\(\.\./images/(\S+?)\.png\)", text):
            paper, _, rest = name.partition("-")
            panels(from_records(table(f"{paper}/{rest}")), curves, DOCS / "images" / f"{name}.png", force=True)


if __name__ == "__main__":
    main()
