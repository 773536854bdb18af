"""Take the pictures of the documentation from the running thing: `make pictures`. Needs Chromium and the engine.

`python docs/pictures.py tutorial-two` takes those alone whose names hold it.

A tutorial is walked as it stands: its files (a block whose first line is a comment with a file's name) are written, its
commands run in one folder, and the picture that follows a block is what the terminal showed, or, by the ending `-page`,
the page that was written. A command that fails ends it. The tests walk the same way without taking pictures.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).resolve().parent
TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))
WIDTH = 104
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n!\[[^\]]*\]\(\.\./images/([\w-]+)\.png\))?", re.S | re.M)
FILE = re.compile(r"# ([\w-]+\.\w+)\b")
PRELUDE = 'set -euo pipefail\nundrift() { "$PYTHON" -m undrift "$@"; }\npython() { "$PYTHON" "$@"; }\n'
SCREEN = (
    "<style>body{{margin:0;background:#1b1e24;color:#e6e6e6}}pre{{font:15px/1.25 monospace;padding:14px}}</style>{}"
)


@dataclass(frozen=True)
class Step:
    """A block of a tutorial: a file to write, or commands; and the picture of what they show, if there is one."""

    language: str
    text: str
    picture: str


def steps(page: Path) -> list[Step]:
    return [Step(*match.groups(default="")) for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def walk(found: list[Step], folder: Path) -> Iterator[tuple[Step, str]]:
    """Every block of commands with what the terminal showed. What still runs at the end is asked to stop."""
    groups = []
    try:
        for step in found:
            named = FILE.match(step.text)
            if step.language == "console":
                process = _started(step.text, folder)
                groups.append(process.pid)
                shown, _ = process.communicate()
                if process.returncode:
                    raise RuntimeError(f"{step.text}{shown}")
                yield step, shown
            elif named:
                text = step.text.replace("port = 8002", f"port = {_free()}")  # which may be taken on this machine
                (folder / named[1]).write_text(text, encoding="utf-8")
    finally:
        for group in groups:
            try:
                os.killpg(group, signal.SIGTERM)
            except ProcessLookupError:
                continue


def _free() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _started(commands: str, folder: Path) -> subprocess.Popen[str]:
    ours = {"PYTHON": sys.executable, "COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    left = {name: value for name, value in os.environ.items() if name not in ("UNDRIFT_LEDGER", "UNDRIFT_DATA")}
    return subprocess.Popen(
        ["bash", "-c", PRELUDE + commands], cwd=folder, env={**left, **ours}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8", start_new_session=True,
    )  # fmt: skip


def main(only: list[str]) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        demo = [Step("console", "undrift demo --quiet\n", "demo")]
        for found in (demo, *map(steps, TUTORIALS)):
            if only and not any(name in step.picture for name in only for step in found):
                continue
            with tempfile.TemporaryDirectory() as folder:
                for step, shown in walk(found, Path(folder)):
                    if step.picture:
                        _take(browser, step, shown, Path(folder))
        browser.close()


def _take(browser, step: Step, shown: str, folder: Path) -> None:  # type: ignore[no-untyped-def]
    from PIL import Image

    tab = browser.new_page(viewport={"width": 1010, "height": 200}, color_scheme="light")
    if step.picture.endswith("-page"):
        tab.set_viewport_size({"width": 1010, "height": 1000})
        tab.goto(max(folder.glob("*.html"), key=lambda page: page.stat().st_mtime).as_uri())
        tab.wait_for_selector("body[data-drawn]")
        taken = tab.screenshot()
    else:
        tab.set_content(SCREEN.format(_html(step.text, shown)))
        taken = tab.screenshot(full_page=True)
    tab.close()
    path = DOCS / "images" / f"{step.picture}.png"
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size // 1000} kB")


def _html(commands: str, shown: str) -> str:
    """A terminal's screen: the commands after a prompt, then what they printed, in its colours."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=WIDTH, highlight=False, file=io.StringIO(), force_terminal=True)
    for line in commands.splitlines():
        console.print(Text(f"$ {line}", style="bold"))
    console.print(Text.from_ansi(shown), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")


if __name__ == "__main__":
    main(sys.argv[1:])
