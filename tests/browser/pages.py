"""The report in a real browser: Chromium by Playwright, and the pictures of it that the documentation shows.

``python tests/browser/pages.py docs/images`` makes those pictures from real runs.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from undrift.ledger.store import Ledger
from undrift.report.page import write_report
from undrift.report.watch import Follower, Server

SIZES = {"light": (1200, 860), "dark": (1200, 860), "phone": (390, 844)}


@contextmanager
def chromium() -> Iterator[Browser]:
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=arguments)
        yield browser
        browser.close()


@contextmanager
def tab(browser: Browser, kind: str = "light") -> Iterator[tuple[Page, list[str]]]:
    """A page in one of the sizes and colour schemes, and all that went wrong in it."""
    width, height = SIZES[kind]
    context: BrowserContext = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if kind == "dark" else "light",
        has_touch=kind == "phone",
        accept_downloads=True,
    )
    page, troubles = context.new_page(), list[str]()
    page.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    try:
        yield page, troubles
    finally:
        context.close()


def opened(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("body[data-drawn]")


@contextmanager
def watched(path: Path, *names: str) -> Iterator[str]:
    """The address of ``undrift watch`` for some runs of a ledger."""
    follower = Follower(path, names)
    with Server(follower, "127.0.0.1", 0, None) as server:
        follower.start()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()
            follower.stop()


def pictures(browser: Browser, report: Path, folder: Path) -> list[Path]:
    """The top of a report in light, dark and on a phone, and its sections."""
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for kind in SIZES:
        with tab(browser, kind) as (page, troubles):
            opened(page, report.as_uri())
            if kind != "phone":
                box = page.locator("#curve").bounding_box()
                assert box is not None
                page.mouse.move(box["x"] + 0.55 * box["width"], box["y"] + 0.4 * box["height"])
            made.append(folder / f"report-{kind}.png")
            page.screenshot(path=made[-1])
            for section in ("target", "who", "fair", "drift") if kind == "light" else ():
                page.mouse.move(0, 0)
                made.append(folder / f"report-{section}.png")
                page.locator(f"#{section}-card").screenshot(path=made[-1])
            assert not troubles, troubles
    return made


def _documentation(folder: Path) -> None:
    from undrift import cli

    with tempfile.TemporaryDirectory() as scratch:
        ledger, report = Path(scratch) / "demo.sqlite", Path(scratch) / "demo.html"
        what = "compare -a fedavg,fedtrip,scaffold,feddyn --seeds 1..5 --target 0.85 --runtime serial -q"
        where = "--clients 30 --participate 6 --rounds 60 --partition dirichlet --partition.alpha 0.1 --batch-size 16"
        assert cli.run([*what.split(), *where.split(), "--ledger", str(ledger)]) == 0
        with Ledger(ledger) as book:
            write_report(book, book.runs(), report)
        with chromium() as browser:
            for path in pictures(browser, report, folder):
                print(path, path.stat().st_size)


if __name__ == "__main__":
    _documentation(Path(sys.argv[1]))
