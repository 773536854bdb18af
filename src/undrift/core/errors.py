"""Errors a user can act on: one sentence that says what, where, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InvalidInput(ValueError):
    """The user's input cannot be used. The command line prints the sentence and exits with 2."""


def unknown(kind: str, name: str, allowed: Iterable[str]) -> InvalidInput:
    """The error for a name that is not in a list: with the nearest name, or else the list."""
    options = sorted(allowed)
    near = nearest(name, options)
    if near:
        return InvalidInput(f"unknown {kind} {name!r}: did you mean {near!r}?")
    return InvalidInput(f"unknown {kind} {name!r}: one of {', '.join(options)}")


def nearest(name: str, options: Iterable[str]) -> str | None:
    """The option that was probably meant, if one is like the name."""
    near = get_close_matches(name.lower(), list(options), n=1, cutoff=0.6)
    return near[0] if near else None


def hint(name: str, options: Iterable[str]) -> str:
    """The end of a sentence that has listed the options: the one that was probably meant, if there is one."""
    near = nearest(name, options)
    return f"; did you mean {near!r}?" if near else ""


def no_features(who: str) -> InvalidInput:
    """The error for a method that needs features on a model that has none."""
    return InvalidInput(
        f"{who} needs features, and the model has no linear layer to take them from: "
        "give the module `features(x)` and `head(z)` with forward(x) == head(features(x))"
    )
