"""Looking at a ledger writes nothing, works where nothing can be written, and sees one moment while others write."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ledgers import add_run, entry
from undrift import History, InvalidInput, Ledger
from undrift.cli import run as command
from undrift.ledger import opening
from undrift.ledger.lock import LockFile


def on_read_only_disk(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder mounted read-only, in a namespace of its own."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rm", "true"], capture_output=True).returncode:
        pytest.skip("mounting a folder read-only needs user namespaces")
    mount = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c "$3"'
    return subprocess.run(
        [unshare, "-rm", "sh", "-c", mount, "sh", str(folder), sys.executable, script], capture_output=True, text=True
    )


@pytest.mark.parametrize("unfinished", [False, True], ids=["closed", "with rounds in its log"])
def test_a_ledger_on_a_read_only_disk_can_be_looked_at(tmp_path: Path, unfinished: bool) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    with Ledger(tmp_path / "l.sqlite", create=True) as ledger:
        add_run(ledger, "fedavg", 1, [0.5, 0.6, 0.7], name="r")
        if unfinished:  # what a killed process leaves
            shutil.copy(tmp_path / "l.sqlite-wal", folder / "l.sqlite-wal")
            shutil.copy(tmp_path / "l.sqlite", folder / "l.sqlite")
    if not unfinished:
        shutil.copy(tmp_path / "l.sqlite", folder / "l.sqlite")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    path = str(folder / "l.sqlite")
    script = f"""
import gzip, json
from pathlib import Path
import undrift
from undrift.cli import run
from undrift.report.watch import Follower
with undrift.Ledger({path!r}) as ledger:
    found = ledger.run("r")
    assert undrift.History.of(ledger, found).final == 0.7
    try:
        ledger.set_status(found, "failed")
    except undrift.InvalidInput as error:
        assert "cannot be written" in str(error), error
    else:
        raise AssertionError("a ledger was changed that cannot be")
assert run(["show", "--ledger", {path!r}]) == 0
assert run(["report", "--ledger", {path!r}, "-o", {str(tmp_path / "report.html")!r}]) == 0
follower = Follower(Path({path!r}), ())
follower.start()
follower.stop()
shown = json.loads(gzip.decompress(follower.latest()[1]))
assert ([one["name"] for one in shown["runs"]], shown["trouble"]) == (["r"], "")
assert run(["run", "--rounds", "1", "--quiet", "--ledger", {path!r}]) == 2
"""
    done = on_read_only_disk(folder, script)
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_looking_at_an_empty_file_writes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.sqlite"
    path.touch()
    assert command(["show", "--ledger", str(path)]) == 2
    assert "empty: no run has been recorded" in capfd.readouterr().err
    assert os.listdir(tmp_path) == ["empty.sqlite"]
    assert path.read_bytes() == b""


def test_another_programs_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(InvalidInput, match="not a ledger of undrift"):
        Ledger(path)
    with pytest.raises(InvalidInput, match="not a ledger of undrift"):
        Ledger(path, create=True)
    assert path.read_bytes() == before


def test_what_is_not_a_file_gets_a_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidInput, match="not a file"):
        Ledger(tmp_path / "pipe")


def test_links_to_a_ledger_share_its_locks(tmp_path: Path) -> None:
    path, link = tmp_path / "l.sqlite", tmp_path / "elsewhere" / "another name.sqlite"
    link.parent.mkdir()
    link.symlink_to(path)
    with Ledger(path, create=True) as ledger, Ledger(link) as same:
        run = ledger.add("r", {}, {})
        script = (
            "import sys; from undrift import Ledger; book = Ledger(sys.argv[1]); print(book.is_held(book.run('r')))"
        )
        with ledger.holding(run):
            assert same.is_held(run)
            with pytest.raises(InvalidInput, match="written by another process"), same.holding(run):
                pass
            asked = subprocess.run([sys.executable, "-c", script, str(link)], capture_output=True, text=True)
            assert asked.stdout.strip() == "True", asked.stderr
        assert not same.is_held(run)
    assert LockFile.of(path) is LockFile.of(link)
    assert not list(link.parent.glob("*-lock"))


# For every line that it is sent: two more rounds of a run, and a new run.
WRITER = """
import sys
sys.path[:0] = sys.argv[2:]
from ledgers import entry
from undrift import Ledger
with Ledger(sys.argv[1]) as book:
    long = book.add("long", {"rounds": 1000}, {"label": "x"})
    for number, line in enumerate(sys.stdin):
        for at in (2 * number + 1, 2 * number + 2):
            book.record(long, entry(at, at / 100))
        book.flush()
        book.set_status(book.add(f"other-{number}", {"rounds": 20}, {"label": "x"}), "finished")
        print("done", flush=True)
"""


def test_a_reader_sees_one_moment_while_another_process_writes(tmp_path: Path) -> None:
    path = tmp_path / "l.sqlite"
    with Ledger(path, create=True) as ledger:
        tests = str(Path(__file__).resolve().parents[1])
        writer = [sys.executable, "-c", WRITER, str(path), tests]
        with subprocess.Popen(writer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

            def write() -> None:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("go on\n")
                process.stdin.flush()
                assert process.stdout.readline() == "done\n"

            def seen() -> list[tuple[str, int, str]]:
                return [(run.name, run.rounds, run.status) for run in ledger.runs()]

            write()
            for number in range(1, 6):
                with ledger.reading():
                    first, runs = seen(), ledger.runs()
                    write()
                    assert seen() == first
                    histories = [History.of(ledger, run) for run in runs]
                    assert [(h.name, len(h.rounds), h.status) for h in histories][1:] == first[1:]
                    assert len(histories[0].rounds) == first[0][1] == 2 * number
                    assert len(histories[0].metrics) == 4 * number
                assert seen() != first
            process.communicate()
        assert process.returncode == 0


def test_the_log_of_a_ledger_is_cleared_once_nobody_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "LOG", 200_000)
    monkeypatch.setattr(opening, "PATIENCE", (0, 0))
    path, log = tmp_path / "l.sqlite", tmp_path / "l.sqlite-wal"
    with Ledger(path, create=True) as ledger, Ledger(path) as other:
        run = ledger.add("r", {"rounds": 400}, {})
        with other.reading():  # which keeps SQLite from starting the log anew
            other.runs()
            for at in range(1, 100):
                ledger.record(run, entry(at, 0.5))
            ledger.flush()
            assert log.stat().st_size > 200_000
        ledger.record(run, entry(100, 0.5))
        ledger.flush()
        assert log.stat().st_size == 0


def test_one_who_reads_for_ever_holds_nobody_up_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is waited for once, and then not for a while."""
    monkeypatch.setattr(opening, "LOG", 50_000)
    monkeypatch.setattr(opening, "PATIENCE", (0, 0))
    path, tried = tmp_path / "l.sqlite", []
    with Ledger(path, create=True) as ledger, Ledger(path) as other:
        run = ledger.add("r", {"rounds": 400}, {})
        with ledger.holding(run), other.reading():
            other.runs()
            os.utime(f"{path}-lock", (0, 0))
            for at in range(1, 60):
                before = os.stat(f"{path}-lock").st_mtime
                ledger.record(run, entry(at, 0.5))
                ledger.flush()
                tried.append(os.stat(f"{path}-lock").st_mtime != before)
    assert sum(tried) == 1
