"""Who is there: what a site says of itself outside any run, as far as its policy lets it. Knows no engine.

A site always says since when it runs and how fast it answered of late; how many samples it holds, and of which classes,
only where its operator allows that (``holdings``, and ``class_counts`` for the numbers of each class).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from undrift.deploy import protocol
from undrift.deploy.pipe import Failure, Pipe
from undrift.deploy.protocol import Letter, Refusal

REMEMBERED = 20  # answers behind a site's speed
CLASSES = 10_000  # that a site may name


@dataclass(frozen=True)
class Presence:
    """A site, as it says; None is what it does not tell."""

    since: float  # seconds of the epoch
    answered: int  # tasks since then
    seconds: float | None  # median of the last answers
    samples: int | None = None
    classes: tuple[str, ...] | None = None
    counts: tuple[int, ...] | None = None  # samples of each class


class Pace:
    """How fast a site has answered since it began."""

    def __init__(self) -> None:
        self.answered = 0
        self._last: deque[float] = deque(maxlen=REMEMBERED)

    def add(self, seconds: float) -> None:
        self.answered += 1
        self._last.append(seconds)

    @property
    def seconds(self) -> float | None:
        return statistics.median(self._last) if self._last else None


def ask_after(pipe: Pipe, sites: Sequence[str], seconds: float) -> dict[str, Presence | str]:
    """What each site says of itself, or why it does not."""
    found: dict[str, Presence | str] = {}
    for site, answer in pipe.call(dict.fromkeys(sites, protocol.note("hello")), seconds):
        try:
            if isinstance(answer, Failure):
                found[site] = answer.reason
                continue
            letter = protocol.opened(answer)
            if letter.text("name") != site:
                raise Refusal("bad", f"calls itself {letter.text('name')!r}")
            found[site] = _presence(letter)
        except Refusal as refusal:
            found[site] = str(refusal)
    return found


def _presence(letter: Letter) -> Presence:
    told: Mapping[str, Any] = letter.header
    since, seconds = told.get("since"), told.get("seconds")
    if type(since) not in (int, float) or type(seconds) not in (int, float, type(None)):
        raise Refusal("bad", "does not say since when it is there")
    samples = letter.number("samples") if "samples" in told else None
    return Presence(
        float(since or 0), letter.number("answered"), seconds, samples,
        _listed(told.get("classes"), str), _listed(told.get("counts"), int),
    )  # fmt: skip


def _listed(value: Any, kind: type) -> tuple[Any, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > CLASSES or not all(type(one) is kind for one in value):
        raise Refusal("bad", "does not say which classes it holds")
    return tuple(value)
