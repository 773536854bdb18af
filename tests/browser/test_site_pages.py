"""The built site, opened from disk: it searches, it filters, and it fetches nothing. `make docs` builds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).parents[2] / "site"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="the site is not built: make docs"),
]


@pytest.fixture
def page() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 900})
        wrong: list[str] = []
        page.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        yield page
        browser.close()
        assert wrong == []


def test_the_search_finds_a_method(page: Any) -> None:
    page.goto((SITE / "index.html").as_uri())
    page.click("input[name=query]")
    page.keyboard.type("scaffold")
    page.wait_for_selector(".md-search-result__item a[href*='algorithms/scaffold.html']")


def test_the_catalogue_can_be_filtered(page: Any) -> None:
    page.goto((SITE / "methods.html").as_uri())
    rows = page.locator("article tbody tr:visible")
    everything = rows.count()
    page.get_by_label("personal models").check()
    personal = rows.all_inner_texts()
    assert 0 < len(personal) < everything
    assert any(row.startswith("FedRep") for row in personal)
    assert not any(row.startswith("FedAvg") for row in personal)
    page.get_by_label("personal models").uncheck()
    assert rows.count() == everything
