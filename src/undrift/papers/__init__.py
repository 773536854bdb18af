"""The papers' experiments as data: what each table and figure ran, and the numbers that it prints.

One TOML file a paper. A table is a grid of methods and columns; a cell is an experiment, made of what the paper's
tables share (``experiment``), the column's scene (a model on data), the column, the table and the method, in this
order. This module reads them; it runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from undrift.core.errors import InvalidInput, unknown
from undrift.core.figure import Figure

MEASURES = ("rounds", "accuracy", "best", "last ten", "gflops", "curves", "series")
_OWN_KEYS = ("label", "scene", "target", "at", "methods")  # of a column, beside the experiment's


@dataclass(frozen=True)
class Column:
    """One setting in which all methods of a table are run."""

    name: str
    label: str
    scene: str  # a model on data, with a name of the paper's file
    target: float | None  # what "rounds" counts to
    at: int | None  # the round that "accuracy" is read at; None: the last
    experiment: dict[str, Any]
    methods: dict[str, dict[str, Any]]  # changes of single methods in this column


@dataclass(frozen=True)
class Cut:
    """What ``--quick`` makes of a paper's tables; ``says`` is said beside every number."""

    says: str
    rounds: int
    seeds: int
    columns: int  # at most so many,
    scenes: tuple[str, ...]  # of these scenes where a table has them
    experiment: dict[str, Any] = field(default_factory=dict)  # what else is changed, for all methods alike


@dataclass(frozen=True)
class Table:
    """One table or figure."""

    paper: str
    name: str
    source: str  # where it is printed
    title: str
    measure: str
    trials: int  # runs behind a printed number, as the paper says
    quick: Cut
    methods: dict[str, dict[str, Any]]  # as the table calls them -> what they change in the experiment
    columns: tuple[Column, ...]
    printed: dict[str, dict[str, float]] = field(default_factory=dict)  # method -> column -> number; inf: not reached
    ratios: dict[str, dict[str, float]] = field(default_factory=dict)  # printed beside, over the first method
    speedups: dict[str, dict[str, float]] = field(default_factory=dict)  # the same the other way round
    contradicted: frozenset[tuple[str, str]] = frozenset()  # cells that another printed number contradicts
    incomparable: dict[str, str] = field(default_factory=dict)  # method -> why its printed number is of another thing
    series: tuple[str, ...] = ()
    figure: Figure | None = None  # what is measured; None: what a run is judged by
    transposed: bool = False  # printed with a column per method
    asks: str = ""  # of a table that is printed nowhere: what is tried to explain another one

    @property
    def reference(self) -> str:
        return f"{self.paper}/{self.name}"

    @property
    def data(self) -> tuple[str, ...]:
        """The names of the data sets that it needs."""
        return tuple(dict.fromkeys(str(column.experiment["data"]["name"]) for column in self.columns))

    def column(self, name: str) -> Column:
        found = {column.name: column for column in self.columns}
        if name not in found:
            raise unknown(f"column of {self.reference}", name, found)
        return found[name]

    def where(self, method: str, column: Column) -> str:
        """Where a number is printed."""
        return f"{self.paper}, {self.source}, row {method}, column {column.label}"

    def experiment(self, method: str, column: Column, seed: int) -> dict[str, Any]:
        """The experiment behind a cell, as plain values."""
        values = over(column.experiment, self.methods[method])
        values = over(values, column.methods.get(method, {}))
        return values | {"seed": seed}

    def key(self, method: str, column: Column) -> str:
        """The name of a cell's experiment: tables that share experiments share runs.

        It goes by what the paper says, not by the package's defaults.
        """
        given = self.experiment(method, column, seed=0)
        digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.paper}-{re.sub(r'[^A-Za-z0-9.]', '', method)}-{digest}"


@dataclass(frozen=True)
class Paper:
    name: str
    title: str
    tables: dict[str, Table]


@cache
def papers() -> dict[str, Paper]:
    """All papers, by name."""
    found = sorted(entry.name for entry in files(__name__).iterdir() if entry.name.endswith(".toml"))
    return {name.removesuffix(".toml"): _paper(name.removesuffix(".toml")) for name in found}


