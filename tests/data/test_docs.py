"""The commands of docs/data.md make the pictures shown beside them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from undrift.cli import run
from undrift.data import PARTITIONERS
from undrift.models import catalogue

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = re.findall(r"^undrift (partition .*)$", (DOCS / "data.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_every_partition_has_a_picture_and_its_command() -> None:
    text = (DOCS / "data.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\]\((images/[^)]*)\)", text))
    assert shown == {picture.removeprefix("docs/") for picture in re.findall(r"--picture (\S+)", text)}
    assert all((DOCS / picture).is_file() for picture in shown)
    assert {re.search(r"--partition (\S+)", c)[1] for c in COMMANDS} == set(PARTITIONERS)  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in COMMANDS if "--data digits" in c])
def test_commands_work(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/images").mkdir(parents=True)
    assert run(shlex.split(command)) == 0
    assert len(list((tmp_path / "docs/images").iterdir())) == 1


def test_model_table_is_true() -> None:
    text = (DOCS / "models.md").read_text(encoding="utf-8")
    for row in catalogue():
        line = next(line for line in text.splitlines() if line.startswith("| `") and f"`{row.name}`" in line)
        assert f"| {row.parameters:,} | {row.macs:,} |" in line
