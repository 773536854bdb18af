"""Playing an experiment with sites: wait for them, let them join, play the rounds, record, go on where it stopped."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput
from undrift.core.loop import Snapshot
from undrift.core.runtime import Runtime
from undrift.core.states import States
from undrift.deploy.coordinator import JOINING, Member, Mending, Remote, Roster, Rules, register, roster
from undrift.deploy.journal import Journal
from undrift.deploy.pipe import Pipe
from undrift.deploy.protocol import Letter
from undrift.experiment.deployed import deploy, described, public
from undrift.experiment.description import Experiment, read_toml
from undrift.experiment.execute import Result, execute
from undrift.experiment.progress import Glance, Watcher
from undrift.experiment.recorder import InLedger, Recorder
from undrift.ledger.history import History
from undrift.ledger.rows import Entry, Run
from undrift.ledger.store import Ledger

SITES = "sites"  # the name of data and partition in the ledger
AGAIN = 3.0  # seconds between two looks at who is there

Say = Callable[[str], None]


@dataclass(frozen=True)
class Federated:
    """An experiment and the rules of its rounds: what a TOML file with a section ``[deploy]`` describes."""

    experiment: Experiment
    rules: Rules

    @staticmethod
    def load(path: str | Path) -> Federated:
        return Federated.build(read_toml(path), str(path))

    @staticmethod
    def build(values: Mapping[str, Any], where: str) -> Federated:
        values = dict(values)
        section = values.pop("deploy", {})
        if not isinstance(section, Mapping):
            raise InvalidInput(f"{where}: [deploy] must be a table, not {section!r}")
        for key, why in (("partition", "every site holds what it holds"), ("clients", "the sites are the clients")):
            if key in values:
                raise InvalidInput(f"{where}: {key} has no place in a deployment: {why}")
        built = Experiment.build(values, where)
        if built.algorithm.needs_public and "data" not in values:
            title = built.algorithm.title
            raise InvalidInput(f"{where}: {title} needs public data at the coordinator: name them in [data]")
        try:
            rules = Rules.create(**section)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: [deploy]: {error}") from None
        return Federated(built, rules)

    def values(self) -> dict[str, Any]:
        """As the ledger keeps it: the sites are the data, and their partition."""
        found = {k: v for k, v in self.experiment.values().items() if k != "skew"}
        rules = {k: v for k, v in self.rules.values().items() if v is not None}
        data = found["data"] if self.experiment.algorithm.needs_public else {"name": SITES}
        return {**found, "data": data, "partition": {"name": SITES}, "deploy": rules}

    @staticmethod
    def of(run: Run) -> Federated:
        """The inverse, for a run in a ledger."""
        left_out = ("partition", "clients")
        values = {k: v for k, v in run.experiment.items() if k not in left_out and v != {"name": SITES}}
        return Federated.build(values, f"run {run.name!r}")


def rehearsal(values: Mapping[str, Any], sites: int, where: str) -> Experiment:
    """The simulation of a deployment with so many sites: the same seed, the same client numbers, the same bits."""
    fixed = {"clients": sites, "runtime": "serial"}  # a site computes alone; other runtimes round in another order
    for key, value in fixed.items():
        if values.get(key, value) not in (value, "auto"):
            raise InvalidInput(
                f"{where}: {key} = {values[key]!r} is not what {sites} sites do: leave it out (it is {value!r})"
            )
    return Experiment.build({**{k: v for k, v in values.items() if k != "deploy"}, **fixed}, where)


def fingerprint(entry: Entry) -> str:
    """A hash of all that the server holds after a round: two runs that have the same in every round are the same."""
    assert entry.server is not None
    assert entry.buffers is not None
    return hashlib.sha256(entry.server.encode() + entry.buffers.encode()).hexdigest()


class Witnessed:
    """A recorder beside which somebody hears of every round, once it is recorded."""

    def __init__(self, recorder: Recorder, witness: Callable[[Entry], None]) -> None:
        self._inner, self._witness, self.path = recorder, witness, recorder.path

    @property
    def run(self) -> Run:
        return self._inner.run

    def holding(self) -> Any:
        return self._inner.holding()

    def states(self, method: Method, device: str, elsewhere: bool = False) -> States:
        return self._inner.states(method, device, elsewhere)

    def resumed(self, method: Method, device: str) -> Snapshot | None:
        return self._inner.resumed(method, device)

    def began(self, runtime: Runtime) -> None:
        self._inner.began(runtime)

    def record(self, entry: Entry) -> None:
        self._inner.record(entry)
        self._witness(entry)

    def ended(self, status: str, message: str = "") -> None:
        self._inner.ended(status, message)

    def history(self) -> History:
        return self._inner.history()


def federate(
    federated: Federated,
    pipe: Pipe,
    sites: Sequence[str],
    ledger: Ledger,
    journal: Journal,
    *,
    name: str = "",
    again: Run | None = None,
    patience: float = 300.0,
    root: str | Path | None = None,
    say: Say = lambda sentence: None,
    watch: Watcher | None = None,
    within: Glance | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Result:
    """Play an experiment with these sites, from its beginning or, ``again``, from where a run stopped.

    ``say`` is told in sentences who is waited for; ``patience`` is how many seconds that may take.
    """
    experiment, rules = federated.experiment, federated.rules
    title = name or experiment.name or f"{type(experiment.algorithm).name()}-sites-seed{experiment.plan.seed}"
    known = None if again is None else [Member.of(facts) for facts in again.facts["sites"]]
    wanted = sorted(sites) if known is None else [member.name for member in known]
    run = f"{title}-{secrets.token_hex(4)}" if again is None else str(again.facts["deployed"])
    told = described(replace(experiment, name=title if again is None else again.name), rules, len(wanted))
    needed = len(wanted) if known is None else min(rules.quorum or len(wanted), len(wanted))
    present = _gathered(pipe, wanted, run, told, needed, patience, say)
    found = roster(present)
    if known is not None and again is not None:
        found = _the_same(again, known, found)
    deployed = deploy(experiment, found, told, public(experiment, found, root))
    session = {"session": found.session}
    if again is None:
        facts = deployed.facts() | {"deployed": run} | session | dict(extra or {})
        recorded = ledger.add(title, federated.values(), facts)
    else:
        ledger.set_status(again, again.status, facts=session)
        recorded = ledger.run(again.id)
    remote = Remote(deployed.federation, pipe, found, deployed.method, run, told, deployed.settled, rules)
    witness = _witness(journal, run, remote)
    journal.add(
        "begins",
        run=run,
        session=found.session,
        sites=list(found.names),
        experiment=told,
        members=[member.facts() for member in found.members],
    )
    with remote:
        remote.join([name for name in found.names if name in present], JOINING)
        recorder = Witnessed(InLedger(ledger, recorded), witness)
        return execute(deployed, recorder, watch=watch, within=within, runtime=remote)


def _gathered(
    pipe: Pipe, sites: Sequence[str], run: str, told: Mapping[str, Any], needed: int, patience: float, say: Say
) -> dict[str, Letter]:
    """Wait until enough sites say hello. A refusal is final; who is away, or waits for approval, is waited for."""
    until = time.monotonic() + patience
    present: dict[str, Letter] = {}
    said = ""
    while True:
        missing = [site for site in sites if site not in present]
        if isinstance(pipe, Mending):
            pipe.mend(missing, max(1.0, until - time.monotonic()))
        here, absent = register(pipe, missing, run, told, JOINING)
        present |= here
        for site, refusal in absent.items():
            if refusal.kind in ("refused", "bad"):
                raise InvalidInput(f"{site} {refusal}")
        if len(present) >= needed:
            return present
        sentence = "; ".join(f"{site} {refusal}" for site, refusal in sorted(absent.items()))
        if time.monotonic() > until:
            raise InvalidInput(f"{len(present)} of {needed} sites are there after {patience:g} s: {sentence}")
        if sentence != said:
            say(f"{len(present)} of {len(sites)} sites are there; waiting: {sentence}")
            said = sentence
        time.sleep(min(AGAIN, max(0.0, until - time.monotonic())))


def _the_same(again: Run, known: Sequence[Member], found: Roster) -> Roster:
    """The roster of a run that goes on: the client numbers it began with, and the same data behind them."""
    now = {member.name: member for member in found.members}
    for member in known:
        present = now.get(member.name)
        if present is not None and (present.samples, present.data) != (member.samples, member.data):
            raise InvalidInput(
                f"run {again.name!r} cannot go on: {member.name} has other data than it began with "
                f"({member.samples} samples then, {present.samples} now)"
            )
    session = max(found.session, int(again.facts.get("session", 0)) + 1)
    return Roster(tuple(known), found.task, session)


def _witness(journal: Journal, run: str, remote: Remote) -> Callable[[Entry], None]:
    def witness(entry: Entry) -> None:
        with contextlib.suppress(OSError):  # the ledger is what counts
            journal.add(
                "round", run=run, round=entry.round, bits=fingerprint(entry), participants=entry.row.participants,
                rejected=dict(entry.rejections), sites=[vars(timing) for timing in remote.timings],
                journals={name: standing.journal for name, standing in remote.standing.items()},
            )  # fmt: skip

    return witness
