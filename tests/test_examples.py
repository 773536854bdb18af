"""The programs of `examples/` run as they stand, from anywhere, and print what they promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if not path.name.startswith("cluster"))
PROMISED = {
    "budget": r"SCAFFOLD, seed 3: 16 rounds, 9\.\d MB",
    "deployment": r"(?s)FedTrip.*: \d\d\.\d % accuracy of the global model on clients' own test data after 8 rounds.*"
    r"the same bits: True",
    "lora": r"(?s)everything +\d\d\.\d %, 18,128 bytes.*LoRA and head +\d\d\.\d %, 2,\d\d\d bytes"
    r".*head only +\d\d\.\d %, 336 bytes",
    "lost_and_hostile": r"(?s)all arrive: .* 200 uploads counted, 0 refused.*"
    r"a fifth lies: .* [1-9]\d* uploads counted, [1-9]\d* refused",
    "own_csv": r"FedTrip .* reached 80 % in \d+ rounds?, FedAvg in \d+",
    "own_method": r"FedLeash \(radius=0\.5\) +3 ",
    "own_model": r"(?s)to 80 %: Reached\(rounds=.*saved and loaded: 147 parameters",
    "paper_table": r"(?s)Printed → measured.*FedTrip .* reached 85 %",
    "personal_models": r"fedrep .*\d\d\.\d %",
    "transformer": r"358 of 10182 parameters train and travel",
}


def test_every_program_says_what_it_promises() -> None:
    assert [path.stem for path in PROGRAMS] == sorted(PROMISED)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_program_runs(program: Path, tmp_path: Path) -> None:
    alone = {name: value for name, value in os.environ.items() if not name.startswith("UNDRIFT_")}
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd=tmp_path, env=alone)
    assert done.returncode == 0, done.stderr
    assert re.search(PROMISED[program.stem], done.stdout), done.stdout
    assert not re.search(r"\bnan\b", done.stdout)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_recipes_name_the_program(program: Path) -> None:
    recipes = (EXAMPLES.parent / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert f"(../examples/{program.name})" in recipes
    assert len(program.read_text(encoding="utf-8").splitlines()) <= 80
