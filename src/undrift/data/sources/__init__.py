"""The data sets undrift can load by name: load them, list them, fetch them. One data set, one file, found by itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput, unknown
from undrift.core.plugins import Registry
from undrift.data.dataset import Dataset
from undrift.data.registry import found
from undrift.data.sources import files
from undrift.data.sources.base import Published, Source
from undrift.data.sources.files import Checksums, OnDownload

SOURCES = Registry("data set", Source, "undrift.data", found(__name__, __path__, Source))


def data_root(explicit: Path | str | None = None) -> Path:
    """Where data sets live: the folder given, else ``UNDRIFT_DATA``, else the user's cache."""
    if explicit:
        return Path(explicit).expanduser()
    if os.environ.get("UNDRIFT_DATA"):
        return Path(os.environ["UNDRIFT_DATA"]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "undrift" / "data"


def load(name: str, root: Path | str | None = None, **options: Any) -> Dataset:
    """``load("mnist")``, ``load("ucihar", form="features")``, ``load("csv", path="my.csv", label="y")``."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name].create(**options).load(data_root(root))


@dataclass(frozen=True)
class SourceRow:
    """What ``undrift data`` shows of a data set."""

    name: str
    title: str
    homepage: str
    licence: str
    size: str
    present: bool
    state: str  # embedded, present, incomplete, missing, yours
    checksums: str  # ok, wrong: FILE, not checked, none published, or empty when there is nothing to check
    files: tuple[str, ...]  # what belongs below the data root


def inventory(root: Path | str | None = None, *, check: bool = False) -> list[SourceRow]:
    """All data sets. ``check`` reads the files that have not been checked yet."""
    where = data_root(root)
    checksums = Checksums(where)
    rows = []
    for kind in SOURCES.values():
        state, sums = "yours", ""
        files: tuple[str, ...] = ()
        if issubclass(kind, Published):
            state, sums, files = _state(kind, where, checksums, check)
        elif not kind.own:
            state = "embedded"
        present = state in ("present", "embedded")
        rows.append(
            SourceRow(kind.name, kind.title, kind.homepage, kind.licence, kind.size, present, state, sums, files)
        )
    return rows


def _state(kind: type[Published], root: Path, checksums: Checksums, check: bool) -> tuple[str, str, tuple[str, ...]]:
    releases = kind().releases()
    release = min(releases, key=lambda each: len(each.missing(root)) / len(each.files))
    files = tuple(f.path for f in release.files)
    missing = release.missing(root)
    if missing:
        return "incomplete" if len(missing) < len(files) else "missing", "", files
    states = {f.path: checksums.check(f, root) if check else checksums.recall(f, root) for f in release.files}
    wrong = [path for path, s in states.items() if s == "wrong"]
    if wrong:
        return "present", f"wrong: {wrong[0]}", files
    if None in states.values():
        return "present", "not checked", files
    return "present", "ok" if "ok" in states.values() else "none published", files


def fetch(name: str, root: Path | str | None = None, progress: OnDownload | None = None) -> None:
    """Download a data set from its official address: goes on where it broke off, checks, unpacks."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    kind = SOURCES[name]
    if not issubclass(kind, Published):
        raise InvalidInput(f"{name}: there is nothing to fetch, it is {'embedded' if not kind.own else kind.title}")
    where = data_root(root)
    releases = kind().releases()
    if any(not release.missing(where) for release in releases):
        return
    files.fetch(name, releases[0], where, progress)
