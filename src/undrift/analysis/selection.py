"""Which runs of a ledger are meant: by name, number, beginning, pattern; without any, the latest comparison or run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from undrift.core.errors import InvalidInput
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger


def selected(ledger: Ledger, names: Sequence[str] = ()) -> list[Run]:
    """The runs that are meant, each once, oldest first."""
    runs = ledger.runs()
    if not runs:
        raise InvalidInput(f"the ledger {ledger.path} holds no runs yet")
    if not names:
        return latest(runs)
    found = {run.id: run for name in names for run in _matching(ledger, runs, name)}
    return [found[i] for i in sorted(found)]


def _matching(ledger: Ledger, runs: Sequence[Run], name: str) -> list[Run]:
    exact = [run for run in runs if run.name == name]
    if exact:
        return exact
    if name.isdigit():
        return [ledger.run(name)]
    if set(name) & set("*?["):
        matching = [run for run in runs if fnmatchcase(run.name, name)]
        if not matching:
            raise InvalidInput(f"no run in {ledger.path} matches {name!r}; `undrift show` lists them")
        return matching
    inside = [run for run in runs if run.name.startswith(name.rstrip("/") + "/")]
    if inside:
        return latest(inside)
    return [run for run in runs if run.name.startswith(name)] or [ledger.run(name)]  # which complains


def latest(runs: Sequence[Run]) -> list[Run]:
    """The last run, with those that were made by the same command; of a comparison that was repeated, the last one."""
    newest = runs[-1]
    study, _, inner = newest.name.partition("/")
    if not inner:
        return [newest]
    found: dict[str, Run] = {}
    for run in reversed(runs):
        if not run.name.startswith(f"{study}/"):
            continue
        stem = re.sub(r"-\d+$", "", run.name)
        if stem in found or _command(run) != _command(newest):
            break
        found[stem] = run
    return list(reversed(found.values()))


def _command(run: Run) -> str:
    """What was typed; going on with it is the same."""
    return str(run.facts.get("command", "")).replace(" --resume", "")
