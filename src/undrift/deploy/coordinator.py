"""The coordinator's half: who takes part, and a runtime whose clients are sites behind a pipe. It has no client's data.

``register`` asks the sites who they are, ``Remote`` is the runtime of the ordinary loop. Of a client's state it knows
the round that was accepted last, and says so in every task. Knows no engine: a pipe carries the bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np

from undrift.core.admit import Door
from undrift.core.algorithm import Method
from undrift.core.check import Rejected
from undrift.core.errors import InvalidInput
from undrift.core.federation import Registered
from undrift.core.reduce import Reply
from undrift.core.runtime import Exchanged, Runtime, Task
from undrift.core.settings import Settings, at_least, positive
from undrift.core.wire import Request
from undrift.deploy import protocol
from undrift.deploy.pipe import Failure, Pipe
from undrift.deploy.protocol import Kind, Letter, Refusal
from undrift.deploy.timing import Timing, noted

JOINING = 60.0  # seconds to make a run ready at a site

logger = logging.getLogger(__name__)


class Abandoned(InvalidInput):
    """A run that cannot go on now. What was done is recorded, and it can go on when what is said was mended."""


class Rules(Settings):
    """How long a round waits, for how many, and what happens when they do not come: the section ``[deploy]``."""

    deadline: Annotated[float, "seconds that sites have to answer a task", positive()] = 600.0
    quorum: Annotated[int | None, "answers that a round needs; left out: all that were asked", at_least(1)] = None
    enough: Annotated[int | None, "answers that close a round; left out: all that were asked", at_least(1)] = None
    attempts: Annotated[int, "how often a round is tried before the run stops", at_least(1)] = 5
    pause: Annotated[float, "seconds before the second attempt; it doubles from one to the next", positive()] = 2.0
    lost_state: Annotated[
        Literal["stop", "afresh"], "a site that has lost what it kept: the run stops, or the site begins afresh"
    ] = "stop"


@runtime_checkable
class Mending(Protocol):
    """A pipe that can do something about sites that it does not reach."""

    def mend(self, sites: Sequence[str], within: float) -> None: ...


@runtime_checkable
class Counting(Protocol):
    """A pipe that counts bytes where they leave this process and enter it."""

    @property
    def traffic(self) -> tuple[int, int]:
        """Sent, and received."""


@dataclass(frozen=True)
class Member:
    """A site as it registered."""

    name: str
    samples: int
    test: int
    data: str  # a hash of its data
    counts: tuple[int, ...] | None = None  # samples of each class, if it tells

    def facts(self) -> dict[str, Any]:
        """As the ledger keeps it."""
        return {**vars(self), "counts": None if self.counts is None else list(self.counts)}

    @staticmethod
    def of(facts: Mapping[str, Any]) -> Member:
        """The inverse of ``facts``."""
        counts = facts["counts"]
        return Member(**{**facts, "counts": None if counts is None else tuple(counts)})


@dataclass(frozen=True)
class Roster:
    """Who takes part. The client numbers are the places in ``members``, by name; they never change in a run."""

    members: tuple[Member, ...]
    task: Kind
    session: int = 1  # later than any that a site has joined

    def __len__(self) -> int:
        return len(self.members)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self.members)

    @property
    def samples(self) -> Any:
        return np.array([member.samples for member in self.members], dtype=np.int64)


def register(
    pipe: Pipe, sites: Sequence[str], run: str, experiment: Mapping[str, Any], seconds: float
) -> tuple[dict[str, Letter], dict[str, Refusal]]:
    """Say hello to the sites: what each of them says of itself, or why it does not."""
    message = protocol.note("hello", run=run, experiment=dict(experiment))
    present: dict[str, Letter] = {}
    absent: dict[str, Refusal] = {}
    for site, answer in pipe.call(dict.fromkeys(sites, message), seconds):
        try:
            present[site] = _opened(answer)
            if present[site].text("name") != site:
                raise Refusal("bad", f"calls itself {present[site].text('name')!r}")
        except Refusal as refusal:
            present.pop(site, None)
            absent[site] = refusal
    return present, absent


def roster(present: Mapping[str, Letter]) -> Roster:
    """The sites that said hello, with what they must have in common. ``InvalidInput`` if they have not."""
    members, kinds = [], {}
    for site, letter in sorted(present.items()):
        counts = letter.header.get("counts")
        told = tuple(map(int, counts)) if isinstance(counts, list) else None
        members.append(Member(site, letter.number("samples"), letter.number("test"), letter.text("data"), told))
        kinds[site] = Kind.of(letter.table("task"))
    first = next(iter(kinds))
    words = {"shape": "inputs of shape", "classes": "classes", "outputs": "outputs", "class_names": "classes called"}
    for site, kind in kinds.items():
        for part, what in words.items():
            mine, theirs = getattr(kinds[first], part), getattr(kind, part)
            if mine != theirs:
                raise InvalidInput(f"{first} has {what} {mine}, and {site} has {theirs}: all sites must have the same")
    session = 1 + max(letter.number("session") for letter in present.values())
    return Roster(tuple(members), kinds[first], session)


def _opened(answer: bytes | Failure) -> Letter:
    if isinstance(answer, Failure):
        raise Refusal("error", answer.reason)
    return protocol.opened(answer)


@dataclass
class Standing:
    """How a site has done of late."""

    joined: bool = False
    missed: int = 0  # tasks in a row
    why: str = ""
    journal: str = ""  # the last line of its log that it told


class Remote(Runtime):
    """Clients are sites. A round that too few of them answer is asked for again, as it was, until it is answered."""

    name = "sites"
    elsewhere = True

    def __init__(
        self,
        federation: Registered,
        pipe: Pipe,
        roster: Roster,
        method: Method,
        run: str,
        experiment: Mapping[str, Any],
        settled: Mapping[str, Any],
        rules: Rules,
    ) -> None:
        super().__init__(federation)  # type: ignore[arg-type]  # whoever holds no rows needs none of what it has more
        self.pipe, self.roster, self.run, self.rules = pipe, roster, run, rules
        self.patience = rules.deadline  # a site may send again what it worked out before
        self.experiment, self.settled = dict(experiment), dict(settled)
        self.terms = protocol.terms(method, federation)
        self.standing = {name: Standing() for name in roster.names}
        self.timings: list[Timing] = []
        self._before = (0, 0)
        self._serial = 0
        self._stop = threading.Event()

    def close(self) -> None:
        self._stop.set()

    # -- joining ------------------------------------------------------------------------------------------------------

    def join(self, sites: Sequence[str], seconds: float) -> None:
        """Let sites join the run. ``InvalidInput`` if one of them would work on other terms."""
        numbers = {name: number for number, name in enumerate(self.roster.names)}
        messages = {
            site: protocol.note(
                "join",
                run=self.run,
                session=self.roster.session,
                client=numbers[site],
                experiment=self.experiment,
                settled=self.settled,
            )
            for site in sites
        }
        for site, answer in self.pipe.call(messages, seconds):
            standing = self.standing[site]
            try:
                letter = _opened(answer)
                self._agree(site, letter.table("terms"))
                standing.joined, standing.missed = True, 0
            except Refusal as refusal:
                standing.why = str(refusal)
                logger.warning("%s %s", site, refusal)

    def _agree(self, site: str, theirs: Mapping[str, Any]) -> None:
        for part, mine in self.terms.items():
            if theirs.get(part) != mine:
                raise InvalidInput(
                    f"{site} has another {part} than the coordinator ({_short(theirs.get(part))} there, "
                    f"{_short(mine)} here): install the same at both"
                )

    # -- rounds -------------------------------------------------------------------------------------------------------

    def exchange(self, task: Task) -> Exchanged:
        if task.kind == "survey" or (task.kind == "update" and task.first is None):
            self.timings, self._before = [], self._traffic()
        done = super().exchange(task)
        if task.kind == "update":
            answered = [timing for timing in self.timings if not timing.why]
            for name in ("worked", "waited", "network"):
                longest = max((getattr(timing, name) for timing in answered), default=0.0)
                done.cohort.note(f"seconds {name}, slowest site", longest)
            for name, seconds in noted(self.timings).items():
                done.cohort.note(name, seconds)
            for name, before, after in zip(("down", "up"), self._before, self._traffic(), strict=True):
                done.cohort.note(f"bytes at the socket, {name}", after - before)
        return done

    def _traffic(self) -> tuple[int, int]:
        return self.pipe.traffic if isinstance(self.pipe, Counting) else (0, 0)

    def replies(self, task: Task) -> Iterator[Reply | Rejected]:
        door = Door(self.expecting(task), beside=protocol.BESIDE)
        asked = {self.roster.names[int(client)]: place for place, client in enumerate(task.cohort.ids)}
        quorum = min(self.rules.quorum or len(asked), len(asked))
        enough = max(quorum, min(self.rules.enough or len(asked), len(asked)))
        sound = 0
        for attempt in range(self.rules.attempts):
            if attempt:
                self._again(task, list(asked), sound, quorum, attempt)
            for site, reply in self._asked(task, asked, door):
                asked.pop(site)
                yield reply
                sound += isinstance(reply, Reply)
                if sound >= enough:
                    return
            if sound >= quorum:
                return
        reasons = "; ".join(f"{site} {self.standing[site].why}" for site in asked)
        raise Abandoned(
            f"round {task.cohort.round}: {sound} of {sound + len(asked)} sites answered, {quorum} are needed "
            f"({reasons}); what was done is recorded: the run can go on from here"
        )

    def _again(self, task: Task, missing: list[str], sound: int, quorum: int, attempt: int) -> None:
        why = "; ".join(f"{site} {self.standing[site].why}" for site in missing)
        logger.warning("round %s has %s of %s answers: again (%s)", task.cohort.round, sound, quorum, why)
        self._stop.wait(self.rules.pause * 2 ** (attempt - 1))
        self._mend(missing)

    def _mend(self, sites: Sequence[str]) -> None:
        if isinstance(self.pipe, Mending):
            self.pipe.mend(sites, self.rules.deadline)

    def _asked(self, task: Task, asked: Mapping[str, int], door: Door) -> Iterator[tuple[str, Reply | Rejected]]:
        """Ask sites once, and give the replies as they come. A site that only needs more to know is asked again."""
        until = time.monotonic() + self.rules.deadline
        away = [site for site in asked if not self.standing[site].joined]
        if away:
            self._mend(away)
            self.join(away, min(JOINING, self.rules.deadline))
        todo: dict[str, dict[str, Any]] = {site: {} for site in asked if self.standing[site].joined}
        while todo:
            self._serial += 1
            messages = {site: self._message(task, asked[site], more) for site, more in todo.items()}
            todo = {}
            began = time.monotonic()
            for site, answer in self.pipe.call(messages, max(until - began, 0.01)):
                took = time.monotonic() - began
                try:
                    letter = _opened(answer)
                    self._answered(task, site, letter, took)
                    yield site, door.admit(int(task.cohort.ids[asked[site]]), letter.data)
                except Refusal as refusal:
                    more = self._remedy(site, refusal)
                    if more is not None and time.monotonic() < until:
                        todo[site] = more
                    else:
                        self._missed(site, str(refusal), took)

    def _message(self, task: Task, place: int, more: Mapping[str, Any]) -> bytes:
        client = int(task.cohort.ids[place])
        return Request(
            kind=task.kind,
            client=client,
            round=task.cohort.round,
            down=task.down.row(place),
            accepted=self.states.accepted(client),
            buffers=task.buffers if task.buffers and task.method.shares_buffers else None,
            first=task.first.row(place) if task.first is not None and more.get("first") else None,
            run=self.run,
            carried=task.carried,
            extra={"session": self.roster.session, "serial": self._serial, "afresh": bool(more.get("afresh"))},
        ).encode()

    def _answered(self, task: Task, site: str, letter: Letter, took: float) -> None:
        standing = self.standing[site]
        standing.missed, standing.why = 0, ""
        standing.journal = str(letter.header.get("journal", ""))[:64]
        if task.kind != "evaluate":
            self.timings.append(Timing(site, took, *protocol.spans(letter)))

    def _remedy(self, site: str, refusal: Refusal) -> dict[str, Any] | None:
        """What else to tell a site that refused a task; None: there is nothing to be done now."""
        match refusal.kind:
            case "survey":
                return {"first": True}
            case "unknown":
                self.join([site], JOINING)
                return {} if self.standing[site].joined else None
            case "lost" if self.rules.lost_state == "afresh":
                logger.warning("%s %s; it begins afresh", site, refusal)
                return {"afresh": True, "first": True}
            case "lost":
                raise Abandoned(
                    f'{site} {refusal}; restore its folder, or let it begin afresh with lost_state = "afresh" '
                    "in [deploy]"
                )
        return None

    def _missed(self, site: str, why: str, took: float) -> None:
        standing = self.standing[site]
        standing.missed, standing.why = standing.missed + 1, why
        standing.joined = standing.missed < 2  # then it must join again before it is asked
        self.timings.append(Timing(site, took, why=why))


def _short(value: Any) -> str:
    return str(value)[:16]
