"""Flags from dataclass fields: every setting of every method, partition, model and data set is a flag.

``--alpha 0.1`` goes to whichever chosen component has that setting; where two have it, ``--partition.alpha`` and
``--algorithm.alpha`` say which.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click
from rich.markup import escape
from typer.core import TyperCommand, TyperOption

from undrift.core.errors import InvalidInput, hint
from undrift.core.named import listed
from undrift.core.plugins import split
from undrift.core.settings import Setting
from undrift.experiment.description import components, registries

_META = "undrift.flags"
_PANELS = {
    "plan": "Clients, rounds and evaluation",
    "train": "Local training",
    "uploads": "Uploads on their way",
    "partition": "Partition settings",
    "skew": "Feature skew",
    "algorithm": "Method settings",
    "model": "Model settings",
    "data": "Data settings",
}
_CHOICES = {
    **dict.fromkeys(("--algorithm", "--algorithms", "-a"), "algorithm"),
    **dict.fromkeys(("--data", "-d"), "data"),
    **dict.fromkeys(("--partition", "-p"), "partition"),
    **dict.fromkeys(("--model", "-m"), "model"),
}
_LATER = "uploads"  # of two settings of a name the other keeps the short flag: `--clip` is that of local training
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", tuple: "FLOAT,..."}
_DEFAULTS = {"partition": ["dirichlet"], "data": ["digits"], "model": [], "algorithm": []}


class ExperimentCommand(TyperCommand):
    """A command that also takes every setting as a flag."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        taken = {name for param in own for name in (*param.opts, *param.secondary_opts)}
        help_last = [p for p in own if "--help" in p.opts]
        return [p for p in own if p not in help_last] + [o for o in _options() if not taken & {*o.opts}] + help_last


@functools.cache
def _options() -> tuple[click.Parameter, ...]:
    """One option per setting name, and one per section and name; those of components not chosen are hidden."""
    chosen = _chosen()
    _look_at_references(chosen)
    found: list[click.Parameter] = []
    plain: dict[str, list[tuple[str, str, Setting]]] = {}
    for section, kinds in components().items():
        for kind, settings in kinds.items():
            for setting in settings:
                plain.setdefault(setting.name, []).append((section, kind, setting))
    for name, uses in plain.items():
        first = [u for u in uses if u[0] != _LATER] or uses
        shown = [u for u in first if u[0] in ("plan", "train", "skew", "uploads") or u[1] in chosen[u[0]]]
        # Where one use is a switch and another takes a value (`--momentum`), the flag takes a value.
        section, _, setting = min(shown or first, key=lambda use: use[2].type is bool)
        found.append(
            _option(
                f"--{name.replace('_', '-')}", name, setting, _help(shown or first), _PANELS[section], hidden=not shown
            )
        )
        for part in dict.fromkeys(u[0] for u in uses if u[0] != "plan"):
            flag = f"--{part}.{name.replace('_', '-')}"
            own = next(u for u in uses if u[0] == part)
            only = part == _LATER and own not in first  # then this is its one flag, and must be seen
            text, panel = (_help([own]), _PANELS[part]) if only else ("", None)
            found.append(_option(flag, f"{part}.{name}", own[2], text, panel, hidden=not only))
    return tuple(found)


def _look_at_references(chosen: Mapping[str, list[str]]) -> None:
    """Load the files that are named, so that their settings are flags too. What is wrong with them is said later."""
    for section, known in registries().items():
        for name in chosen.get(section, []):
            with contextlib.suppress(InvalidInput):
                _ = name in known


