"""A site: answers messages with its data, its model, its states and its policy. It lives long and knows no engine.

``Site.answer`` is all that a pipe needs. What a run keeps is in a folder of its own, so that a site that was killed
goes on where it was, and a task that comes twice is done once. How an experiment's names become a method and a model is
for the ``Workshop`` to know: this module imports neither algorithms nor data sets.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.client import Judged
from undrift.core.eager import Augment, Trainer
from undrift.core.errors import InvalidInput
from undrift.core.federation import Holding, Model
from undrift.core.named import references
from undrift.core.plugins import is_reference
from undrift.core.records import Message
from undrift.core.reduce import Reply
from undrift.core.stages import Uploads
from undrift.core.wire import Request, StateLost, answer
from undrift.deploy import protocol
from undrift.deploy.journal import Journal
from undrift.deploy.policy import Approvals, Policy, write
from undrift.deploy.presence import Pace
from undrift.deploy.protocol import Kind, Letter, Refusal
from undrift.deploy.vault import Vault

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Data:
    """What a site holds."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor
    task: Kind
    content: str = ""  # a hash of all of it
    augment: Augment | None = None

    def counts(self) -> list[int] | None:
        """How many training samples there are of each class."""
        return None if self.task.classes is None else self.y.bincount(minlength=self.task.classes).tolist()


class Workshop(Protocol):
    """Makes what an experiment names; ``InvalidInput`` if it names what is not installed."""

    def method(self, section: Mapping[str, Any]) -> Method: ...

    def model(self, experiment: Mapping[str, Any], task: Kind) -> Model: ...


@dataclass
class _Run:
    """A run that the site takes part in."""

    client: int
    session: int
    method: Method
    model: Model
    trainer: Trainer
    vault: Vault
    fresh: Any
    uploads: Uploads
    seen: tuple[int, int]  # session and serial number of the last task
    first: Message | None = field(default=None)  # of the survey, for the second exchange


