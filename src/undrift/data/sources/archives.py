"""Unpacking published archives: what belongs to the data set is taken out, and nothing else touches the data root."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Collection
from pathlib import Path

from undrift.core.errors import InvalidInput
from undrift.data.bounds import EXPANDS, SMALL, amount, regular


def unpack(archive: Path, folder: Path, wanted: Collection[str]) -> None:
    """Take the wanted files and folders out of the archive, next to their place, and then move them into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpack-") as scratch:
        _extract(archive, Path(scratch), wanted)
        for inner in sorted(Path(scratch).glob("*.zip")):  # the UCI repository puts zips into zips
            _extract(inner, Path(scratch), wanted)
        for name in sorted(wanted):
            entry, target = Path(scratch) / name, folder / name
            if not entry.exists():
                continue  # it may be in another archive; what is missing in the end is said by name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(entry, target)


def _extract(archive: Path, scratch: Path, wanted: Collection[str]) -> None:
    limit = max(SMALL, EXPANDS * regular(archive))
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                _room(sum(info.file_size for info in file.infolist()), limit, archive)
                for info in file.infolist():
                    if _belongs(info.filename, wanted):
                        file.extract(info, scratch)  # zipfile itself strips absolute paths and ..
        else:
            with tarfile.open(archive) as tar:
                size = 0
                for member in tar:
                    size += member.size
                    _room(size, limit, archive)
                    safe = tarfile.data_filter(member, str(scratch))  # refuses what would be written elsewhere
                    if _belongs(safe.name, wanted):
                        tar.extract(safe, scratch, filter="data")
    except InvalidInput:
        raise
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError, RuntimeError, zlib.error) as error:
        raise InvalidInput(f"{archive}: it cannot be unpacked ({error})") from None


def _belongs(name: str, wanted: Collection[str]) -> bool:
    """Is it, or is it inside, one of the wanted; or a zip at the top, which may hold them?"""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        return False
    return parts[0] in wanted or (len(parts) == 1 and parts[0].endswith(".zip"))


def _room(size: int, limit: int, archive: Path) -> None:
    if size > limit:
        raise InvalidInput(f"{archive}: it would unpack to more than {amount(limit)}, {EXPANDS} times its size")
    if size > shutil.disk_usage(archive.parent).free:
        raise InvalidInput(f"{archive}: unpacked it takes {amount(size)}, more than is free on this disk")
