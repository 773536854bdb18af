"""The dependency rule of the design: algorithms -> core -> torch; runtimes, deploy -> core."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "undrift"

# What a layer may import besides the standard library. Layers with "*" may use any third-party package.
ALLOWED = {
    "algorithms": {"torch", "undrift.core", "undrift.algorithms.parts"},
    "core": {"torch", "numpy", "safetensors", "undrift.core"},
    "runtimes": {"*", "undrift.core", "undrift.runtimes", "undrift.version"},
    "deploy": {"*", "undrift.core", "undrift.runtimes", "undrift.deploy"},
    "data": {"*", "undrift.core", "undrift.data"},
    "ledger": {"*", "undrift.core", "undrift.ledger"},
    "models": {"*", "undrift.core", "undrift.data", "undrift.models"},
}
# Above them: a floor may use all floors below it.
FLOORS = (("experiment",), ("analysis", "papers"), ("studies", "report"), ("cli",))
for _floor in FLOORS:
    _below = {f"undrift.{name}" for name in (*ALLOWED, *_floor)}
    ALLOWED |= {name: {"*", "undrift.version", *_below} for name in _floor}

# Packages that only some folders, or some files of them, may use.
ONLY = {
    "matplotlib": {"report"},
    "rich": {"report", "cli"},
    "typer": {"cli"},
    "click": {"cli"},
    "nvflare": {"deploy/nvflare.py", "deploy/kits.py", "deploy/engine.py", "deploy/admin.py"},
    "flwr": {"deploy/flower.py"},
    "ray": {"runtimes/ray.py", "runtimes/raycluster.py", "runtimes/raysum.py", "runtimes/raytask.py"},
}
LONGEST = 400  # lines of a file


def imports(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and absolute name of all that a module of ``package`` imports, at any depth of nesting."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            # "from undrift import data" imports undrift.data: the name counts, not only the package.
            yield from ((node.lineno, f"{base}.{alias.name}" if base == "undrift" else base) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "__import__"):
            yield node.lineno, ast.unparse(node.args[0]).strip("'\"") if node.args else "?"


def violations(source: str, layer: str, package: str) -> list[str]:
    """The imports of a module that its layer may not make, as ``line: name``."""
    allowed = ALLOWED[layer]

    def fits(name: str) -> bool:
        top = name.split(".")[0]
        if top == "undrift":
            return any(name == a or name.startswith(a + ".") for a in allowed)
        return top in sys.stdlib_module_names or top in allowed or "*" in allowed

    return [f"{line}: {name}" for line, name in imports(source, package) if not fits(name)]


@pytest.mark.parametrize("layer", ALLOWED)
def test_layers_import_only_what_the_design_allows(layer: str) -> None:
    # The registry of algorithms, algorithms/__init__.py, has to import its own modules and is no algorithm. What a user
    # names is imported by name, in one file alone.
    named = (PACKAGE / "algorithms" / "__init__.py", PACKAGE / "core" / "plugins.py")
    found = []
    for path in sorted((PACKAGE / layer).rglob("*.py")):
        if path in named:
            continue
        package = ".".join(["undrift", *path.relative_to(PACKAGE).parent.parts])
        found += [
            f"{path.relative_to(PACKAGE)}:{v}" for v in violations(path.read_text(encoding="utf-8"), layer, package)
        ]
    assert found == []


def test_every_folder_has_its_rule() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ALLOWED)


def test_packages_are_used_where_they_belong() -> None:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE)
        package = ".".join(["undrift", *where.parent.parts])
        for line, name in imports(path.read_text(encoding="utf-8"), package):
            places = ONLY.get(name.split(".")[0])
            if places is not None and not {where.parts[0], where.as_posix()} & places:
                found.append(f"{where}:{line}: {name}")
    assert found == []


def test_no_file_is_longer_than_one_can_read() -> None:
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {str(path.relative_to(PACKAGE)): lines for path, lines in sizes.items() if lines > LONGEST} == {}


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("algorithms", "import numpy"),
        ("algorithms", "import undrift"),
        ("algorithms", "from undrift import data"),
        ("algorithms", "from undrift.data import sources"),
        ("algorithms", "from undrift.algorithms.fedavg import FedAvg"),
        ("algorithms", "from .fedavg import FedAvg"),
        ("algorithms", "from . import fedavg"),
        ("algorithms", "from ..runtimes import serial"),
        ("algorithms", "def f():\n    import undrift.cli"),
        ("algorithms", "import importlib\nimportlib.import_module('undrift.ledger')"),
        ("core", "import pandas"),
        ("core", "from undrift.algorithms import fedavg"),
        ("core", "from undrift.corelike import x"),
        ("runtimes", "from undrift.deploy import server"),
        ("runtimes", "from undrift.data import sources"),
        ("deploy", "from undrift.algorithms import scaffold"),
        ("deploy", "from undrift import experiment"),
        ("data", "from undrift.models import spec"),
        ("ledger", "from undrift.experiment import prepare"),
        ("models", "from undrift.runtimes import serial"),
        ("experiment", "from undrift.report import words"),
        ("analysis", "from undrift.studies import compare"),
        ("studies", "from undrift.cli import flags"),
        ("report", "import undrift.cli"),
    ],
)
def test_a_forbidden_import_is_found(layer: str, line: str) -> None:
    assert violations(line, layer, f"undrift.{layer}") != []


@pytest.mark.parametrize(
    ("layer", "line"),
    [
        ("algorithms", "import math\nimport torch.nn.functional as F\nfrom undrift.core.records import State"),
        ("algorithms", "from ..core import vector\nfrom undrift import core"),
        ("algorithms", "from undrift.algorithms.parts.budget import Outlook"),
        ("algorithms", "from undrift.algorithms.parts.centroids import distance\nfrom .parts import sharing"),
        ("core", "import numpy as np\nimport safetensors.torch\nfrom . import rng\nfrom .rng import key"),
        ("runtimes", "import ray\nfrom undrift.core import loop\nfrom .serial import Serial"),
        ("deploy", "import flwr\nfrom undrift.core import loop\nfrom undrift.runtimes import wrappers"),
    ],
)
def test_an_allowed_import_is_let_through(layer: str, line: str) -> None:
    assert violations(line, layer, f"undrift.{layer}") == []


def fresh(program: str) -> str:
    """What a program prints in a Python of its own."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("module", ["undrift", "undrift.core.errors"])
