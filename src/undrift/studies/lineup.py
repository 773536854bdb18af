"""Who takes part in a study, and on which data: one rule for comparisons, sweeps and pilots.

A method that must be shown beside another (its control) is added with the settings that both have. Where one of the
methods wants public data on the server, the others do without those samples, so that all share one partition. A method
may have training settings of its own, in ``train``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from undrift import algorithms
from undrift.core.algorithm import Algorithm, Method
from undrift.core.errors import InvalidInput, unknown
from undrift.core.named import listed, short
from undrift.experiment.description import parse_method

Section = dict[str, Any]  # a method as a description has it: its name and the settings that were given


def line_up(methods: Any) -> list[Section]:
    """The methods as sections: from ``"fedavg,fedtrip:mu=1"``, from a list, from objects; ``"all"`` for every one."""
    found = [section(method) for method in asked(methods)]
    if not found:
        raise InvalidInput("a study needs at least one method")
    return found


def asked(methods: Any) -> list[Any]:
    """The methods one by one, as they were given."""
    if isinstance(methods, str):
        return list(algorithms.algorithms()) if methods == "all" else listed(methods)
    return list(methods) if isinstance(methods, Iterable) and not isinstance(methods, Mapping) else [methods]


def section(method: Any) -> Section:
    if isinstance(method, str):
        return parse_method(method)
    if isinstance(method, Mapping):
        found, known = dict(method), algorithms.algorithms()
        if found.get("name") not in known:
            raise unknown("algorithm", str(found.get("name", "")), known)
        if not isinstance(found.get("train", {}), Mapping):
            raise InvalidInput(f"{found['name']}: its train must be a table, not {found['train']!r}")
        return found
    if isinstance(method, type):
        raise InvalidInput(f"{method.__name__} is a class: give an object, {method.__name__}(...), or a name")
    if not isinstance(method, Algorithm):
        raise InvalidInput(f"a method is a name or a method's object, not {type(method).__name__}")
    given = {s.name: getattr(method, s.name) for s in method.settings() if getattr(method, s.name) != s.default}
    return {"name": type(method).name(), **given}


def with_controls(methods: Sequence[Section]) -> list[Section]:
    """The methods, and those that must be shown beside them."""
    known, found = algorithms.algorithms(), list(methods)
    for method in methods:
        for control in known[method["name"]].controls if method["name"] in known else ():
            beside = {"name": control} | common(method, control)
            if beside not in found:
                found.append(beside)
    return found


def common(settings: Mapping[str, Any], control: str) -> dict[str, Any]:
    """The settings that a control has as well: a control with another momentum or other weights would be none."""
    names = ["train", *(s.name for s in algorithms.algorithms()[control].settings())]
    return {name: value for name, value in settings.items() if name in names}


def on_common_ground(values: Mapping[str, Any], methods: Iterable[Section]) -> dict[str, Any]:
    """The description with the public samples held out, where one of the methods needs them on the server."""
    known, shared = algorithms.algorithms(), dict(values)
    if any(known[m["name"]].needs_public for m in methods if m["name"] in known):
        shared.setdefault("others_public", "held-out")
    return shared


def filled(method: Section, shared: Any, kind: type[Method]) -> Section:
    """The method with the settings that were given for all methods, as far as it has them."""
    given = shared if isinstance(shared, Mapping) else {}
    return {k: v for k, v in given.items() if k in {s.name for s in kind.settings()}} | method


def own_training(method: Section) -> dict[str, str]:
    """The fact that a method has training settings of its own, for its label."""
    own = ", ".join(f"{key}={short(value)}" for key, value in method.get("train", {}).items())
    return {"own_training": own} if own else {}


def run_name(study: str, method: str, seed: int) -> str:
    """The name of a run of a study in the ledger; ``method`` carries all that differs."""
    return f"{study}/{method}/seed{seed}"
