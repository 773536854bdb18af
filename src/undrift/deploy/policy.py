"""What a site allows: the operator's own file, read at the site and obeyed there. Nobody else can change it.

    experiments = "ask"          # "ask": only what `undrift site approve` has approved; "any"; or a list of names
    smallest_cohort = 2          # sites whose mean is taken, at least
    largest_rounds = 1000        # of an experiment
    smallest_count = 1           # test samples behind a figure that is told, at least
    class_counts = false         # may the coordinator know how many samples of each class there are?
    holdings = false             # may `undrift deploy status` tell how many samples there are, outside any experiment?

    [methods]                    # left out: all that are installed
    fedavg = "any"               # this method, whatever its file says
    scaffold = "5d1f..."         # this method, as long as its installed file has this SHA-256

No code ever travels: a method is what is installed at the site under its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undrift.core.errors import InvalidInput, hint
from undrift.deploy.protocol import Refusal

_KINDS: dict[str, tuple[type, ...]] = {
    "experiments": (str, list), "smallest_cohort": (int,), "largest_rounds": (int,), "smallest_count": (int,),
    "class_counts": (bool,), "holdings": (bool,), "methods": (dict,),
}  # fmt: skip


@dataclass(frozen=True)
class Policy:
    """The rules of one site; what is left out has the value that asks most and tells least."""

    experiments: str | tuple[str, ...] = "ask"
    smallest_cohort: int = 2
    largest_rounds: int = 1000
    smallest_count: int = 1
    class_counts: bool = False
    holdings: bool = False  # are told outside experiments too
    methods: Mapping[str, str] | None = None  # None: all that are installed

    @staticmethod
    def read(path: Path) -> Policy:
        """The policy in a TOML file; the strictest, where there is none."""
        if not path.exists():
            return Policy()
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be read ({error.strerror})") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path}: is not TOML ({error})") from None
        for key, value in content.items():
            if key not in _KINDS:
                raise InvalidInput(f"{path}: unknown key {key!r}: one of {', '.join(_KINDS)}{hint(key, _KINDS)}")
            if type(value) not in _KINDS[key]:
                kinds = " or ".join(kind.__name__ for kind in _KINDS[key])
                raise InvalidInput(f"{path}: {key} = {value!r}: must be of kind {kinds}")
            if type(value) is int and value < 0:
                raise InvalidInput(f"{path}: {key} = {value}: 0 or more is allowed")
        named = content.get("experiments", "ask")
        if isinstance(named, str) and named not in ("ask", "any"):
            raise InvalidInput(f'{path}: experiments = {named!r}: "ask", "any" or a list of names is allowed')
        if isinstance(named, list):
            content["experiments"] = tuple(map(str, named))
        for name, value in content.get("methods", {}).items():
            if value != "any" and not (isinstance(value, str) and len(value) == 64):
                raise InvalidInput(f'{path}: methods: {name} = {value!r}: "any" or a SHA-256 is allowed')
        return Policy(**content)

    def check(self, experiment: Mapping[str, Any], method: str, file: str, approved: bool) -> None:
        """``Refusal`` if the site does not allow an experiment. ``file`` is the hash of the method's installed file."""
        if self.methods is not None:
            allowed = self.methods.get(method)
            if allowed is None:
                raise Refusal("refused", f"does not allow the method {method}")
            if allowed not in ("any", file):
                raise Refusal("refused", f"allows {method} with another file than the one that is installed")
        rounds, cohort = experiment.get("rounds"), experiment.get("cohort")
        if type(rounds) is not int or rounds > self.largest_rounds:
            raise Refusal("refused", f"allows at most {self.largest_rounds} rounds, and this experiment has {rounds}")
        if type(cohort) is not int or cohort < self.smallest_cohort:
            raise Refusal(
                "refused", f"wants to be one of {self.smallest_cohort} at least, and this experiment may take {cohort}"
            )
        if isinstance(self.experiments, tuple):
            if experiment.get("name") not in self.experiments:
                raise Refusal("refused", f"does not allow the experiment {experiment.get('name')!r}")
        elif self.experiments == "ask" and not approved:
            raise Refusal("waiting", "waits for its operator's approval (undrift site approve)")


class Approvals:
    """What the operator was asked, and has approved: a folder of the site, by what an experiment says, not by its name.

    An experiment that was changed, or whose method's file was, is another one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def key(experiment: Mapping[str, Any], file: str) -> str:
        content = json.dumps([dict(experiment), file], sort_keys=True, default=list)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def ask(self, key: str, experiment: Mapping[str, Any], file: str) -> None:
        """Remember that approval was asked for."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        path = self.folder / f"{key}.json"
        if not path.exists():
            write(path, json.dumps({"experiment": experiment, "file": file}, indent=2).encode())

    def asked(self) -> dict[str, dict[str, Any]]:
        """What was asked for, by key: the experiment, and the hash of the method's file."""
        return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*.json"))}

    def approved(self, key: str) -> bool:
        return (self.folder / f"{key}.approved").exists()

    def approve(self, key: str) -> None:
        write(self.folder / f"{key}.approved", b"")


def write(path: Path, content: bytes) -> None:
    """Write a file, for its owner alone: whole, and on the disk, or not at all."""
    temporary = path.with_name(path.name + ".new")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
