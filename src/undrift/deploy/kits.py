"""Kits: what each member of a federation needs to take part, made once by the one who organises.

A kit is a folder with a certificate, a private key and NVFlare's settings, hardened: a site's engine runs undrift's
relay and nothing else, takes no code, opens no shell and sends no logs. Keys are made by NVFlare's own provisioning.
Nobody gets a key that is not theirs, and once the kits are packed the organiser keeps the authority's key alone.

Knows nothing of training; needs the engine's environment (``undrift.deploy.engine``) to make the keys.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput, hint

BRIDGE = "undrift.deploy.nvflare.Bridge"
RELAY = "undrift.deploy.nvflare.Relay"
COORDINATOR = "coordinator"  # the name of its kit
PORT = 8002

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_HOST = re.compile(r"(?=.{1,64}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
_ORGANISATION = re.compile(r"[A-Za-z0-9_]{1,40}")
_RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc")


@dataclass(frozen=True)
class Federation:
    """Who takes part, and where the sites find the coordinator: what ``federation.toml`` says."""

    name: str
    host: str
    sites: tuple[str, ...]
    port: int = PORT
    organisation: str = "undrift"
    days: int = 360  # that the certificates are good for

    def __post_init__(self) -> None:
        lower_case = "lower-case letters, digits and hyphens, at most 40, are allowed"
        _check(_NAME.fullmatch(self.name), f"name = {self.name!r}: {lower_case}")
        _check(_HOST.fullmatch(self.host), f"host = {self.host!r}: a machine's name is needed, such as fl.example.org")
        _check(0 < self.port < 65536, f"port = {self.port}: 1 to 65535 is allowed")
        _check(1 <= self.days <= 360, f"days = {self.days}: 1 to 360 is allowed (NVFlare gives no member more)")
        _check(
            _ORGANISATION.fullmatch(self.organisation),
            f"organisation = {self.organisation!r}: letters, digits and underscores, at most 40, are allowed",
        )
        _check(self.sites, "sites = []: at least one site is needed")
        for site in self.sites:
            _check(_NAME.fullmatch(site), f"sites: {site!r}: {lower_case}")
            _check(site not in (COORDINATOR, "server", self.host), f"sites: {site!r} is the coordinator's own name")
            _check(self.sites.count(site) == 1, f"sites: {site!r} is there twice")

    @staticmethod
    def read(path: Path) -> Federation:
        """The federation that a TOML file describes."""
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path}: is not TOML ({error})") from None
        kinds: dict[str, type] = {"name": str, "host": str, "sites": list}
        kinds |= {"port": int, "organisation": str, "days": int}
        try:
            for key, value in content.items():
                _check(key in kinds, f"unknown key {key!r}: one of {', '.join(kinds)}{hint(key, kinds)}")
                _check(type(value) is kinds[key], f"{key} = {value!r}: must be of kind {kinds[key].__name__}")
            for key in ("name", "host", "sites"):
                _check(key in content, f"{key!r} is missing")
            _check(all(isinstance(site, str) for site in content["sites"]), "sites: a list of names is needed")
            return Federation(**{**content, "sites": tuple(content["sites"])})
        except InvalidInput as error:
            raise InvalidInput(f"{path}: {error}") from None


@dataclass(frozen=True)
class Kit:
    """A packed kit, and the sum by which its receiver knows it."""

    name: str
    path: Path
    sha256: str


def make(federation: Federation, folder: Path, engine: Path) -> list[Kit]:
    """Make the kits of a federation in ``folder``, which must not be there yet: the coordinator's first.

    Beside them lie ``README.md``, which says what to send to whom, and ``authority``, which the organiser keeps.
    """
    nvflare = engine / "bin" / "nvflare"
    if not nvflare.exists():
        raise InvalidInput(f"no engine at {engine}: install it first")
    if folder.exists():
        raise InvalidInput(f"{folder} is there already: kits are made once, into a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:  # 0700
        work, done = Path(scratch) / "work", Path(scratch) / "done"
        work.mkdir()
        done.mkdir(mode=0o700)
        made = _provision(federation, work, nvflare)
        _gather(federation, made)
        kits = [_pack(made / name, done, name) for name in (COORDINATOR, *federation.sites)]
        _keep_authority(federation, work, done / "authority")
        (done / "README.md").write_text(page(federation, kits), encoding="utf-8")
        done.rename(folder)
    return [Kit(kit.name, folder / kit.path.name, kit.sha256) for kit in kits]


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a kit into ``folder``, which must not be there yet; for its owner alone."""
    if folder.exists():
        raise InvalidInput(f"{folder} is there already: a kit is unpacked into a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as scratch:
        target = Path(scratch) / "kit"
        try:
            with zipfile.ZipFile(archive) as packed:
                if sum(entry.file_size for entry in packed.infolist()) > 50 << 20:
                    raise InvalidInput(f"{archive}: is too large for a kit")
                packed.extractall(target)  # which lets no entry out of the folder
        except (OSError, zipfile.BadZipFile) as error:
            raise InvalidInput(f"{archive}: is not a kit ({error})") from None
        if not (target / "kit.json").is_file():
            raise InvalidInput(f"{archive}: is not a kit (it has no kit.json)")
        close_to_others(target)
        target.rename(folder)
    return folder


def close_to_others(folder: Path) -> None:
    """Let none but the owner read a folder; scripts stay executable."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() or path.suffix == ".sh" else 0o600)


def about(kit: Path) -> dict[str, Any]:
    """What ``kit.json`` says: federation, role (``site`` or ``coordinator``), name, sites, host, port."""
    try:
        content = json.loads((kit / "kit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise InvalidInput(f"{kit}: is not a kit (it has no kit.json that can be read)") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{kit}: is not a kit (its kit.json is none)")
    return content


def settle(kit: Path) -> None:
    """Tell a coordinator's engine where its kit lies: its stores need absolute names outside ``/tmp``."""
    path = kit / "server" / "local" / "resources.json"
    resources = json.loads(path.read_text())
    store = kit.resolve() / "server" / "store"
    store.mkdir(mode=0o700, exist_ok=True)
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(store / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(store / "jobs")
    _write_json(path, resources)


def page(federation: Federation, kits: list[Kit]) -> str:
    """What the organiser must do with the kits, in Markdown."""
    rows = "\n".join(f"| `{kit.path.name}` | {_receiver(federation, kit)} | `{kit.sha256}` |" for kit in kits)
    return f"""# The kits of {federation.name}

| kit | goes to | SHA-256 |
| --- | --- | --- |
{rows}

1. Send each kit to its receiver, and to nobody else, in a way you would send a password: it holds a private key.
   Tell the sum by another way, such as the telephone; the receiver compares it with `sha256sum KIT.zip`.
2. Open **one port**: TCP {federation.port} on {federation.host}, for incoming connections of the sites. It speaks
   TLS, and drops whoever has no certificate of this federation. The sites open no port; they must be able to reach
   {federation.host}:{federation.port}.
3. Delete the kits here once they have arrived. Keep `authority`, in a safe place and off the network: whoever has it
   can make members of this federation.
4. All certificates end after {federation.days} days. Make new kits before that.
"""


def _receiver(federation: Federation, kit: Kit) -> str:
    if kit.name == COORDINATOR:
        return f"the one who trains, on {federation.host}"
    return f"the operator of site {kit.name}"


def _provision(federation: Federation, work: Path, nvflare: Path) -> Path:
    """NVFlare's own kits; the folder that they are in."""
    template = {"template_file": ["master_template.yml"]}
    impl = "nvflare.lighter.impl"
    org = {"org": federation.organisation}
    project = {
        "api_version": 3,
        "name": federation.name,
        "description": "made by undrift",
        "participants": [
            {"name": federation.host, "type": "server", **org, "fed_learn_port": federation.port},
            *({"name": site, "type": "client", **org} for site in federation.sites),
            {"name": _user(federation), "type": "admin", **org, "role": "project_admin"},
        ],
        "builders": [
            {"path": f"{impl}.workspace.WorkspaceBuilder", "args": template},
            {"path": f"{impl}.static_file.StaticFileBuilder", "args": {"config_folder": "config"}},
            {"path": f"{impl}.cert.CertBuilder", "args": {"root_valid_days": federation.days}},
            {"path": f"{impl}.signature.SignatureBuilder"},
        ],
    }
    _write_json(work / "project.yml", project)  # JSON is YAML
    done = subprocess.run(
        [nvflare, "provision", "-p", "project.yml", "-w", "made"], cwd=work, capture_output=True, text=True, umask=0o077
    )
    made = work / "made" / federation.name / "prod_00"
    if done.returncode or not made.is_dir():
        raise InvalidInput(f"the engine could not make the keys: {(done.stderr or done.stdout).strip()[-500:]}")
    return made


def _user(federation: Federation) -> str:
    return f"{COORDINATOR}@{federation.name}.undrift"


def _gather(federation: Federation, made: Path) -> None:
    """One folder per member: the server's and the administrator's make the coordinator's. All of them hardened."""
    kit = made / COORDINATOR
    kit.mkdir()
    (made / federation.host).rename(kit / "server")
    (made / _user(federation)).rename(kit / "admin")
    _harden(kit / "server", BRIDGE)
    _about(federation, kit, COORDINATOR)
    for site in federation.sites:
        _harden(made / site, RELAY)
        _about(federation, made / site, site)


def _about(federation: Federation, kit: Path, name: str) -> None:
    role = {"role": "coordinator", "sites": sorted(federation.sites)} if name == COORDINATOR else {"role": "site"}
    place = {"host": federation.host, "port": federation.port}
    _write_json(kit / "kit.json", {"format": 1, "federation": federation.name, "name": name, **role, **place})


def _harden(kit: Path, own_class: str) -> None:
    """Only our class may be run; no code in jobs, no shell, no restarts from afar, no logs to the server."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text())
    resources["class_list_enforcement_mode"] = "enforce"
    resources["class_allow_list"] = [own_class]
    if "allow_log_streaming" in resources:
        resources["allow_log_streaming"] = False
    resources["components"] = [
        c for c in resources["components"] if c["id"] not in ("site_log_streamer", "log_receiver")
    ]
    _write_json(local / "resources.json", resources)
    nothing = dict.fromkeys(_RIGHTS, "none")
    needed = {"submit_job": "any", "manage_job": "any", "view": "any"}
    roles = dict.fromkeys(("org_admin", "lead", "member"), nothing)
    _write_json(
        local / "authorization.json",
        {"format_version": "1.0", "permissions": {"project_admin": {**nothing, **needed}, **roles}},
    )


def _pack(kit: Path, folder: Path, name: str) -> Kit:
    archive = folder / f"{name}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in sorted(kit.rglob("*")):
            packed.write(path, path.relative_to(kit))
    archive.chmod(0o600)
    return Kit(name, archive, hashlib.sha256(archive.read_bytes()).hexdigest())


def _keep_authority(federation: Federation, work: Path, folder: Path) -> None:
    """Keep what is needed to add a site one day; NVFlare keeps every member's private key with it, which we do not."""
    state = json.loads((work / "made" / federation.name / "state" / "cert.json").read_text())
    for member in state.values():
        if isinstance(member, dict):
            member.pop("pri_key", None)
    folder.mkdir(mode=0o700)
    _write_json(folder / "cert.json", state)
    shutil.copy(work / "project.yml", folder / "project.yml")
    close_to_others(folder)


def _write_json(path: Path, content: object) -> None:
    temporary = path.with_name(path.name + ".new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def _check(holds: object, sentence: str) -> None:
    if not holds:
        raise InvalidInput(sentence)
