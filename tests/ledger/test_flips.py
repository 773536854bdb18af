"""Bits that flip on the disk: whatever a command then gives back is what was written, or it says that it is not."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

import undrift
from ledgers import add_run
from undrift import History, InvalidInput, Ledger, cli

SETTING: dict[str, Any] = {"model": "logistic", "clients": 4, "participate": 2, "seed": 3}
CLOCK = {"seconds", "client_seconds", "seal"}


class Bench:
    """A ledger with three runs, whose bits are flipped again and again, and what commands say of it undamaged."""

    def __init__(self, folder: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.path, self._capture, self._folder = folder / "l.sqlite", capture, folder
        for method in ("scaffold", "local", "fedavg"):
            undrift.run(method, rounds=2, ledger=self.path, name=method, **SETTING)
        assert not Path(f"{self.path}-wal").exists()  # the whole ledger is in one file
        self.sound = self.path.read_bytes()
        self.expected = {name: self.tried(name) for name in COMMANDS}
        assert all(code == 0 for code, _, _ in self.expected.values())

    def restore(self, data: bytes) -> None:
        for end in ("-wal", "-shm", "-journal"):
            Path(f"{self.path}{end}").unlink(missing_ok=True)
        self.path.write_bytes(data)

    def tried(self, name: str) -> tuple[int, str, Any]:
        """A command on the ledger as it stands: the exit code, what it complains of, and what it gives."""
        arguments, found = COMMANDS[name]
        line = arguments.format(folder=self._folder).split()
        place = [] if name in ("check", "repair") else ["--ledger"]
        code = cli.run([*line, *place, str(self.path)])
        out, err = self._capture.readouterr()
        return code, err, found(self, out) if code == 0 else None

    def judge(self, name: str, data: bytes) -> bool:
        """Run a command on damaged bytes. True: it was told. A silent difference or a traceback fails."""
        self.restore(data)
        code, err, found = self.tried(name)
        if code == 0:
            assert found == self.expected[name][2], f"{name}: a silent difference"
            return False
        assert code == 2, f"{name}: exit code {code}: {err}"
        assert len([line for line in err.splitlines() if not line.startswith("warning:")]) == 1, err
        assert "Traceback" not in err
        return True


def _shown(bench: Bench, out: str) -> Any:
    return json.loads(out)


def _resumed(bench: Bench, out: str) -> Any:
    """All that a resumed run recorded, without the clock; and the states that it ended with."""
    db = sqlite3.connect(bench.path)
    cursor = db.execute("SELECT * FROM rounds WHERE run = 1 ORDER BY round")
    names = [c[0] for c in cursor.description]
    found = [[{n: v for n, v in zip(names, row, strict=True) if n not in CLOCK} for row in cursor.fetchall()]]
    for table in ("metrics", "client_metrics", "rejections", "pieces"):
        which = "run = 1 AND round = 3" if table == "pieces" else "run = 1"
        found += [sorted(map(repr, db.execute(f"SELECT * FROM {table} WHERE {which}").fetchall()))]
    db.close()
    return found


def _written(name: str) -> Callable[[Bench, str], Any]:
    def read(bench: Bench, out: str) -> str:
        text = (bench.path.parent / name).read_text(encoding="utf-8")
        return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "then", text)

    return read


COMMANDS: dict[str, tuple[str, Callable[[Bench, str], Any]]] = {
    "list": ("show --json", _shown),
    "show": ("show scaffold --json", _shown),
    "export": ("export scaffold local fedavg -f -o {folder}/runs.csv", _written("runs.csv")),
    "report": ("report scaffold local fedavg -f -o {folder}/runs.html", _written("runs.html")),
    "check": ("check", lambda bench, out: out),
    "resume": ("resume scaffold --rounds 3 --quiet", _resumed),
}


def flipped(data: bytes, rng: random.Random) -> bytes:
    """The same with one to four bits flipped."""
    damaged = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(cli, "app", typer.main.get_command(cli.app))  # made once, not once per command
    return Bench(tmp_path, capsys)


def flip(bench: Bench, seed: int, flips: int) -> dict[str, int]:
    """Damage the ledger again and again; how often each command was told."""
    rng = random.Random(seed)
    told = dict.fromkeys(COMMANDS, 0)
    for number in range(flips):
        data = flipped(bench.sound, rng)
        for name in COMMANDS:
            if name not in ("resume", "report") or number % 10 == 0:
                told[name] += bench.judge(name, data)
    return told


@pytest.mark.parametrize("seed", range(3))
def test_flipped_bits_are_never_believed(bench: Bench, seed: int) -> None:
    told = flip(bench, seed, 100)
    assert told["check"] > 30, told  # the check reads all that matters


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(100, 140))
def test_ten_thousand_flipped_bits_are_never_believed(bench: Bench, seed: int) -> None:
    told = flip(bench, seed, 250)
    assert told["check"] > 75, told
    assert told["resume"] > 0, told


def test_bits_flipped_in_the_log_lose_rounds_and_change_none(tmp_path: Path) -> None:
    """What a killed process leaves is a ledger and its log, whose checksums are SQLite's."""
    path, copy = tmp_path / "l.sqlite", tmp_path / "copy.sqlite"
    with Ledger(path, create=True) as ledger:
        add_run(ledger, "fedavg", 1, [at / 10 for at in range(10)], name="r", clients={0: 0.5})
        whole = History.of(ledger, ledger.run("r"))
        main, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    rng, kept = random.Random(1), set()
    for _ in range(60):
        for end in ("", "-shm"):
            Path(f"{copy}{end}").unlink(missing_ok=True)
        copy.write_bytes(main)
        Path(f"{copy}-wal").write_bytes(flipped(log, rng))
        try:
            with Ledger(copy) as ledger:
                found = History.of(ledger, ledger.run("r"))
        except InvalidInput:
            kept.add(-1)  # said
            continue
        assert found.rounds == whole.rounds[: len(found.rounds)]
        assert found.metrics == [m for m in whole.metrics if m[0] <= len(found.rounds)]
        kept.add(len(found.rounds))
    assert len(kept) > 5, kept
