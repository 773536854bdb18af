"""The tutorials are true: their commands run as they stand, in one folder, and show what the pictures were taken of."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest
import typer

from undrift.cli import app

DOCS = Path(__file__).parent.parent / "docs"
LARGEST = 150_000  # bytes of a picture


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


pictures = script()
PAGES = {page.stem: page for page in pictures.TUTORIALS}
SAYS = {  # what the terminal shows on the way, besides all that makes a command fail
    "skewed-data": r"10 clients, 1,438 samples(?s:.*)SCAFFOLD reached 85 %",
    "two-hospitals": r"never leaves(?s:.*)20 of 20(?s:.*)recorded as heart in runs/ledger.sqlite",
    "my-method": r"FedLeash: 11 of 11 hold(?s:.*)FedLeash \(radius=0.5\) did not reach 80 % in 30 rounds",
}


def test_there_is_one_for_each_of_the_three_users() -> None:
    assert sorted(PAGES) == sorted(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_its_commands_exist(name: str) -> None:
    known = typer.main.get_command(app)
    lines = "\n".join(step.text for step in pictures.steps(PAGES[name]) if step.language == "console")
    commands = [
        shlex.split(re.sub(r"\s*(2>&1|[>&]).*", "", line)) for line in re.findall(r"^undrift (.*)$", lines, flags=re.M)
    ]
    assert commands
    for words in commands:
        command, given = known, words
        while isinstance(command, click.Group):
            assert given[0] in command.commands, words
            command, given = command.commands[given[0]], given[1:]


@pytest.mark.parametrize("name", SAYS)
def test_its_pictures_are_there_and_small(name: str) -> None:
    shown = re.findall(r"\]\(\.\./images/([\w-]+\.png)\)", PAGES[name].read_text(encoding="utf-8"))
    taken = [f"{step.picture}.png" for step in pictures.steps(PAGES[name]) if step.picture]
    assert shown == taken, "a picture stands right behind the commands that it was taken of"
    assert len(shown) >= 3
    for picture in (*shown, "demo.png"):
        assert (DOCS / "images" / picture).stat().st_size < LARGEST


def walked(name: str, folder: Path) -> None:
    said = "".join(shown for _, shown in pictures.walk(pictures.steps(PAGES[name]), folder))
    plain = re.sub(r"\x1b\[[\d;]*m", "", said)
    assert re.search(SAYS[name], plain), plain


@pytest.mark.slow
@pytest.mark.parametrize("name", ["my-method", "skewed-data"])
def test_its_commands_run(name: str, tmp_path: Path) -> None:
    walked(name, tmp_path)


@pytest.mark.deploy
@pytest.mark.skipif("UNDRIFT_ENGINE" not in os.environ, reason="needs the engine's environment")
def test_two_hospitals_train_together(tmp_path: Path) -> None:
    walked("two-hospitals", tmp_path)
