"""The pages of the methods say what the files say: quoted code is in the file, defaults are the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from undrift.algorithms import algorithms
from undrift.core.errors import InvalidInput

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "algorithms").glob("*.md")}
QUOTING = sorted(name for name, text in PAGES.items() if "## From the paper to the file" in text)
REASONED = (  # averaging, regularisation, control variates, personal heads
    "fedavg", "fedprox", "fedtrip", "fedtr", "fedadm", "feddyn", "moon", "scaffold", "fedntd", "fedgkd", "feddane",
    "feddc", "fedpvr", "fedrep", "fedproto", "mime", "mimelite",
)  # fmt: skip


@pytest.mark.parametrize("name", QUOTING)
def test_quoted_code_is_in_the_file(name: str) -> None:
    head = PAGES[name].split("## From the paper to the file")[0]
    files = re.findall(r"`(src/undrift/(?:algorithms|core)/\w+\.py)`", head)
    assert files[0].startswith("src/undrift/algorithms/")
    source = " ".join(" ".join((ROOT / file).read_text(encoding="utf-8") for file in files).split())
    table = PAGES[name].split("## From the paper to the file")[1].split("##")[0]
    quoted = re.findall(r"\| `([^`]+)` \|$", table, flags=re.M)
    assert quoted
    for code in quoted:
        assert " ".join(code.replace("&#124;", "|").split()) in source, code


@pytest.mark.parametrize("name", QUOTING)
def test_defaults_are_those_of_the_class(name: str) -> None:
    for setting in algorithms()[name].settings():
        row = re.search(rf"^\| `{setting.name}` \| (.*?) \|", PAGES[name], flags=re.M)
        assert row is not None, setting.name
        default = setting.default
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        assert row[1] == (shown if isinstance(default, str) else shown.lower()), setting.name


@pytest.mark.parametrize("name", REASONED)
def test_ranges_and_their_reasons_are_those_of_the_class(name: str) -> None:
    for setting in algorithms()[name].settings():
        allowed = setting.allowed + " or none" * setting.optional
        if setting.bounds and setting.bounds.why:
            allowed += f" ({setting.bounds.why})"
        assert re.search(rf"^\| `{setting.name}` \| .*? \| {re.escape(allowed)} \|", PAGES[name], flags=re.M), allowed


@pytest.mark.parametrize("name", REASONED)
def test_what_is_out_of_range_is_refused_with_the_range_and_the_reason(name: str) -> None:
    cls = algorithms()[name]
    for setting in cls.settings():
        if setting.bounds is None:
            assert setting.type not in (int, float), setting.name
            continue
        assert setting.bounds.why
        whole = setting.type is int
        low, high = setting.bounds.low, setting.bounds.high
        bad: list[float] = [low - 1, *([low] if setting.bounds.open_low else []), *([] if whole else [float("nan")])]
        bad += [high + 1, *([high] if setting.bounds.open_high else [])] if high < float("inf") else []
        for value in bad:
            sentence = re.escape(f"{setting.allowed} ({setting.bounds.why})")
            with pytest.raises(InvalidInput, match=rf"{setting.name} = .*: it must be {sentence}"):
                cls.create(**{setting.name: int(value) if whole else float(value)})


@pytest.mark.parametrize("name", QUOTING)
def test_the_stated_cost_is_that_of_the_class(name: str) -> None:
    cost = algorithms()[name].cost
    stated = (cost.down, cost.up, cost.kept, cost.gradients, cost.forwards, cost.flops)
    assert "| " + " | ".join(f"`{formula}`" for formula in stated) + " |\n" in PAGES[name]
    assert cost.head_gradients == "0" or f"`{cost.head_gradients}`" in PAGES[name]