class Site:
    """Answers for one site. ``folder`` is where it keeps what must not be lost."""

    def __init__(self, folder: Path, name: str, data: Data, policy: Policy, workshop: Workshop) -> None:
        self.folder, self.name, self.data, self.policy, self.workshop = folder, name, data, policy, workshop
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.journal = Journal(folder / "journal.jsonl")
        self.approvals = Approvals(folder / "approvals")
        self._runs: dict[str, _Run] = {}
        self._since, self._pace = time.time(), Pace()
        self._busy = threading.Lock()  # a site does one thing at a time
        self.journal.add("started", name=name, samples=len(data.x), data=data.content)

    def close(self) -> None:
        self.journal.close()

    def answer(self, message: bytes) -> bytes:
        """The answer to a message, whatever it is. Never raises."""
        began = time.perf_counter()
        try:
            letter = protocol.look(message)
            if letter.kind == "hello":
                return self._hello(letter)
            with self._busy:
                return self._join(letter) if letter.kind == "join" else self._work(letter, began)
        except Refusal as refusal:
            return self._failed(refusal)
        except StateLost as error:
            return self._failed(Refusal("lost", f"has lost what it kept: {error}"))
        except InvalidInput as error:
            return self._failed(Refusal("error", f"cannot do it: {error}"))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            logger.exception("a message could not be answered")
            return protocol.failed(Refusal("error", "has a full disk" if full else "cannot use its disk"))
        except Exception as error:  # whatever it is, the others must not be told what it says
            logger.exception("a message could not be answered")
            return self._failed(Refusal("error", f"had an error of its own ({type(error).__name__})"))

    def _failed(self, refusal: Refusal) -> bytes:
        try:
            self.journal.add("refused", kind=refusal.kind, why=str(refusal))
            logger.warning("refused: this site %s", refusal)
        except OSError:
            logger.exception("the journal cannot be written")
        return protocol.failed(refusal)

    # -- hello and join -----------------------------------------------------------------------------------------------

    def _hello(self, letter: Letter) -> bytes:
        """Who the site is; what it tells of its data only to an experiment that it allows."""
        if "run" not in letter.header:
            return self._present()
        run, experiment = self._run_name(letter), letter.table("experiment")
        self._allow(experiment)
        data = self.data
        told = {
            "samples": len(data.x),
            "test": len(data.x_test) if len(data.x_test) >= self.policy.smallest_count else 0,
            "task": data.task.plain(),
            "counts": data.counts() if self.policy.class_counts else None,
            "data": data.content,
        }
        self.journal.add("told of its data", run=run, told=told)
        return protocol.note("present", name=self.name, session=self._session(run), **told)

    def _present(self) -> bytes:
        """What may be told to whoever asks outside any experiment."""
        data, holdings = self.data, dict[str, Any]()
        if self.policy.holdings:
            counts = data.counts() if self.policy.class_counts else None
            holdings = {"samples": len(data.x), "classes": list(data.task.class_names), "counts": counts}
            self.journal.add("told of its data", run="", told=holdings)
        return protocol.note(
            "present", name=self.name, busy=self._busy.locked(), torch=torch.__version__, since=self._since,
            answered=self._pace.answered, seconds=self._pace.seconds, **holdings,
        )  # fmt: skip

    def _allow(self, experiment: Mapping[str, Any]) -> None:
        """``Refusal`` if the policy does not allow an experiment; the operator is asked where it says so."""
        section = experiment.get("algorithm")
        if not isinstance(section, dict):
            raise Refusal("bad", "cannot take part in an experiment without a method")
        _installed(experiment)
        try:
            file = protocol.file_of(self.workshop.method(section))
        except InvalidInput as error:
            raise Refusal("refused", f"cannot take part: {error}") from None
        key = self.approvals.key(experiment, " ".join([file, *self._stages(experiment)]))
        try:
            self.policy.check(experiment, str(section["name"]), file, self.approvals.approved(key))
        except Refusal as refusal:
            if refusal.kind == "waiting":
                self.approvals.ask(key, experiment, file)
            raise

    @staticmethod
    def _stages(experiment: Mapping[str, Any]) -> list[str]:
        """The hashes of the installed files of further stages, which only have names here: no path is followed."""
        section = experiment.get("uploads") or {}
        outside = [name for key in ("stages", "reducer") for name in references(str(section.get(key, "")))]
        if outside:
            raise Refusal("refused", f"takes stages and reducers by their installed names alone, not {outside[0]}")
        try:
            return [protocol.file_of(type(stage)) for stage in Uploads.create(**section).chain if section.get("stages")]
        except InvalidInput as error:
            raise Refusal("refused", f"cannot take part: {error}") from None

    def _join(self, letter: Letter) -> bytes:
        """Make a run ready, and say on which terms. What is needed to go on after a restart is on the disk before."""
        run, session, client = self._run_name(letter), letter.number("session"), letter.number("client")
        experiment = letter.table("experiment")
        self._allow(experiment)
        settled = letter.table("settled")
        _installed(settled)
        if not set(settled) <= {"algorithm", "model"} or _name(settled, "algorithm") != _name(experiment, "algorithm"):
            raise Refusal("refused", "was told of one experiment, and is to join another")
        joined = {"session": session, "client": client, "experiment": experiment, "settled": settled}
        if session < self._session(run) or (session == self._session(run) and joined != self._joined(run)):
            raise Refusal("stale", f"has joined another session of {run} already")
        ready = self._ready(run, joined)
        write(self._place(run) / "join.json", json.dumps(joined).encode())
        self._runs = {run: ready}  # one at a time is in memory
        logger.info("joined %s as client %d", run, client)
        self.journal.add("joined", run=run, session=session, client=client, experiment=experiment)
        return protocol.note("joined", terms=protocol.terms(ready.method, ready.model), held=ready.vault.held())

    def _ready(self, run: str, joined: Mapping[str, Any]) -> _Run:
        """``settled``: what the experiment left open and the coordinator has settled, such as a setting on auto."""
        data, client, session = self.data, int(joined["client"]), int(joined["session"])
        settled = joined["settled"]
        method = self.workshop.method(settled["algorithm"])
        made = self.workshop.model({**joined["experiment"], **settled}, data.task)
        model = replace(made, augment=data.augment)
        holding = Holding.of(client, data.x, data.y, data.x_test, data.y_test)
        kind: Any = method.records()["client"]
        vault = Vault(self._place(run), kind)
        seen = max(vault.latest(), (session, 0))
        uploads, fresh = Uploads.create(**joined["experiment"].get("uploads", {})), model.fresh(method)
        return _Run(client, session, method, model, Trainer(model, holding), vault, fresh, uploads, seen)

    def _run_name(self, letter: Letter) -> str:
        run = letter.text("run")
        if not _RUN.fullmatch(run):
            raise Refusal("bad", "cannot use that name of a run")
        return run

    def _place(self, run: str) -> Path:
        place = self.folder / "runs" / run
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        return place

    def _joined(self, run: str) -> dict[str, Any] | None:
        path = self.folder / "runs" / run / "join.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def _session(self, run: str) -> int:
        joined = self._joined(run)
        return 0 if joined is None else int(joined["session"])

    # -- work ---------------------------------------------------------------------------------------------------------

    def _work(self, letter: Letter, began: float) -> bytes:
        name = self._run_name(letter)
        run = self._runs.get(name)
        if run is None:
            joined = self._joined(name)
            if joined is None:
                raise Refusal("unknown", f"has not joined {name}")
            run = self._ready(name, joined)
            self._runs = {name: run}
        place = (letter.number("session", inside="extra"), letter.number("serial", inside="extra"))
        if place[0] != run.session or place < run.seen:
            raise Refusal("stale", "has seen later tasks than this one")
        run.seen = place
        round, identity = letter.number("round"), letter.identity()
        if letter.number("client") != run.client:
            raise Refusal("refused", f"is client {run.client} of this run, not {letter.number('client')}")
        if round > self.policy.largest_rounds + 1:  # the last evaluation is asked for under the number after it
            raise Refusal("refused", f"allows at most {self.policy.largest_rounds} rounds")
        stored = run.vault.stored(round, identity) if letter.kind == "update" else None
        if stored is not None:
            self.journal.add("answered again", run=name, kind=letter.kind, round=round, task=identity)
            return stored
        return self._do(name, run, letter, identity, place, began)

    def _do(self, name: str, run: _Run, letter: Letter, identity: str, place: tuple[int, int], began: float) -> bytes:
        request = protocol.request(letter, run.method, run.model.layout, run.first)
        if request.kind == "survey":
            run.first = request.down
        waited = time.perf_counter() - began
        reply = self._withheld(request, self._worked(name, run, request))
        worked = time.perf_counter() - began - waited
        data = protocol.reply(run.method, reply, {"waited": waited, "worked": worked}, self.journal.head)
        if request.kind == "update":
            run.vault.store(request.round, identity, place, data)
        self.journal.add(
            "answered", run=name, kind=request.kind, round=request.round, task=identity,
            sent=hashlib.sha256(data).hexdigest(), bytes=len(data), seconds=float(f"{worked:.3g}"),
        )  # fmt: skip
        self._pace.add(worked)
        logger.info("%s, round %d: %s answered in %.2f s", name, request.round, request.kind, worked)
        return data

    def _worked(self, name: str, run: _Run, request: Request) -> Reply:
        try:
            return answer(request, run.method, run.trainer, run.vault, run.fresh, run.uploads)
        except StateLost:
            if request.extra.get("afresh") is not True:
                raise
        self.journal.add("begins afresh", run=name, round=request.round, lost=request.accepted)
        again = replace(request, accepted=0)
        return answer(again, run.method, run.trainer, run.vault, run.fresh, run.uploads)

    def _withheld(self, request: Request, reply: Reply) -> Reply:
        """A figure that too few samples stand behind is not told: it says that there are none."""
        if request.kind != "evaluate" or float(reply.up.count) >= self.policy.smallest_count:
            return reply
        zero = torch.zeros((), dtype=torch.float64)
        return replace(reply, up=Judged(zero, zero, zero))


def _name(experiment: Mapping[str, Any], part: str) -> str:
    section = experiment.get(part)
    return str(section.get("name", "")) if isinstance(section, dict) else ""


def _installed(experiment: Mapping[str, Any]) -> None:
    """``Refusal`` if a method or a model is named by a file or a place: the site would run what somebody else chose."""
    for part in ("algorithm", "model"):
        if is_reference(_name(experiment, part)):
            raise Refusal(
                "refused", f"takes methods and models by their installed names alone, not {_name(experiment, part)}"
            )
