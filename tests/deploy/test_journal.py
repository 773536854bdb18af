"""The log of a site: lines follow from one another, and whoever changes one is found out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from undrift.core.errors import InvalidInput
from undrift.deploy.journal import BEGIN, Journal, entries, verify


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    for number in range(5):
        journal.add("answered", round=number, run="trial")
    journal.close()
    return path


def test_what_was_added_is_there_and_holds(path: Path) -> None:
    assert [line["round"] for line in entries(path)] == [0, 1, 2, 3, 4]
    assert verify(path).lines == 5
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_empty_journal_holds(tmp_path: Path) -> None:
    Journal(tmp_path / "journal.jsonl").close()
    assert verify(tmp_path / "journal.jsonl").head == BEGIN


def test_a_journal_goes_on_where_it_was(path: Path) -> None:
    before = verify(path)
    journal = Journal(path)
    assert journal.head == before.head
    journal.add("answered", round=5)
    journal.close()
    assert verify(path).lines == 6


@pytest.mark.parametrize("line", range(4))
@pytest.mark.parametrize("change", ["edit", "remove", "insert", "swap"])
def test_a_changed_line_is_found(path: Path, line: int, change: str) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    if change == "edit":
        lines[line] = lines[line].replace(b'"run": "trial"', b'"run": "other"')
    elif change == "remove":
        del lines[line]
    elif change == "insert":
        lines.insert(line, lines[line])
    else:
        lines[line], lines[line + 1] = lines[line + 1], lines[line]
    path.write_bytes(b"".join(lines))
    with pytest.raises(InvalidInput, match=r"line \d does not follow"):
        verify(path)
    with pytest.raises(InvalidInput, match="does not follow"):
        Journal(path)


def test_a_last_line_that_is_taken_away_leaves_another_head(path: Path) -> None:
    head = verify(path).head
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert verify(path).head != head


def test_a_line_that_a_crash_left_unfinished_is_cut_off_and_said_so(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"line": 6, "at": "20')
    Journal(path).close()
    last = list(entries(path))[-1]
    assert (last["line"], last["what"], last["bytes"]) == (6, "an unfinished line was cut off", 21)


FULL = """
import resource, signal, sys
from pathlib import Path
from undrift.deploy.journal import Journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
journal = Journal(path)
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, resource.RLIM_INFINITY))
try:
    journal.add("answered", round=6)
except OSError:
    print("refused", path.stat().st_size == size)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.add("answered", round=7)
"""


def test_where_there_is_no_room_nothing_is_half_written(path: Path) -> None:
    """The limit of a file's size stands for a full disk: a part of the line can be written, and the rest cannot."""
    done = subprocess.run([sys.executable, "-c", FULL, path], check=True, capture_output=True, text=True)
    assert done.stdout == "refused True\n"
    assert [line["round"] for line in entries(path)] == [0, 1, 2, 3, 4, 7]
    assert json.loads(path.read_text().splitlines()[-1])["line"] == 6