def test_what_an_engine_imports_pulls_neither_torch_nor_numpy(module: str) -> None:
    program = f"import sys, {module}; print(sorted({{'torch', 'numpy', 'safetensors'}} & set(sys.modules)))"
    assert fresh(program) == "[]"


def test_every_public_name_is_there_when_asked_for() -> None:
    import undrift

    assert sorted(undrift._HOME) == sorted(undrift.__all__)
    for name in undrift.__all__:
        home = undrift._HOME[name]
        found = getattr(import_module(f"undrift.{home}"), name) if home else import_module(f"undrift.{name}")
        assert getattr(undrift, name) is found
    assert set(undrift.__all__) <= set(dir(undrift))
    with pytest.raises(AttributeError, match="has no attribute 'Dateset'"):
        undrift.Dateset  # noqa: B018


def test_star_import_gives_the_public_names() -> None:
    assert fresh("from undrift import *; print(run.__name__, Dataset.__name__, algorithms.__name__)") == (
        "run Dataset undrift.algorithms"
    )


def test_the_lowest_versions_that_are_tried_are_those_that_are_allowed() -> None:
    root = PACKAGE.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [
        *project["dependencies"],
        *(one for name in extras if name not in ("dev", "ray", "flower") for one in extras[name]),
    ]
    allowed = dict(found.groups() for one in asked if (found := re.match(r"([\w-]+)>=([\d.]+)", one)))
    lock = (root / "requirements-lowest.lock").read_text(encoding="utf-8")
    tried = dict(re.findall(r"^([\w-]+)==([\d.]+)$", lock, flags=re.M))
    assert allowed.pop("torch") == "2.6"
    wrong = {name: tried.get(name) for name, version in allowed.items() if not _same(tried.get(name, ""), version)}
    assert wrong == {}


def _same(version: str, other: str) -> bool:
    """Versions that differ by trailing zeros are one."""
    return re.sub(r"(\.0)+$", "", version) == re.sub(r"(\.0)+$", "", other)
