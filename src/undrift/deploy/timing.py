"""What a round took at each site: on the network, waiting, at work, or without an answer. Standard library alone.

The coordinator measures from task to answer; a site says how long it waited and worked, and the rest is the network's.
In a ledger these are notes of a round, a number each, so that every reader of notes has them; ``lines`` reads them.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

PARTS = ("network", "waited", "worked", "unanswered")


@dataclass(frozen=True)
class Timing:
    """What became of one task: seconds."""

    site: str
    total: float
    waited: float = 0.0
    worked: float = 0.0
    why: str = ""  # there was no answer

    @property
    def network(self) -> float:
        return 0.0 if self.why else max(0.0, self.total - self.waited - self.worked)

    @property
    def unanswered(self) -> float:
        return self.total if self.why else 0.0


@dataclass(frozen=True)
class Line:
    """A site in a round: seconds of each part, all tasks of the round together."""

    site: str
    network: float = 0.0
    waited: float = 0.0
    worked: float = 0.0
    unanswered: float = 0.0

    @property
    def total(self) -> float:
        return self.network + self.waited + self.worked + self.unanswered


@dataclass(frozen=True)
class Slowest:
    """The site that was the last in most rounds."""

    site: str
    times: int  # rounds in which it was
    rounds: int  # of so many
    median: Line


def name(part: str, site: str) -> str:
    """What a note of a round is called."""
    return f"seconds {part} at {site}"


def noted(timings: Iterable[Timing]) -> dict[str, float]:
    """The notes of a round. A part that took no time is not noted, but for the work of whoever answered."""
    found: dict[str, float] = {}
    for timing in timings:
        for part in PARTS:
            seconds = getattr(timing, part)
            if seconds or (part == "worked" and not timing.why):
                key = name(part, timing.site)
                found[key] = found.get(key, 0.0) + seconds
    return found


def lines(notes: Mapping[str, object]) -> list[Line]:
    """The inverse of ``noted``: the sites of a round by name. Other notes are passed over."""
    sites: dict[str, dict[str, float]] = {}
    for key, value in notes.items():
        word, _, site = key.partition(" at ")
        part = word.removeprefix("seconds ")
        if part in PARTS and key == name(part, site) and isinstance(value, int | float):
            sites.setdefault(site, {})[part] = float(value)
    return [Line(site, **parts) for site, parts in sorted(sites.items())]


def slowest(rounds: Sequence[Mapping[str, object]]) -> Slowest | None:
    """Who was the last in most rounds, by their notes; None if no site was timed."""
    timed = [found for notes in rounds if (found := lines(notes))]
    if not timed:
        return None
    last = Counter(max(found, key=lambda line: line.total).site for found in timed)
    site, times = max(last.items(), key=lambda item: (item[1], item[0]))
    own = [line for found in timed for line in found if line.site == site]
    median = {part: statistics.median(getattr(line, part) for line in own) for part in PARTS}
    return Slowest(site, times, len(timed), Line(site, **median))
