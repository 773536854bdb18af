"""`undrift deploy status`: who is there, since when, how fast, and what they hold, if they tell."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from undrift.deploy import kits
from undrift.deploy.journal import entries
from undrift.deploy.nvflare_pipe import NVFlarePipe
from undrift.deploy.pipe import READY
from undrift.deploy.presence import Presence, ask_after
from undrift.report import words

BAR = 30  # letters of the bar of the slowest site
SOON = 20.0  # seconds for a site to say who it is
UNTOLD = "not told"

Row = dict[str, Any]


def asked(pipe: NVFlarePipe) -> list[Row]:
    """The sites of a federation that has no run on, each as it says."""
    reached = pipe.open(within=60)
    here = ask_after(pipe, [site for site in pipe.sites if reached[site] == READY[0]], SOON)
    return [_present(site, here.get(site, reached[site])) for site in pipe.sites]


def _present(site: str, found: Presence | str) -> Row:
    if isinstance(found, str):
        return {"site": site, "state": found, "since": "", "answered": "", "an answer took": "", "holds": ""}
    since = datetime.fromtimestamp(min(max(found.since, 0.0), time.time()), UTC).strftime("%Y-%m-%d %H:%M UTC")
    took = "-" if found.seconds is None else words.duration(found.seconds)
    holds = _holds(found.samples, found.counts, found.classes or ())
    return {
        "site": site, "state": "ready", "since": since, "answered": found.answered, "an answer took": took,
        "holds": holds,
    }  # fmt: skip


def _holds(samples: int | None, counts: Sequence[int] | None, classes: Sequence[str]) -> str:
    """``180 rows: ill 60, well 120``; only what was told."""
    if samples is None:
        return UNTOLD
    names = list(classes) or ([str(number) for number in range(len(counts))] if counts else [])
    if counts is not None and len(counts) == len(names):
        return f"{samples} rows: {', '.join(f'{name} {count}' for name, count in zip(names, counts, strict=True))}"
    return f"{samples} rows" + (f" of {len(names)} classes" if names else "")


def last_round(kit: Path) -> list[Row]:
    """What the coordinator's log says of every site in the last round of the run that is on."""
    path = kit / "journal.jsonl"
    lines = list(entries(path)) if path.exists() else []
    rounds = [line for line in lines if line["what"] == "round"]
    members: list[Row] = next((line.get("members", []) for line in reversed(lines) if line["what"] == "begins"), [])
    holdings = {member["name"]: _holds(member["samples"], member["counts"], ()) for member in members}
    if not rounds:
        return [
            {"site": site, "state": "no round so far", "holds": holdings.get(site, "")}
            for site in kits.about(kit)["sites"]
        ]
    last = rounds[-1]
    slowest = max((timing["total"] for timing in last["sites"]), default=0.0)
    return [{**_row(timing, last, slowest), "holds": holdings.get(timing["site"], "")} for timing in last["sites"]]


def _row(timing: Mapping[str, Any], last: Mapping[str, Any], slowest: float) -> Row:
    """A site in a round: what it did, and for how long; the bar is as long as the slowest."""
    way = max(0.0, timing["total"] - timing["waited"] - timing["worked"])
    bar = "".join(
        mark * round(BAR * seconds / max(slowest, 1e-9))
        for mark, seconds in (("-", way), (".", timing["waited"]), ("#", timing["worked"]))
    )
    return {
        "site": timing["site"],
        "state": timing["why"] or "answered",
        "round": last["round"],
        "at": last["at"],
        "on the way, s": way,
        "waited, s": timing["waited"],
        "worked, s": timing["worked"],
        "- way . waited # worked": bar,
    }
