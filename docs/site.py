"""What the site needs beyond its pages, as hooks of MkDocs (`mkdocs.yml`). Knows no method and imports no undrift.

The pages are written to be read in the repository too: they link to source files, tests and results beside them. Here
every file that a page links to becomes a page of the site, and links are turned to it; nothing leads out by accident.
Once built, the site is checked: every reference inside it exists, and no page fetches anything from elsewhere.
"""

from __future__ import annotations

import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
SHELF = "files"  # where in the site the repository's other files stand
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".sh": "bash", ".json": "json", ".ipynb": "json"}
FOLDERS = {"docs/algorithms": "methods.md", "docs": "index.md", "examples": "recipes.md"}  # pages that stand for them
LONGEST = 60_000  # characters of a file that are shown


def on_config(config: Any) -> Any:
    """The methods' pages, behind the catalogue."""
    methods = next(entry["Methods"] for entry in config.nav if isinstance(entry, dict) and "Methods" in entry)
    methods += [f"algorithms/{page.name}" for page in sorted((ROOT / DOCS / "algorithms").glob("*.md"))]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file of the repository that a page links to, and for those that they link to in turn."""
    waiting = [place for place in map(_origin, files.src_uris) if place.endswith(".md")]
    seen: set[str] = set()
    while waiting:
        place = waiting.pop()
        for target in _links(place):
            if target in seen or target in FOLDERS or _own(target):
                continue
            seen.add(target)
            files.append(File.generated(config, _uri(target), content=_shown(target)))
            if target.endswith(".md"):
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links of the repository become links of the site."""
    origin = _origin(page.file.src_uri)
    here = posixpath.dirname(page.file.src_uri)
    inside = re.compile(r"(```.*?```|`[^`\n]+`\s*(?!\]))", re.S)  # code is no link

    def turned(match: re.Match[str]) -> str:
        target = _target(origin, match[2])
        if target is None:
            return match[0]
        anchor = "" if match[3] is None or not _uri(target).endswith(".md") else match[3]
        return f"{match[1]}{posixpath.relpath(_uri(target), here or '.')}{anchor}{match[4]}"

    pieces = inside.split(markdown)
    return "".join(piece if piece.startswith("```") else LINK.sub(turned, piece) for piece in pieces)


def on_post_build(config: Any) -> None:
    site = Path(config.site_dir)
    wrong = [
        f"{page.relative_to(site)}: {what}" for page in sorted(site.rglob("*.html")) for what in _faults(page, site)
    ]
    for style in sorted(site.rglob("*.css")):
        found = re.findall(r"url\(\s*['\"]?(https?://[^)]+)|@import\s+['\"](https?://)", style.read_text("utf-8"))
        wrong += [f"{style.relative_to(site)}: fetches {''.join(address)}" for address in found]
    if wrong:
        raise PluginError("the site is not whole:\n  " + "\n  ".join(wrong))


class _References(HTMLParser):
    """What a page fetches, and where its links lead."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "src" in given:
            self.fetched.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(given.get("href", ""))
        if tag == "a":
            self.linked.append(given.get("href", ""))


def _faults(page: Path, site: Path) -> list[str]:
    found = _References()
    found.feed(page.read_text(encoding="utf-8"))
    outside = [f"fetches {address}" for address in found.fetched if urlsplit(address).netloc]
    missing = [
        f"{address} is not there"
        for address in (*found.fetched, *found.linked)
        if not urlsplit(address).scheme and not urlsplit(address).netloc and not _place(address, page, site).exists()
    ]
    return outside + missing


def _place(address: str, page: Path, site: Path) -> Path:
    path = unquote(urlsplit(address).path)
    return site / path[1:] if path.startswith("/") else page.parent / path


def _origin(uri: str) -> str:
    """The place in the repository of a page of the site."""
    if not uri.startswith(f"{SHELF}/"):
        return f"{DOCS}/{uri}"
    place = uri.removeprefix(f"{SHELF}/")
    return place if (ROOT / place).exists() else place.removesuffix(".md")


def _own(place: str) -> bool:
    """Is it a page or a picture of the site as it is?"""
    return place.startswith(f"{DOCS}/") and place.endswith((".md", ".png", ".svg", ".css", ".js"))


def _uri(place: str) -> str:
    """The page of the site for a place in the repository."""
    if place in FOLDERS:
        return FOLDERS[place]
    if _own(place):
        return place.removeprefix(f"{DOCS}/")
    return f"{SHELF}/{place}" if place.endswith(".md") else f"{SHELF}/{place}.md"


def _target(origin: str, link: str) -> str | None:
    """The place in the repository that a link in it means; None: it is no such link."""
    if urlsplit(link).scheme or link.startswith("/"):
        return None
    place = posixpath.normpath(posixpath.join(posixpath.dirname(origin), link))
    return place if place in FOLDERS or (ROOT / place).is_file() else None


def _links(place: str) -> list[str]:
    text = (ROOT / place).read_text(encoding="utf-8")
    return [target for match in LINK.finditer(text) if (target := _target(place, match[2])) is not None]


def _shown(place: str) -> str:
    """A file as a page; of a long one its beginning."""
    text = (ROOT / place).read_text(encoding="utf-8")
    if place.endswith(".md"):
        return text
    cut = f"\n\nThe first {LONGEST:,} of {len(text):,} characters." if len(text) > LONGEST else ""
    language = LANGUAGES.get(Path(place).suffix, "text")
    return f"# {Path(place).name}\n\n`{place}`{cut}\n\n````{language}\n{text[:LONGEST]}\n````\n"
