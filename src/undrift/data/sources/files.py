"""Files of published data sets on disk: what belongs where, is it complete and unchanged, fetch it.

Knows nothing of what is in the files. Nothing is ever half-written: downloads go to ``.part`` files, archives are
unpacked into a temporary folder, and both move into place in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput
from undrift.core.files import whole
from undrift.data.bounds import amount, regular
from undrift.data.sources.archives import unpack

CACHE = ".undrift"  # below the data root: decoded data sets and remembered checksums
CHUNK = 1 << 20
LARGEST = 1 << 36  # bytes of a download: six times the largest data set

OnDownload = Callable[[str, int, int | None], None]  # file, bytes so far, bytes in all where known


@dataclass(frozen=True)
class File:
    """A file (or folder) below the data root. ``digest`` is ``md5:...`` or ``sha256:...``, one per release."""

    path: str
    digest: str = ""
    url: str = ""

    def at(self, root: Path) -> Path:
        """Where it is; an IDX file may also lie there unpacked."""
        path = root / self.path
        if not path.exists() and path.suffix == ".gz" and path.with_suffix("").exists():
            return path.with_suffix("")
        return path


@dataclass(frozen=True)
class Release:
    """One form in which a data set is published: the files a reader needs, and the archives they come in."""

    name: str
    files: tuple[File, ...]
    archives: tuple[File, ...] = ()
    into: str = ""  # folder below the root into which the archives are unpacked

    @property
    def entries(self) -> set[str]:
        """What is taken out of the archives: files and folders at their top."""
        return {f.path.removeprefix(f"{self.into}/").split("/")[0] for f in self.files}

    def missing(self, root: Path) -> list[str]:
        return [f.path for f in self.files if not f.at(root).exists()]


def digest_of(path: Path, algorithm: str) -> str:
    regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def atomic_write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


class Checksums:
    """Checksums of files, remembered by size and time so that a file is read only once."""

    def __init__(self, root: Path) -> None:
        self.path = root / CACHE / "checksums.json"
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        self.known: dict[str, list[Any]] = found if isinstance(found, dict) else {}

    def recall(self, file: File, root: Path) -> str | None:
        """``ok``, ``wrong``, ``none published``, or None when it has not been checked."""
        path = file.at(root)
        if not file.digest or path.is_dir() or path.name != Path(file.path).name:
            return "none published"
        entry = self.known.get(file.path)
        stat = path.stat()
        if not isinstance(entry, list) or len(entry) != 3 or entry[:2] != [stat.st_size, stat.st_mtime_ns]:
            return None
        return "ok" if entry[2] in file.digest.split() else "wrong"

    def check(self, file: File, root: Path) -> str:
        state = self.recall(file, root)
        if state is None:
            path = file.at(root)
            algorithm = file.digest.split(":")[0]
            stat = path.stat()
            self.known[file.path] = [stat.st_size, stat.st_mtime_ns, f"{algorithm}:{digest_of(path, algorithm)}"]
            with contextlib.suppress(OSError):  # a read-only data root: check again next time
                atomic_write(self.path, json.dumps(self.known, indent=1))
            state = self.recall(file, root)
            assert state is not None
        return state


def verify(release: Release, root: Path) -> None:
    """Refuse a file that is not the published one."""
    checksums = Checksums(root)
    for file in release.files:
        if checksums.check(file, root) == "wrong":
            raise InvalidInput(
                f"{file.at(root)}: its checksum is not {file.digest} as published: it is cut short, damaged or another "
                "version; fetch it again, or set verify = false to use it as it is"
            )


def fetch(name: str, release: Release, root: Path, progress: OnDownload | None = None) -> None:
    """Download what is missing, check it, unpack it."""
    if not release.missing(root):
        return
    parts = release.archives or release.files
    for file in parts:
        if not file.url:
            raise InvalidInput(f"{name}: it cannot be downloaded automatically; {_by_hand(release, root)}")
        if not (root / file.path).exists():
            _download(name, file, release, root, progress)
    for archive in release.archives:
        if Checksums(root).check(archive, root) == "wrong":
            raise InvalidInput(f"{root / archive.path}: its checksum is not {archive.digest} as published: delete it")
        unpack(root / archive.path, root / release.into, release.entries)
    missing = release.missing(root)
    if missing:
        raise InvalidInput(f"{name}: after unpacking, {root / missing[0]} is still missing")


def _by_hand(release: Release, root: Path) -> str:
    """Which files to put where, for a machine without internet."""
    if release.archives:
        names = ", ".join(f"{a.url or a.path} as {root / a.path}" for a in release.archives)
        return f"put {names} and run the fetch again, or unpack it so that {root / release.files[0].path} exists"
    return "put there by hand: " + ", ".join(
        f"{root / f.path}" + (f" (from {f.url})" if f.url else "") for f in release.files
    )


def _download(name: str, file: File, release: Release, root: Path, progress: OnDownload | None) -> None:
    target = root / file.path
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(file.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            if done and answer.status != 206:  # the server starts from the beginning
                done = 0
            length = answer.headers.get("Content-Length")
            total = done + int(length) if length else None
            with part.open("ab" if done else "wb") as out:
                while chunk := answer.read(CHUNK):
                    out.write(chunk)
                    done += len(chunk)
                    if done > LARGEST:
                        raise InvalidInput(f"{name}: {file.url} does not end: it has sent more than {amount(LARGEST)}")
                    if progress:
                        progress(file.path, done, total)
                out.flush()
                os.fsync(out.fileno())
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416:  # 416: the part is already complete
            raise InvalidInput(f"{name}: {file.url} answers {error.code}; {_by_hand(release, root)}") from None
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise InvalidInput(f"{name}: {file.url} cannot be reached ({reason}); {_by_hand(release, root)}") from None
    else:
        if total is not None and done < total:
            raise InvalidInput(
                f"{name}: the download of {file.url} broke off at {done} of {total} bytes; run it again to go on"
            )
    if file.digest:
        algorithm = file.digest.split(":")[0]
        found = f"{algorithm}:{digest_of(part, algorithm)}"
        if found not in file.digest.split():
            part.unlink()
            raise InvalidInput(f"{name}: {file.url} has {found}, published is {file.digest}: it was thrown away")
    os.replace(part, target)
