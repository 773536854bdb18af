"""The time line of a federation's rounds on the report's page, in Chromium."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import chromium, opened, tab

from ledgers import add_run
from undrift.deploy.timing import Timing, noted
from undrift.ledger.store import Ledger
from undrift.report.page import write_report

pytestmark = pytest.mark.browser

SITES = [Timing("north", 4.0, 1.0, 1.0), Timing("<b>south</b>", 2.0, 0.0, 2.0), Timing("west", 3.0, why="was away")]


@pytest.fixture
def report(tmp_path: Path) -> Path:
    with Ledger(tmp_path / "book.sqlite", create=True) as book:
        runs = [
            add_run(book, "fedavg", 1, [0.5, 0.6], name="deployed", notes=noted(SITES)),
            add_run(book, "fedavg", 2, [0.5, 0.6], name="simulated", notes={"tau": 2.0}),
        ]
        book.flush()
        write_report(book, runs, tmp_path / "page.html")
    return tmp_path / "page.html"


def test_each_site_has_its_bar_and_the_slowest_is_named(report: Path) -> None:
    with chromium() as browser, tab(browser) as (page, errors):
        opened(page, report.as_uri())
        assert page.locator("#slowest").inner_text().startswith("north was the last in 2 of 2 rounds")
        assert page.locator("#timed option").all_inner_texts() == ["deployed"]
        rows = page.locator(".time-row")
        assert [rows.nth(i).locator("span").first.inner_text() for i in range(3)] == ["<b>south</b>", "north", "west"]
        bars = {name: page.locator(f".time-row .span.{name}") for name in ("network", "waited", "worked", "unanswered")}
        assert {name: found.count() for name, found in bars.items()} == {
            "network": 1, "waited": 1, "worked": 2, "unanswered": 1,
        }  # fmt: skip
        width = [bars["worked"].nth(i).bounding_box()["width"] for i in range(2)]  # type: ignore[index]
        assert width[0] == pytest.approx(2 * width[1], abs=1.5)
        page.locator("#time-table summary").click()
        page.locator("#time-table tbody tr").nth(5).wait_for()  # it is filled when it opens
        assert page.locator("#time-table tbody tr").count() == 6
        assert [title for title in page.locator("#notes h3").all_inner_texts() if "seconds" in title] == []
        assert errors == []


def test_a_simulation_has_no_time_line(tmp_path: Path) -> None:
    with Ledger(tmp_path / "book.sqlite", create=True) as book:
        runs = [add_run(book, "fedavg", 1, [0.5], notes={"tau": 2.0})]
        book.flush()
        write_report(book, runs, tmp_path / "page.html")
    with chromium() as browser, tab(browser) as (page, errors):
        opened(page, (tmp_path / "page.html").as_uri())
        assert page.locator("#time-card").is_hidden()
        assert errors == []