def _option(flag: str, key: str, setting: Setting, text: str, panel: str | None, *, hidden: bool) -> TyperOption:
    names = [flag, f"--{key}"] if f"--{key}" != flag else [flag]
    if setting.type is bool:
        names = [f"{name}/--no-{name[2:]}" for name in names[:1]]

    def store(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None:
            ctx.meta.setdefault(_META, {})[key] = value

    return TyperOption(
        param_decls=["flag_" + re.sub(r"\W", "_", key), *names],
        type=_Choice(setting.choices)
        if setting.choices and "." not in key
        else str
        if setting.type is not bool
        else bool,
        default=None,
        help=text,
        metavar=None if setting.choices or setting.type is bool else _METAVARS[setting.type],
        hidden=hidden,
        expose_value=False,
        callback=store,
        is_flag=True if setting.type is bool else None,
        rich_help_panel=panel,
        show_default=False,
    )


class _Choice(click.Choice[str]):
    """One of some words, for the help and the completion.

    Whether the word is allowed is seen when it is known whose setting it is: a file may have chosen the method.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return str(value)


def _help(uses: Iterable[tuple[str, str, Setting]]) -> str:
    texts: dict[str, list[str]] = {}
    for _, kind, setting in uses:
        default = "" if setting.required or setting.default in (None, ()) else f" [{plain(setting.default)}]"
        texts.setdefault(setting.help + default, []).append(kind)
    parts = [(f"{', '.join(k for k in kinds if k)}: " if any(kinds) else "") + text for text, kinds in texts.items()]
    return escape("; ".join(parts[:4]))  # a default like [prox] is no markup


def plain(value: Any) -> str:
    """A default as it is written on the command line."""
    if isinstance(value, tuple):
        return ",".join(plain(part) for part in value)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _chosen() -> dict[str, list[str]]:
    """The components named on the command line, also while the shell completes it."""
    words = [*sys.argv, *os.environ.get("COMP_WORDS", "").split()]
    chosen = {section: list(names) for section, names in _DEFAULTS.items()}
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        section = _CHOICES.get(flag)
        if section and (equals or i + 1 < len(words)):
            names = listed(value if equals else words[i + 1])
            chosen[section] = [split(name)[0] for name in names]
    return chosen


def given(ctx: click.Context) -> dict[str, Any]:
    """The flags that were given, by setting name."""
    return dict(ctx.meta.get(_META, {}))


def as_changes(flags: Mapping[str, Any], names: Mapping[str, list[str]]) -> dict[str, Any]:
    """Flags as changes of an experiment; ``names`` says which components each section has."""
    _look_at_references(names)
    known = components()
    changes: dict[str, Any] = {}
    for flag, value in flags.items():
        part, dot, name = flag.rpartition(".")
        holders = {
            section: settings
            for section, kinds in known.items()
            if (not dot or section == part)
            for settings in [_find(kinds, name, names.get(section, [""]))]
            if settings is not None
        }
        text = f"--{flag.replace('_', '-')}"
        if not holders:
            owners = sorted(
                {k for s, kinds in known.items() if not dot or s == part for k, v in kinds.items() if _has(v, name)}
            )
            chosen = ", ".join(k for kinds in names.values() for k in kinds if k)
            raise InvalidInput(f"{text} is not a setting of {chosen}: it belongs to {', '.join(owners)}")
        if len(holders) > 1:
            holders.pop(_LATER, None)
        if len(holders) > 1:
            ways = " or ".join(f"--{section}.{name.replace('_', '-')}" for section in holders)
            raise InvalidInput(f"{text} could mean several things here: write {ways}")
        section, setting = next(iter(holders.items()))
        parsed = value if isinstance(value, bool) else _parsed(setting, value, text)
        if section == "plan":
            changes[name] = parsed
        else:
            changes.setdefault(section, {})[name] = parsed
    return changes


def _parsed(setting: Setting, value: str, text: str) -> Any:
    try:
        return setting.check(setting.parse(value), text)
    except InvalidInput:
        more = hint(value, setting.choices) or setting.reason
        if setting.type is int and value.isdigit() and len(value) >= 20:
            value, more = f"{value[:6]}...", f" and below 2^64{more}"
        raise InvalidInput(f"{text} {value}: it must be {setting.allowed}{more}") from None


def _find(kinds: Mapping[str, tuple[Setting, ...]], name: str, chosen: Iterable[str]) -> Setting | None:
    return next((s for kind in chosen for s in kinds.get(kind, ()) if s.name == name), None)


def _has(settings: Iterable[Setting], name: str) -> bool:
    return any(s.name == name for s in settings)
