"""The report and ``watch`` as a reader meets them, in Chromium."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pages import chromium, opened, pictures, tab, watched
from playwright.sync_api import Browser, Page, expect

from ledgers import add_run, entry
from undrift.analysis.comparison import comparison
from undrift.core.figure import Figure
from undrift.ledger.history import History
from undrift.ledger.store import Ledger
from undrift.report.content import content
from undrift.report.export import export
from undrift.report.page import write_report
from undrift.report.table import cells
from undrift.report.words import target_words

pytestmark = pytest.mark.browser

EVIL = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.sqlite", create=True) as ledger:
        for seed in (1, 2, 3):
            add_run(ledger, "fedavg", seed, [0.2, 0.5, 0.7, 0.8], clients={0: 0.5, 1: 0.9, 2: 1.0})
            add_run(ledger, "fedtrip", seed, [0.3, 0.8, 0.85, 0.9], notes={"xi": 0.4}, clients={0: 0.8, 1: 0.9, 2: 1.0})
        yield ledger


@pytest.fixture
def report(book: Ledger, tmp_path: Path) -> Path:
    path = tmp_path / "report.html"
    write_report(book, book.runs(), path)
    return path


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    """The report opened from disk; the test fails if anything went wrong in the browser."""
    with tab(browser) as (found, troubles):
        opened(found, report.as_uri())
        yield found
        assert troubles == []


def read(page: Page, *keys: str) -> str:
    """What a screen reader is told after some keys on the big chart."""
    page.locator("#curve").focus()
    for key in keys:
        page.keyboard.press(key)
    return page.locator("#say").inner_text()


def test_the_headline_is_the_verdict_and_values_can_be_read(page: Page) -> None:
    expect(page.locator("#headline")).to_contain_text("FedTrip reached 80 % in 2 rounds, 2.00 times sooner than FedAvg")
    assert read(page, "Home") == "round 1: FedTrip 30.0 %, FedAvg 20.0 %"
    assert read(page, "ArrowRight") == "round 2: FedTrip 80.0 %, FedAvg 50.0 %"
    assert read(page, "End") == "round 4: FedTrip 90.0 %, FedAvg 80.0 %"
    expect(page.locator("#tip")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()


def test_hovering_shows_values(page: Page) -> None:
    box = page.locator("#curve .u-over").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 60)
    expect(page.locator("#tip")).to_contain_text("round 4")
    expect(page.locator("#tip")).to_contain_text("FedTrip")
    expect(page.locator("#tip")).to_contain_text("90.0 %")


@pytest.mark.parametrize(
    ("axis", "words"),
    [("bytes", "8 kB"), ("compute", "40 kMAC"), ("seconds", "2 s"), ("rounds", "round 4")],
)
def test_the_axis_can_be_switched(page: Page, axis: str, words: str) -> None:
    page.get_by_role("radio", name=axis, exact=True).check(force=True)
    expect(page.locator("#curve")).to_have_attribute("aria-label", re.compile(f"against {axis}"))
    assert read(page, "End").startswith(f"{words}: FedTrip 90.0 %")


def test_moving_the_target_changes_the_table_and_the_headline(page: Page, book: Ledger) -> None:
    verdict = content(book, book.runs())["verdict"]
    slider = page.get_by_role("slider", name="Target accuracy")
    slider.focus()
    page.keyboard.press("Home")
    expect(page.locator("#headline")).to_have_text(verdict["targets"][0]["headline"])
    page.keyboard.press("End")
    last = verdict["targets"][-1]
    expect(page.locator("#target-words")).to_have_text(target_words(last["target"]))
    expect(page.locator("#costs tbody tr").first).to_contain_text("not reached in 4 rounds")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#target-words")).to_have_text(target_words(verdict["targets"][-2]["target"]))


def test_a_method_can_be_hidden_and_shown_again(page: Page) -> None:
    button = page.get_by_role("button", name="FedAvg", exact=True)
    button.click()
    expect(button).to_have_attribute("aria-pressed", "false")
    assert read(page, "End") == "round 4: FedTrip 90.0 %"
    expect(page.locator("#costs tbody tr.off")).to_have_count(1)
    page.get_by_role("button", name="FedAvg", exact=True).click()
    assert read(page, "Home", "End") == "round 4: FedTrip 90.0 %, FedAvg 80.0 %"


def test_smoothing_is_said_and_never_touches_the_table(page: Page) -> None:
    details = page.locator("#curve-table")
    details.locator("summary").click()
    expect(details.locator("tbody tr")).to_have_count(4)
    before = details.locator("tbody").inner_text()
    page.get_by_role("slider", name="Smoothing").fill("0.5")
    expect(page.locator("#smoothed")).to_have_text("factor 0.50")
    assert read(page, "End") != "round 4: FedTrip 90.0 %, FedAvg 80.0 %"
    assert details.locator("tbody").inner_text() == before
    assert "90.0 ± 0.0 %" in before


def number(text: str) -> object:
    try:
        return pytest.approx(float(text), rel=1e-5)
    except ValueError:
        return text


def test_the_csv_has_every_round(page: Page, book: Ledger, tmp_path: Path) -> None:
    with page.expect_download() as found:
        page.get_by_role("button", name="Download CSV").click()
    rows = list(csv.DictReader(io.StringIO(found.value.path().read_text())))
    assert len(rows) == 24
    assert rows[3]["accuracy of the global model on test"] == "0.8"
    assert rows[3]["bytes_up"] == "1000"
    export([History.of(book, run) for run in book.runs()], tmp_path / "runs.csv")
    exported = list(csv.DictReader(io.StringIO((tmp_path / "runs.csv").read_text())))
    assert list(rows[0]) == list(exported[0])
    for mine, theirs in zip(rows, exported, strict=True):  # the same columns, and they mean the same
        assert [number(v) for v in mine.values()] == [number(v) for v in theirs.values()]


def test_partition_fairness_drift_and_own_series_are_there(page: Page) -> None:
    expect(page.locator("#who circle")).to_have_count(4)  # the counts that are not zero
    page.get_by_role("radio", name="stacked bars").check(force=True)
    expect(page.locator("#who rect")).to_have_count(4)
    page.locator("#who-table summary").click()
    expect(page.locator("#who-table tbody tr").nth(2).locator("td")).to_have_text(["3", "4", "7"])
    expect(page.locator("#fair")).to_contain_text("worst tenth 80.0 %")
    expect(page.locator("#drift h3")).to_have_count(3)
    expect(page.locator("#notes h3")).to_have_text(["ξ"])
    page.get_by_text("The commands that repeat these runs").click()
    expect(page.locator("#commands code").first).to_contain_text("undrift run --algorithm fedavg")


@pytest.mark.parametrize("width", [1200, 380])
def test_what_is_taken_for_what_and_how_sure(browser: Browser, tmp_path: Path, width: int) -> None:
    with Ledger(tmp_path / "counts.sqlite", create=True) as book:
        for method in ("fedavg", "fedtrip"):
            run = add_run(book, method, 1, [0.2])
            more = {"global: confusion": {0: 8.0, 1: 2.0, 3: 5.0}, "global: reliability": {39: 10, 40: 9, 41: 6}}
            book.record(run, replace(entry(2, 0.5), clients=more))
            book.flush()
        path = tmp_path / "counts.html"
        write_report(book, book.runs(), path)
    with tab(browser) as (page, troubles):
        page.set_viewport_size({"width": width, "height": 900})
        opened(page, path.as_uri())
        tips = page.locator("#taken rect[data-tip]")
        expect(tips).to_have_count(8)  # each of the four with the ground under it
        assert tips.nth(3).get_attribute("data-tip") == "class 0 taken for class 1: 2 of 10 (20.0 %)"
        expect(page.locator("#taken-method option")).to_have_text(["FedAvg", "FedTrip"])
        page.locator("#taken-method").select_option(label="FedTrip")
        expect(page.locator("#taken svg")).to_have_attribute("aria-label", re.compile("FedTrip: what each class"))
        page.locator("#taken-table summary").click()
        expect(page.locator("#taken-table tbody tr").first.locator("td")).to_have_text(["8", "2"])
        expect(page.locator("#sure .key li").first).to_have_text("FedAvg: calibration error 30.0 %")
        expect(page.locator("#sure circle")).to_have_count(2)
        page.locator("#legendbar button").first.click()  # a method that is hidden has no dots
        expect(page.locator("#sure circle")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert troubles == []


def test_the_table_has_the_texts_of_compare(page: Page, book: Ledger) -> None:
    found = comparison([History.of(book, run) for run in book.runs()])
    for line, row in zip(page.locator("#costs tbody tr").all(), found.rows, strict=True):
        _, seeds, final, best, *costs, rejected = cells(found, row)
        shown = [text.strip() for text in line.locator("td").all_inner_texts()]
        assert [re.sub(r"[()]", "", text) for text in costs] == shown[: len(costs)]
        assert shown[len(costs) :] == [final, best, seeds, rejected]


def test_a_column_sorts_the_table(page: Page) -> None:
    names = page.locator("#costs tbody th")
    expect(names).to_have_text([re.compile("FedAvg"), re.compile("FedTrip")])
    header = page.locator("#costs thead th").nth(1)
    header.get_by_role("button").click()
    expect(header).to_have_attribute("aria-sort", "ascending")
    expect(names).to_have_text([re.compile("FedTrip"), re.compile("FedAvg")])
    page.keyboard.press("Enter")  # the header keeps the focus
    expect(header).to_have_attribute("aria-sort", "descending")
    expect(names).to_have_text([re.compile("FedAvg"), re.compile("FedTrip")])


def test_the_clients_that_fare_worst_are_named(page: Page) -> None:
    expect(page.locator("#fair .lowest").first).to_contain_text("client 0 of seed 1 50.0 %")


def test_paper_is_white_and_shows_whole_tables(page: Page) -> None:
    page.get_by_role("button", name="Theme: automatic").click()
    page.get_by_role("button", name="Theme: light").click()
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    expect(page.locator(".top")).to_be_hidden()
    assert page.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_a_loss_is_never_a_percentage(browser: Browser, tmp_path: Path) -> None:
    with Ledger(tmp_path / "loss.sqlite", create=True) as book:
        for method in ("fedavg", "fedtrip"):
            run = add_run(book, method, 1, [])
            book.set_status(run, "finished", facts={"loss": "mse"})
            for at, value in enumerate((4.0, 0.25), 1):
                book.record(run, replace(entry(at, 0.5), metrics=[(Figure(metric="loss"), value)]))
        book.flush()
        write_report(book, book.runs(), tmp_path / "loss.html")
    with tab(browser) as (page, troubles):
        opened(page, (tmp_path / "loss.html").as_uri())
        assert read(page, "End") == "round 2: FedAvg 0.25, FedTrip 0.25"
        for place in ("#headline", "#costs", "#runs"):
            expect(page.locator(place)).to_contain_text("0.25")
            expect(page.locator(place)).not_to_contain_text("%")
        expect(page.locator("#h-curve")).to_have_text("Loss and cost")
        expect(page.locator("#figure")).to_contain_text("loss (mean squared error) of the global model on the test set")
        assert troubles == []


def test_everything_is_reached_by_the_keyboard_and_has_a_name(page: Page) -> None:
    for role, name in (
        ("combobox", "Figure"), ("slider", "Smoothing"), ("slider", "Target accuracy"), ("combobox", "Partition"),
        ("checkbox", "±1 s.d. over seeds"), ("button", "Download CSV"), ("region", "Cost to the target, table"),
    ):  # fmt: skip
        expect(page.get_by_role(role, name=name)).to_have_count(1)  # type: ignore[arg-type]
    seen = []
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    for wanted in ("csv", "theme", "figure", "smooth", "band", "curve", "target", "FedAvg"):
        assert wanted in seen
    assert page.evaluate("[...document.querySelectorAll('svg')].every((s) => s.getAttribute('aria-label'))")


def test_names_stay_text(browser: Browser, tmp_path: Path) -> None:
    with Ledger(tmp_path / "evil.sqlite", create=True) as book:
        add_run(
            book, "fedavg", 1, [0.2, 0.5], label=EVIL, name=EVIL, data=EVIL, status="failed", message=EVIL, rejected=1
        )
        write_report(book, book.runs(), tmp_path / "evil.html")
    with tab(browser) as (page, troubles):
        opened(page, (tmp_path / "evil.html").as_uri())
        page.locator("#curve").focus()
        page.keyboard.press("End")
        assert page.evaluate("window.hacked") is None
        assert EVIL in page.locator("#runs").inner_text()
        assert EVIL in page.locator("#say").inner_text()
        assert troubles == []


def test_unfinished_runs_and_gaps_are_drawn(browser: Browser, tmp_path: Path) -> None:
    with Ledger(tmp_path / "half.sqlite", create=True) as book:
        add_run(book, "fedavg", 1, [0.2, None, 0.5])
        add_run(book, "fedavg", 2, [0.2, 0.4], status="stopped", planned=3)
        add_run(book, "scaffold", 1, [], status="running", planned=3)
        add_run(book, "fedtrip", 1, [0.2, 0.9], data="other")
        write_report(book, book.runs(), tmp_path / "half.html")
    with tab(browser) as (page, troubles):
        opened(page, (tmp_path / "half.html").as_uri())
        warnings = page.locator("#warnings").inner_text()
        for words in ("different data", "gave no number", "without fedavg-toy-seed2", "no evaluated round yet"):
            assert words in warnings
        page.locator("#curve").focus()
        page.keyboard.press("Home")
        assert "seed 2 (stopped)" in page.locator("#say").inner_text()
        expect(page.locator("#runs .badge.unfinished")).to_have_count(1)
        assert troubles == []


def test_on_a_phone_nothing_sticks_out(browser: Browser, report: Path) -> None:
    with tab(browser, "phone") as (page, troubles):
        opened(page, report.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        region = page.locator("#target-card .scroll")
        hint = page.locator("#target-card .swipe")  # the table says that it goes on, until it has been seen
        expect(hint).to_be_visible()
        region.evaluate("region => region.scrollTo(10000, 0)")
        expect(hint).to_be_hidden()
        assert troubles == []


def test_light_and_dark_follow_the_system_and_the_button(browser: Browser, report: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with tab(browser, "dark") as (page, troubles):
        opened(page, report.as_uri())
        night = page.evaluate(ground)
        page.get_by_role("button", name="Theme: automatic").click()
        expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
        day = page.evaluate(ground)
        assert day != night
        page.get_by_role("button", name="Theme: light").click()
        assert page.evaluate(ground) == night
        assert troubles == []


def test_pictures_for_the_documentation(browser: Browser, report: Path, tmp_path: Path) -> None:
    made = pictures(browser, report, tmp_path / "images")
    assert {path.name for path in made} >= {"report-light.png", "report-dark.png", "report-phone.png"}
    assert len({path.read_bytes() for path in made}) == len(made)


def test_watch_shows_a_new_round_and_a_new_run(browser: Browser, book: Ledger) -> None:
    run = add_run(book, "scaffold", 1, [0.3, 0.4], status="running", planned=4)
    with book.holding(run), watched(book.path, "*") as address, tab(browser) as (page, troubles):
        opened(page, address)
        expect(page.locator("#live")).to_have_text("live")
        row = page.locator("#runs tbody tr").last
        expect(row).to_contain_text("2 of 4")
        expect(row.locator(".badge")).to_have_text("running")
        page.get_by_role("button", name="FedAvg", exact=True).click()
        book.record(run, entry(3, 0.95))
        book.flush()
        expect(row).to_contain_text("3 of 4", timeout=20_000)
        expect(row).to_contain_text("95.0 %")
        hidden = page.get_by_role("button", name="FedAvg", exact=True)
        expect(hidden).to_have_attribute("aria-pressed", "false")  # what the reader chose stays
        add_run(book, "moon", 1, [0.5])
        expect(page.locator("#runs tbody tr")).to_have_count(8, timeout=20_000)
        assert troubles == []


def test_watch_says_what_it_cannot_read(browser: Browser, book: Ledger) -> None:
    with watched(book.path, "*") as address, tab(browser) as (page, troubles):
        opened(page, address)
        first = book.runs()[0]
        with closing(sqlite3.connect(book.path)) as db:
            db.execute("UPDATE rounds SET drift = '{' WHERE run = ?", (first.id,))
            db.commit()
        book.set_status(first, "finished", "touched")
        expect(page.locator("#trouble")).to_contain_text(f"{first.name} could not be read", timeout=20_000)
        expect(page.locator("#live")).to_have_class(re.compile("lost"))
        expect(page.locator("#runs tbody tr")).to_have_count(5)
        assert troubles == []


def test_watch_before_the_first_round(browser: Browser, tmp_path: Path) -> None:
    with (
        Ledger(tmp_path / "empty.sqlite", create=True) as book,
        watched(book.path) as address,
        tab(browser) as (page, bad),
    ):
        opened(page, address)
        expect(page.locator("#headline")).to_have_text("There are no runs yet.")
        add_run(book, "fedavg", 1, [0.5, 0.6])
        expect(page.locator("#headline")).to_contain_text("FedAvg reached", timeout=20_000)
        assert bad == []
