"""The pages of the methods say what the files say: quoted code is in the file, defaults are the defaults."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from undrift.algorithms import algorithms

ROOT = Path(__file__).resolve().parents[2]
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "algorithms").glob("*.md")}
QUOTING = sorted(name for name, text in PAGES.items() if "## From the paper to the file" in text)


@pytest.mark.parametrize("name", QUOTING)
def test_quoted_code_is_in_the_file(name: str) -> None:
    head = PAGES[name].split("## From the paper to the file")[0]
    files = re.findall(r"`(src/undrift/(?:algorithms|algorithms/parts|core)/\w+\.py)`", head)
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


@pytest.mark.parametrize("name", QUOTING)
def test_the_allowed_values_and_their_reasons_are_those_of_the_class(name: str) -> None:
    for setting in algorithms()[name].settings():
        row = re.search(rf"^\| `{setting.name}` \| .*? \| (.*?) \| (.*?) \|$", PAGES[name], flags=re.M)
        assert row is not None, setting.name
        why = f" ({setting.bounds.why})" if setting.bounds and setting.bounds.why else ""
        assert row[1] == setting.allowed + " or none" * setting.optional + why, setting.name
        assert row[2].replace("&#124;", "|") == setting.help, setting.name


@pytest.mark.parametrize("name", QUOTING)
def test_the_stated_cost_is_that_of_the_class(name: str) -> None:
    cost = algorithms()[name].cost
    stated = (cost.down, cost.up, cost.kept, cost.gradients, cost.forwards, cost.flops)
    assert "| " + " | ".join(f"`{formula}`" for formula in stated) + " |\n" in PAGES[name]
    assert cost.head_gradients == "0" or f"`{cost.head_gradients}`" in PAGES[name]
