"""The documentation is true: its Python runs, its commands parse, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import undrift
from undrift.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)


def test_the_python_example_runs(tmp_path: Path) -> None:
    example = next(block for block in blocks(ROOT / "docs" / "python.md", "python") if "undrift.run(" in block)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    accuracy = float(re.search(r"accuracy ([\d.]+)", done.stdout)[1])  # type: ignore[index]
    assert accuracy > 0.85
    assert "Reached(rounds=" in done.stdout


def test_the_method_of_the_documentation_works_in_one_file() -> None:
    source = next(block for block in blocks(ROOT / "docs" / "write-your-own.md", "python") if "FedLeash" in block)
    space: dict[str, object] = {"__name__": "fedleash"}
    sys.modules["fedleash"] = type(sys)("fedleash")
    sys.modules["fedleash"].__dict__.update(space)
    exec(compile(source, "fedleash.py", "exec"), sys.modules["fedleash"].__dict__)
    leashed = sys.modules["fedleash"].FedLeash(radius=0.05)
    result = undrift.run(leashed, clients=6, rounds=3, seed=1)
    free = undrift.run("fedavg", clients=6, rounds=3, seed=1)
    assert result.accuracy < free.accuracy
    assert len(source.splitlines()) < 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_commands_in_the_documentation_exist() -> None:
    import typer

    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    for page in PAGES:
        for block in blocks(page, "console"):
            for command in re.findall(r"^undrift ([a-z-]+)", block, flags=re.M):
                assert command in known, f"{page.name}: undrift {command}"


def test_public_names_are_listed_once_and_exist() -> None:
    assert len(set(undrift.__all__)) == len(undrift.__all__)
    for name in undrift.__all__:
        assert hasattr(undrift, name)
