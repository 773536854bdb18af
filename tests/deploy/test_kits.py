"""Kits: bad plans get one sentence, keys go to their owners alone, and what a kit allows is what is needed."""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from undrift.core.errors import InvalidInput
from undrift.deploy import engine, kits

PLAN = """
name = "heart"
host = "fl.example.org"
port = 8443
organisation = "clinics"
sites = ["north", "south"]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "federation.toml"
    path.write_text(text)
    return path


def test_a_plan_is_read(tmp_path: Path) -> None:
    plan = kits.Federation.read(written(tmp_path, PLAN))
    assert plan == kits.Federation("heart", "fl.example.org", ("north", "south"), 8443, "clinics")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('host = "fl.example.org"', "", "'host' is missing"),
        ("port = 8443", "prot = 8443", "unknown key 'prot'.*did you mean 'port'"),
        ("port = 8443", 'port = "8443"', "port = '8443': must be of kind int"),
        ("port = 8443", "port = 0", "port = 0: 1 to 65535"),
        ("port = 8443", "port = true", "must be of kind int"),
        ("port = 8443", "days = 361", "days = 361: 1 to 360"),
        ('name = "heart"', 'name = "../heart"', "name = '../heart': lower-case"),
        ("fl.example.org", "fl example", "host = 'fl example': a machine's name"),
        ("clinics", "the clinics", "organisation = 'the clinics': letters"),
        ('["north", "south"]', "[]", "at least one site"),
        ('["north", "south"]', '["north", "north"]', "'north' is there twice"),
        ('["north", "south"]', '["North"]', "sites: 'North': lower-case"),
        ('["north", "south"]', '["coordinator"]', "the coordinator's own name"),
        ('["north", "south"]', "[1]", "a list of names"),
        ('name = "heart"', "name = heart", "is not TOML"),
    ],
)
def test_a_plan_that_cannot_be_used_gets_one_sentence(tmp_path: Path, old: str, new: str, sentence: str) -> None:
    assert old in PLAN
    path = written(tmp_path, PLAN.replace(old, new))
    with pytest.raises(InvalidInput, match=sentence) as error:
        kits.Federation.read(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_plan_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.toml: cannot be read"):
        kits.Federation.read(tmp_path / "nowhere.toml")


def test_without_an_engine_nothing_is_written(tmp_path: Path) -> None:
    plan = kits.Federation("heart", "localhost", ("north",))
    with pytest.raises(InvalidInput, match="no engine at"):
        kits.make(plan, tmp_path / "kits", tmp_path / "engine")
    with pytest.raises(InvalidInput, match="no engine at"):
        engine.check(tmp_path / "engine")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", ["../outside", "/tmp/undrift-outside", "kit/../../outside"])
def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path, inside: str) -> None:
    with zipfile.ZipFile(tmp_path / "kit.zip", "w") as packed:
        packed.writestr("kit.json", "{}")
        packed.writestr(inside, "evil")
    kits.unpack(tmp_path / "kit.zip", tmp_path / "kits" / "north")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "kits" / "outside").exists()
    assert not Path("/tmp/undrift-outside").exists()


def test_what_is_no_kit_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "text.zip").write_text("no archive")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    for name in ("text.zip", "empty.zip", "nowhere.zip"):
        with pytest.raises(InvalidInput, match="is not a kit"):
            kits.unpack(tmp_path / name, tmp_path / "kit")
    assert not (tmp_path / "kit").exists()
    with pytest.raises(InvalidInput, match=r"has no kit\.json"):
        kits.about(tmp_path)


@pytest.mark.deploy
def test_the_kits_of_a_federation(tmp_path: Path, environment: Path) -> None:
    plan = kits.Federation.read(written(tmp_path, PLAN))
    made = kits.make(plan, tmp_path / "kits", environment)
    assert [kit.name for kit in made] == ["coordinator", "north", "south"]
    assert {path.name for path in (tmp_path / "kits").iterdir()} == {
        "README.md", "authority", "coordinator.zip", "north.zip", "south.zip",
    }  # fmt: skip
    assert (tmp_path / "kits").stat().st_mode & 0o777 == 0o700
    page = (tmp_path / "kits" / "README.md").read_text()
    for kit in made:
        assert kit.path.stat().st_mode & 0o777 == 0o600
        assert hashlib.sha256(kit.path.read_bytes()).hexdigest() == kit.sha256
        assert kit.sha256 in page
    assert "TCP 8443 on fl.example.org" in page

    keys: dict[str, str] = {}
    for kit in made:
        folder = kits.unpack(kit.path, tmp_path / "unpacked" / kit.name)
        assert kits.about(folder)["name"] == kit.name
        for path in folder.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
            if path.suffix == ".key":
                keys[f"{kit.name}/{path.name}"] = path.read_text()
        for local in folder.rglob("local/authorization.json"):
            rights = json.loads(local.read_text())["permissions"]
            assert all(role["byoc"] == role["shell_commands"] == role["operate"] == "none" for role in rights.values())
            resources = json.loads((local.parent / "resources.json").read_text())
            assert resources["class_list_enforcement_mode"] == "enforce"
            assert resources["class_allow_list"] == [kits.BRIDGE if kit.name == "coordinator" else kits.RELAY]
            assert not resources.get("allow_log_streaming")
    assert sorted(keys) == ["coordinator/client.key", "coordinator/server.key", "north/client.key", "south/client.key"]
    assert len(set(keys.values())) == 4
    kept = "".join(path.read_text() for path in (tmp_path / "kits" / "authority").iterdir())
    for key in keys.values():
        assert key.splitlines()[1] not in kept  # nor in what the organiser keeps
    with pytest.raises(InvalidInput, match="is there already"):
        kits.make(plan, tmp_path / "kits", environment)


@pytest.mark.deploy
def test_an_engine_of_another_undrift_is_said_so(tmp_path: Path, environment: Path) -> None:
    copy = tmp_path / "engine"
    home = next(environment.glob("lib/python3.*/site-packages"))
    target = copy / home.relative_to(environment)
    target.mkdir(parents=True)
    (copy / "bin").mkdir()
    (copy / "bin" / "nvflare").touch()
    with pytest.raises(InvalidInput, match="another version of undrift"):
        engine.check(copy)
    engine.seed(copy)
    engine.check(copy)
    relay = target / "undrift" / "deploy" / "relay.py"
    relay.write_text(relay.read_text() + "\n# changed\n")
    with pytest.raises(InvalidInput, match="another version of undrift"):
        engine.check(copy)


@pytest.mark.deploy
def test_the_engine_imports_neither_torch_nor_the_core(environment: Path) -> None:
    program = (
        "import sys, undrift.deploy.nvflare as _; print(sorted(m for m in sys.modules if m[:5] in ('torch', 'undri')))"
    )
    done = subprocess.run(
        [environment / "bin" / "python", "-c", program],
        env=engine.environment(environment), check=True, capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    modules = ["bridge", "nvflare", "pipe", "relay", "wire"]
    assert done.stdout.strip() == str(["undrift", "undrift.deploy", *(f"undrift.deploy.{m}" for m in modules)])


def test_what_an_engine_carries_of_undrift_needs_no_more_than_that_and_the_engine(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    engine.seed(tmp_path)
    carried = {f"undrift.deploy.{name}" for name in engine.CARRIED} | {"undrift", "undrift.deploy"}
    for path in (packages / "undrift").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = str(node.module)
                names = [f"{module}.{a.name}" for a in node.names] if module == "undrift.deploy" else [module]
            else:
                continue
            for name in names:
                root = name.split(".")[0]
                own = "flwr" if path.name == "flower.py" else "nvflare"
                assert name in carried or root in {*sys.stdlib_module_names, own}, f"{path.name}: {name}"
    words = [sys.executable, "-S", "-c", "import undrift.deploy.pipe, undrift.deploy.relay as r; print(r.__file__)"]
    done = subprocess.run(words, env={"PYTHONPATH": str(packages)}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(packages))
