"""The page's script: one scope for all its modules, and the same texts and curves as Python makes."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from undrift.analysis.curves import smoothed
from undrift.core.figure import Figure
from undrift.report import words
from undrift.report.page import MODULES, script

FOLDER = Path(str(files("undrift.report") / "assets" / "page"))
NUMBERS = [0.0, 1.0, -1.5, 0.00099, 0.001, 0.8125, 12.345, 99.95, 119.99, 120.0, 999.5, 1000.0, 7200.0, 123456.0,
           999999.5, 1e6, 2.5e9, 3e15, 7.7e21, 1e-7]  # fmt: skip
SHARES = [v / 1600 for v in range(1601)]  # half of them ties at one digit

needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def evaluated(tmp_path: Path, module: str, expression: str, given: Any) -> Any:
    """An expression over what a module of the page gives, worked out by node."""
    (tmp_path / f"{module}.mjs").write_text((FOLDER / f"{module}.js").read_text(encoding="utf-8"), encoding="utf-8")
    main = tmp_path / "main.mjs"
    main.write_text(
        f'import * as page from "./{module}.mjs";\nconst given = {json.dumps(given)};\n'
        f"console.log(JSON.stringify({expression}));\n",
        encoding="utf-8",
    )
    return json.loads(subprocess.run(["node", str(main)], capture_output=True, check=True, text=True).stdout)


@needs_node
@pytest.mark.parametrize(
    ("theirs", "mine"),
    [
        ("amount", words.amount),
        ("percent", words.percent),
        ("dataSize", words.data_size),
        ("operations", words.operations),
        ("duration", words.duration),
        ("rounds", words.rounds),
        ("goal", words.target_words),
        ("times", words.times),
    ],
)
def test_a_number_has_one_text(tmp_path: Path, theirs: str, mine: Any) -> None:
    values = SHARES if theirs in ("goal", "percent") else NUMBERS
    values = [abs(v) for v in values if v < 1e15] if theirs in ("rounds", "times") else values
    found = evaluated(tmp_path, "numbers", f"given.map((v) => page.{theirs}(v))", values)
    assert found == [mine(v) for v in values]


@needs_node
def test_a_figure_has_one_text(tmp_path: Path) -> None:
    for figure, values in ((Figure(), SHARES), (Figure(metric="loss"), NUMBERS)):
        given = {"figure": {"share": figure.share}, "values": values}
        found = evaluated(tmp_path, "numbers", "given.values.map((v) => page.figureText(given.figure, v))", given)
        assert found == [words.figure(figure, v) for v in values]


@needs_node
def test_curves_are_smoothed_alike(tmp_path: Path) -> None:
    values = [0.0, 1.0, None, 1.0, 0.3]
    found = evaluated(tmp_path, "series", "page.smoothed(given, 0.6)", values)
    wanted = smoothed(np.array([math.nan if v is None else v for v in values]), 0.6)
    assert found == [None if math.isnan(v) else pytest.approx(v, rel=1e-12) for v in wanted.tolist()]


def test_the_modules_share_one_scope_without_a_clash() -> None:
    """A function that is declared twice silently replaces the first."""
    assert {path.stem for path in FOLDER.glob("*.js")} == set(MODULES)
    names = re.findall(r"^(?:async )?(?:function|const|let) \$?(\w*)", script(), flags=re.MULTILINE)
    assert len(names) > 50
    assert sorted(names) == sorted(set(names))
    assert not re.search(r"^(import|export)\b", script(), flags=re.MULTILINE)


def test_a_module_comes_after_those_that_it_imports() -> None:
    for place, name in enumerate(MODULES):
        text = (FOLDER / f"{name}.js").read_text(encoding="utf-8")
        assert set(re.findall(r'from "\./(\w+)\.js"', text)) <= set(MODULES[:place])
