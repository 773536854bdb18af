"""Playing the rounds of a prepared experiment, evaluating and recording as its plan says."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.figure import HEADLINE, Figure
from undrift.core.loop import Loop, Round, Snapshot
from undrift.core.runtime import Runtime
from undrift.core.spent import Spent
from undrift.experiment.description import label_of
from undrift.experiment.evaluate import Evaluation
from undrift.experiment.limit import TIME, Limit, Meter, simulated
from undrift.experiment.notebook import chart
from undrift.experiment.patience import Patience
from undrift.experiment.prepare import Ready
from undrift.experiment.progress import Glance, Progress, Watcher, Within
from undrift.experiment.recorder import Recorder
from undrift.experiment.takeout import Taken, global_module, named
from undrift.ledger.history import History
from undrift.ledger.rows import Entry, RoundRow, Run
from undrift.runtimes import create as create_runtime


@dataclass(frozen=True)
class Result:
    """A finished (or stopped) run: its history, and the model it ended with, or its best (``keep="best"``)."""

    history: History
    module: nn.Module | None
    run: Run | None = None
    ledger: Path | None = None
    sample: Tensor | None = None  # a batch of one input
    round: int | None = None  # that the model is of

    @property
    def figure(self) -> Figure:
        """What the run is judged by."""
        return self.history.main_curve

    @property
    def value(self) -> float:
        """The headline figure after the last evaluation: an accuracy, or the loss of a regression."""
        return self.history.final

    @property
    def accuracy(self) -> float:
        """The headline accuracy after the last evaluation. What has no classes has no accuracy."""
        if not self.figure.share:
            raise InvalidInput(
                f"this run has no accuracy: it is judged by the {self.figure.words}; `value` is {self.value:.4g}"
            )
        return self.value

    @property
    def best(self) -> float:
        return self.history.best

    def reached(self, target: float) -> Any:
        """Rounds, bytes, MACs and seconds to a target accuracy; None if it was not reached."""
        return self.history.reached(target)

    def save(self, path: str | Path) -> Path:
        """Write the global model to a file: ``.safetensors``, ``.pt`` (a state_dict) or ``.onnx``."""
        if self.module is None:
            raise InvalidInput(f"{self.history.label} has no global model to save: its clients have their own")
        return Taken(self.module, self.sample, self.history, named(self.history, self.round)).save(path)

    def __repr__(self) -> str:
        value = f"{100 * self.value:.1f} %" if self.figure.share else f"{self.value:.4g}"
        rounds = len(self.history.rounds)
        count = f"{rounds} round{'' if rounds == 1 else 's'}"
        return f"<{self.history.label}, seed {self.history.seed}: {value} {self.figure.words} after {count}>"

    def _repr_html_(self) -> str:
        """In a notebook: the figures, the costs, and the curve that the run is judged by."""
        history = self.history
        last = [(figure, history.curve(figure)[1][-1]) for figure in history.figures]
        told = [(f.words, f"{100 * v:.1f} %" if f.share else f"{v:.4g}") for f, v in last]
        costs = (("bytes_up", "bytes up"), ("bytes_down", "bytes down"), ("macs", "client multiply-accumulates"))
        told += [(words, f"{history.total(column):,.0f}") for column, words in costs]
        rows = "".join(f"<tr><td>{escape(what)}</td><td>{value}</td></tr>" for what, value in told)
        drawn = chart({history.label: history.curve()}, self.figure.words, self.figure.share)
        return f"<p>{escape(repr(self)[1:-1])}</p><table><tbody>{rows}</tbody></table>{drawn}"


def execute(
    prepared: Ready,
    recorder: Recorder,
    *,
    watch: Watcher | None = None,
    within: Glance | None = None,
    runtime: Runtime | None = None,
    workers: int | None = None,
) -> Result:
    """Play the rounds that are left."""
    plan = prepared.plan
    with recorder.holding(), contextlib.ExitStack() as stack:
        try:
            if runtime is None:
                # A resumed run takes over the runtime that was chosen for it, and with it the bits.
                chosen = recorder.run.facts.get("runtime", plan.runtime)
                assert isinstance(prepared.federation, Federation), "sites need a runtime of their own"
                made = create_runtime(
                    chosen,
                    prepared.federation,
                    workers or plan.workers,
                    prepared.method,
                    ray_address=plan.ray_address,
                    ray_gpus=plan.ray_gpus,
                    ray_sum=plan.ray_sum,
                )
                runtime = stack.enter_context(made)
            recorder.began(runtime)
            snapshot = _played(prepared, recorder, runtime, _Watch(prepared, recorder.run.name, watch, within))
        except KeyboardInterrupt:
            recorder.ended("stopped", "interrupted")
            raise
        except BaseException as error:
            with contextlib.suppress(Exception):
                recorder.ended("failed", f"{type(error).__name__}: {error}")
            raise
        recorder.ended("finished")
    sample = prepared.federation.sample
    return Result(
        recorder.history(), global_module(prepared, snapshot), recorder.run, recorder.path, sample, snapshot.round
    )


def _played(prepared: Ready, recorder: Recorder, runtime: Runtime, watch: _Watch) -> Snapshot:
    method, plan = prepared.method, prepared.plan
    runtime.states = recorder.states(method, plan.device, runtime.elsewhere)
    loop = Loop(prepared.federation, method, runtime, prepared.participate, prepared.uploads)
    snapshot = loop.start(recorder.resumed(method, plan.device))
    limit = Limit.parse(plan.limit)
    meter = Meter(limit, recorder.history().rounds if limit.amounts else ())
    keeps = plan.keep == "best"
    patience = Patience.of(plan.patience, recorder.history()) if plan.patience or keeps else Patience()
    watch.begin(snapshot, runtime)
    while snapshot.round < plan.rounds and meter.open and patience.left and not method.finished(snapshot.server):
        watch.next()
        played = loop.play(snapshot)
        snapshot = played.snapshot
        if TIME in limit.amounts:
            played.notes[TIME] = simulated(played, method.pools_data)
        row = _row(prepared, played)
        meter.add(row)
        last = snapshot.round == plan.rounds or not meter.open or method.finished(snapshot.server)
        found, best = Evaluation(), False
        if snapshot.round % plan.eval_every == 0 or last:
            watch.evaluating()
            found = prepared.evaluator(loop, snapshot)
            best = patience.see(found.chosen_by) and keeps
        recorder.record(replace(_entry(prepared, played, row, found), best=best))
        watch.played(snapshot, found)
    return recorder.best(method, plan.device) or snapshot if keeps else snapshot


class _Watch:
    """Tells whoever watches where the run is."""

    def __init__(self, prepared: Ready, run: str, watch: Watcher | None, within: Glance | None) -> None:
        self._label, self._plan, self._cohort = label_of(prepared.method), prepared.plan, prepared.participate
        self._run, self._watch, self._within = run, watch, within
        self._value: tuple[Figure, float | None] = (HEADLINE, None)
        self._evaluating = 0.0

    def begin(self, snapshot: Snapshot, runtime: Runtime) -> None:
        self._first = self._round = snapshot.round
        self._began = self._since = time.perf_counter()
        if self._within is not None:
            runtime.notice = self._answered

    def next(self) -> None:
        self._round += 1
        self._since, self._judging = time.perf_counter(), False

    def _answered(self, clients: int) -> None:
        self._glance("training", clients)

    def evaluating(self) -> None:
        self._since, self._judging = time.perf_counter(), True
        self._glance("evaluating", 0)

    def _glance(self, doing: Any, clients: int) -> None:
        if self._within is not None:
            plan, spent = self._plan, time.perf_counter() - self._since
            where = (self._label, plan.seed, self._round, plan.rounds)
            self._within(Within(*where, doing, clients, self._cohort, spent, self._run))

    def played(self, snapshot: Snapshot, found: Evaluation) -> None:
        now = time.perf_counter()
        self._value = found.headline or self._value
        self._evaluating += now - self._since if self._judging else 0
        if self._watch is None:
            return
        plan, (figure, value), done = self._plan, self._value, snapshot.round - self._first
        where, seconds = (self._label, plan.seed, snapshot.round, plan.rounds), now - self._began
        self._watch(Progress(*where, value, seconds, done, figure, self._evaluating, self._run))


def _row(prepared: Ready, played: Round) -> RoundRow:
    spent: Spent = played.spent
    return RoundRow(
        round=played.snapshot.round,
        seconds=played.seconds,
        client_seconds=spent.seconds,
        bytes_up=spent.bytes_up,
        bytes_down=spent.bytes_down,
        gradients=spent.gradients,
        forwards=spent.forwards,
        head_gradients=spent.head_gradients,
        macs=min(prepared.federation.profile.macs(spent), 2**63 - 1),  # clients count their passes; a row holds 64 bits
        participants=0 if played.skipped else played.cohort.size,
        rejected=len(played.rejected),
        skipped=int(played.skipped),
        drift=played.drift,
        notes=played.notes,
    )


def _entry(prepared: Ready, played: Round, row: RoundRow, found: Evaluation) -> Entry:
    name = prepared.federation.population.name
    return Entry(
        row,
        metrics=found.metrics,
        clients=found.clients | found.counts,
        rejections={name(client): reason for client, reason in played.rejected.items()},
        server=played.snapshot.server,
        buffers=played.snapshot.buffers,
    )
