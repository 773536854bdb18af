"""The files for containers: every name in them is there, nothing runs as root, and data can only be read."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from undrift.cli import run as command

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "deploy"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n", " ", (FOLDER / "Dockerfile").read_text(encoding="utf-8"))
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in lines]


def test_the_image_is_made_of_what_is_here_and_ends_as_an_ordinary_user() -> None:
    found = instructions()
    known = {"FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in found} <= known
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", found[0][1])  # a version, never "latest"
    for name, rest in found:
        if name == "COPY":
            *sources, _ = shlex.split(rest)
            assert all((ROOT / source).exists() for source in sources), rest
    users = [rest for name, rest in found if name == "USER"]
    assert users
    assert users[-1].isdigit()
    assert int(users[-1]) > 0
    after = [name for name, _ in found][max(i for i, (name, _) in enumerate(found) if name == "USER") :]
    assert "RUN" not in after


def test_the_compose_file_gives_a_site_no_right_that_it_does_not_need() -> None:
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    assert set(content) == {"services"}
    [site] = content["services"].values()
    assert (FOLDER / site["build"]["context"] / site["build"]["dockerfile"]).resolve() == FOLDER / "Dockerfile"
    mounts = dict(volume.split(":", 1) for volume in site["volumes"])
    assert mounts["./data"].endswith(":ro")
    assert site["cap_drop"] == ["ALL"]
    assert site["security_opt"] == ["no-new-privileges:true"]
    assert site["read_only"] is True
    assert not {"privileged", "ports", "network_mode", "pid"} & set(site)
    assert site["command"][:2] == ["site", "start"]


def test_the_commands_in_them_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["site", "start"], ["deploy", "engine"]):
        assert command([*words, "--help"]) == 0
    assert "deploy engine" in (FOLDER / "Dockerfile").read_text(encoding="utf-8")
