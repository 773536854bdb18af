"""What the site is made of is what there is: the catalogue of methods, the API reference, the navigation."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import undrift

DOCS = Path(__file__).parent.parent / "docs"


def script(name: str):  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def test_the_catalogue_of_methods_is_what_they_declare() -> None:
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    assert script("catalogue").filled(page) == page, "run python docs/catalogue.py"


def test_the_reference_names_every_public_name_once() -> None:
    named = re.findall(r"^::: undrift\.(\S+)\.(\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), flags=re.M)
    folders = {"algorithms", "data", "models", "__version__"}
    assert sorted(name for _, name in named) == sorted(set(undrift.__all__) - folders)
    assert {name: home for home, name in named} == {name: undrift._HOME[name] for _, name in named}


def test_the_navigation_names_pages_that_exist() -> None:
    nav = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    pages = re.findall(r"([\w/-]+\.md)", nav)
    assert [page for page in pages if not (DOCS / page).exists()] == []
    assert len(set(pages)) == len(pages)
