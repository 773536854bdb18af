"""The report: one HTML file with its data, its style and its charts in it. No network, no other files.

The page's scripts are allowed by their hashes, and nothing else may run or be loaded.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.core.files import refuse_existing, written
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.report.content import content


def write_report(
    ledger: Ledger, runs: Sequence[Run], path: str | Path, *, force: bool = False, target: float | None = None
) -> None:
    """Write the report of some runs to one file."""
    refuse_existing(path, force)
    if not runs:
        raise InvalidInput(f"the ledger {ledger.path} holds no runs yet")
    text = page(content(ledger, runs, target=target))
    with written(path, force=force) as temporary:
        temporary.write_text(text, encoding="utf-8")


def page(values: Mapping[str, Any], *, live: str | None = None) -> str:
    """The page as text. ``live`` is the version of the data when it is served by ``undrift watch``."""
    verdict = values["verdict"]
    headline = verdict["targets"][verdict["chosen"]]["headline"] if verdict else ""
    parts = {
        "policy": policy(),
        "version": html.escape(_version()),
        "title": html.escape(values["title"]),
        "headline": html.escape(headline),
        "style": _asset("uplot.min.css") + _asset("page.css"),
        "data": _embedded(values),
        "library": _asset("uplot.min.js"),
        "script": script(),
    }
    text = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))
    return text if live is None else text.replace("<body>", f'<body data-live="{html.escape(live)}">', 1)


def _embedded(values: Mapping[str, Any]) -> str:
    """JSON that cannot end its script element, whatever the names in it are."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def policy() -> str:
    """What the page may do: run its own two scripts, and ask the server it came from."""
    hashes = " ".join(map(_hash, (_asset("uplot.min.js"), script())))
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


# The page's modules, each after those that it imports.
MODULES = (
    "numbers", "series", "dom", "view", "tables", "charts", "top", "curve", "clients", "timeline", "runs",
    "download", "main",
)  # fmt: skip


@cache
def script() -> str:
    """The modules as one script, since a page from disk may import nothing: one scope for all, closed to the rest."""
    modules = (_asset(f"page/{name}.js") for name in MODULES)
    joined = "\n".join(re.sub(r"^(import\b.*?;\n|export )", "", m, flags=re.MULTILINE | re.DOTALL) for m in modules)
    return f'"use strict";\n(() => {{\n{joined}}})();\n'


@cache
def _asset(name: str) -> str:
    return (files("undrift.report") / "assets" / name).read_text(encoding="utf-8")


def _version() -> str:
    try:
        return version("undrift")
    except PackageNotFoundError:
        return "(not installed)"
