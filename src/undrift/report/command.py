"""The command that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from undrift.experiment.description import SECTIONS, components


def command(experiment: Mapping[str, Any]) -> str:
    """The command that repeats a run: every setting that is not a default, named."""
    if experiment.get("own"):
        return ""
    known, parts = components(), ["undrift", "run"]
    for section in SECTIONS:
        values = dict(experiment.get(section, {}))
        name = values.pop("name", "")
        defaults = {s.name: s.default for s in known[section].get(name, ())}
        unnamed = "" in known[section]
        parts += [] if unnamed else [f"--{section}", str(name)]
        prefix = "" if unnamed else f"{section}."
        for key, value in values.items():
            if key in defaults and _plain(value) != _plain(defaults[key]):
                parts += _flag(prefix + key, value)
    defaults = {s.name: s.default for s in known["plan"][""]}
    for key, value in experiment.items():
        if key in defaults and key not in SECTIONS and _plain(value) != _plain(defaults[key]):
            parts += _flag(key, value)
    return shlex.join(parts)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _flag(key: str, value: Any) -> list[str]:
    name = key.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list | tuple):
        return [f"--{name}", ",".join(map(str, value))]
    return [f"--{name}", str(value)]