def table(reference: str) -> Table:
    """A table by ``paper/table``."""
    name, slash, rest = reference.partition("/")
    known = papers()
    if name not in known:
        raise unknown("paper", name, known)
    if not slash:
        raise InvalidInput(
            f"{reference} is a paper: name one of its tables, as {name}/{next(iter(known[name].tables))}"
        )
    if rest not in known[name].tables:
        raise unknown(f"table of {name}", rest, known[name].tables)
    return known[name].tables[rest]


def _paper(name: str) -> Paper:
    raw = tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
    tables = {key: _table(name, key, raw) for key in raw["tables"]}
    return Paper(name, raw["title"], tables)


def _table(paper: str, name: str, raw: Mapping[str, Any]) -> Table:
    own = _explained(raw["tables"], name)
    common = over(raw["experiment"], own.get("experiment", {}))
    methods = _methods(raw.get("methods", {}), own.get("methods", {}))
    methods = {name: methods[name] for name in own.get("rows", methods)}
    columns = raw["tables"][own["columns_of"]]["columns"] if "columns_of" in own else own["columns"]
    made = tuple(_column(key, column, common, own, raw["scenes"]) for key, column in columns.items())
    names = [column.name for column in made]
    printed, ratios, speedups = (
        {method: dict(zip(names, row, strict=True)) for method, row in own.get(part, {}).items() if method in methods}
        for part in ("printed", "ratios", "speedups")
    )
    first = next(iter(methods))
    for method, row in ratios.items():  # where only multiples of the first method are printed
        if method not in printed:
            printed[method] = {c: r * printed[first][c] if r else math.inf for c, r in row.items()}
    return Table(
        paper=paper,
        name=name,
        source=own["source"],
        title=own["title"],
        measure=own["measure"],
        trials=raw["trials"],
        quick=_cut(raw["quick"]),
        methods=methods,
        columns=made,
        printed=printed,
        ratios=ratios,
        speedups=speedups,
        contradicted=frozenset((m, c) for m, cs in own.get("contradicted", {}).items() for c in cs if c in names),
        incomparable={m: why for m, why in raw.get("incomparable", {}).items() if m in methods},
        series=tuple(own.get("series", ())),
        figure=Figure(**own["figure"]) if "figure" in own else None,
        transposed=own.get("transposed", False),
        asks=own.get("asks", ""),
    )


def _cut(raw: Mapping[str, Any]) -> Cut:
    return Cut(
        raw["says"], raw["rounds"], raw["seeds"], raw["columns"], tuple(raw["scenes"]), raw.get("experiment", {})
    )


def _explained(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table; where it asks about another one, that one with its changes: the same cells under another assumption."""
    own: Mapping[str, Any] = tables[name]
    if "of" not in own:
        return own
    base = dict(tables[own["of"]])
    chosen = own.get("columns", list(base["columns"]))
    places = [list(base["columns"]).index(column) for column in chosen]
    base["columns"] = {column: base["columns"][column] for column in chosen}
    for part in ("printed", "ratios"):
        base[part] = {method: [row[place] for place in places] for method, row in base.get(part, {}).items()}
    return base | {key: value for key, value in own.items() if key not in ("of", "columns")}


def _methods(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A table's own methods; or the paper's, with what the table changes in some of them."""
    if own and not set(own) <= set(shared):
        return {name: dict(changes) for name, changes in own.items()}
    if own and all("name" in changes.get("algorithm", {}) for changes in own.values()):
        return {name: dict(changes) for name, changes in own.items()}
    return {name: over(changes, own.get(name, {})) for name, changes in shared.items()}


def _column(
    name: str, raw: Mapping[str, Any], common: Mapping[str, Any], own: Mapping[str, Any], scenes: Mapping[str, Any]
) -> Column:
    scene = dict(scenes[raw["scene"]])
    methods = scene.pop("methods", {})
    values = over(over(common, scene), own.get("experiment", {}))
    values = over(values, {key: value for key, value in raw.items() if key not in _OWN_KEYS})
    methods = over(methods, raw.get("methods", {}))
    return Column(name, raw["label"], raw["scene"], raw.get("target"), raw.get("at"), values, methods)


def over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with changes on top, section by section; another name in a section drops the old settings."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            renamed = "name" in value and "name" in old and value["name"] != old["name"]
            merged[key] = dict(value) if renamed else over(old, value)
        else:
            merged[key] = value
    return merged
