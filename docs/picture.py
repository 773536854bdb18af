"""Draw the table that ``make demo`` prints, as docs/images/demo.png. Needs the ledger of a demo and Chromium."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright
from rich.console import Console

from undrift.analysis.comparison import comparison
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.report.table import render, sentences

PAGE = "<style>body{{margin:0;background:#1b1e24;color:#e6e6e6}}pre{{font:15px/1.25 monospace;padding:18px}}</style>{}"


def main(ledger: Path, picture: Path) -> None:
    with Ledger(ledger) as book:
        found = comparison([History.of(book, run) for run in book.runs()], 0.85)
    console = Console(record=True, width=104, highlight=False, file=open("/dev/null", "w"), force_terminal=True)  # noqa: SIM115
    console.print(render(found, 104))
    for sentence in sentences(found):
        console.print(sentence)
    html = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1010, "height": 300})
        page.set_content(PAGE.format(html))
        page.screenshot(path=picture, full_page=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent / "images" / "demo.png")
