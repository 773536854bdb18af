"""Running experiments: from a description, or from a user's own model and data, to a history in a ledger."""

from __future__ import annotations

import contextlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from undrift import algorithms
from undrift.core.client import Method
from undrift.core.cost import Spent
from undrift.core.errors import InvalidInput, unknown
from undrift.core.federation import ModelLike, build
from undrift.core.loop import Loop, Memory, Round, Snapshot, fit
from undrift.core.runtime import Runtime
from undrift.core.training import Training
from undrift.core.vector import Buffers
from undrift.data import PARTITIONERS, SOURCES, Dataset, Partitioner, data_root, load
from undrift.experiment.description import Experiment, Plan, label_of
from undrift.experiment.evaluate import Evaluation
from undrift.experiment.prepare import Loss, Setting, completed, prepare, prepare_experiment
from undrift.ledger.history import History
from undrift.ledger.store import Entry, Ledger, LedgerKeep, Run
from undrift.models import LOSSES, ModelSpec, default_model, spec
from undrift.runtimes import create as create_runtime


@dataclass(frozen=True)
class Progress:
    """Where a run is, for whoever watches."""

    label: str
    seed: int
    round: int
    rounds: int
    value: float | None  # the headline figure so far
    seconds: float  # since this process began the run
    done_here: int  # rounds played by this process

    @property
    def seconds_left(self) -> float | None:
        return self.seconds / self.done_here * (self.rounds - self.round) if self.done_here else None


Watcher = Callable[[Progress], None]


@dataclass(frozen=True)
class Result:
    """A finished (or stopped) run: its history, and the model it ended with."""

    history: History
    module: nn.Module | None
    run: Run | None = None
    ledger: Path | None = None

    @property
    def accuracy(self) -> float:
        """The headline accuracy after the last evaluation."""
        return self.history.final

    @property
    def best(self) -> float:
        return self.history.best

    def reached(self, target: float) -> Any:
        """Rounds, bytes, MACs and seconds to a target accuracy; None if it was not reached."""
        return self.history.reached(target)


def execute(
    setting: Setting,
    *,
    ledger: Ledger | None = None,
    run: Run | None = None,
    watch: Watcher | None = None,
    runtime: Runtime | None = None,
) -> Result:
    """Play the rounds that are left, evaluating and recording as the plan says."""
    method, plan = setting.method, setting.plan
    kind = method.records()["client"]
    keep: Memory | LedgerKeep
    keep = Memory() if ledger is None or run is None else LedgerKeep(ledger, run, kind, plan.device)  # type: ignore[arg-type]
    rows: list[dict[str, Any]] = []
    metrics: list[tuple[int, str, str, str, float | None]] = []
    with contextlib.ExitStack() as stack:
        if ledger is not None and run is not None:
            stack.enter_context(ledger.holding(run))
        value: float | None = None
        try:
            if runtime is None:
                # A resumed run takes over the runtime that was chosen for it, and with it the bits.
                chosen = run.facts.get("runtime", plan.runtime) if run is not None else plan.runtime
                runtime = stack.enter_context(create_runtime(chosen, setting.federation, plan.workers))
            if ledger is not None and run is not None:
                told = {"runtime": runtime.name} | ({"runtime_why": runtime.why} if runtime.why else {})
                ledger.set_status(run, "running", facts=told)
            loop = Loop(setting.federation, method, runtime, setting.participate, keep)
            snapshot = _resumed(ledger, run, method, plan.device) or loop.start()
            first, began = snapshot.round, time.perf_counter()
            while snapshot.round < plan.rounds and not method.finished(snapshot.server):
                played = loop.play(snapshot)
                snapshot = played.snapshot
                keep.save(_worth_keeping(played))
                last = snapshot.round == plan.rounds or method.finished(snapshot.server)
                due = snapshot.round % plan.eval_every == 0 or last
                found = setting.evaluator(loop, snapshot) if due else Evaluation()
                entry = _entry(setting, played, found)
                rows.append({"round": entry.round, **_plain(entry.row)})
                metrics += [(entry.round, *m) for m in found.metrics]
                if ledger is not None and run is not None:
                    ledger.record(run, entry)
                if due:
                    value = found.value() if found.value() is not None else found.value("personal", "own test (mean)")
                if watch is not None:
                    seconds = time.perf_counter() - began
                    watch(
                        Progress(
                            label_of(method),
                            plan.seed,
                            snapshot.round,
                            plan.rounds,
                            value,
                            seconds,
                            snapshot.round - first,
                        )
                    )
        except KeyboardInterrupt:
            if ledger is not None and run is not None:
                ledger.set_status(run, "stopped", "interrupted")
            raise
        except BaseException as error:
            if ledger is not None and run is not None:
                with contextlib.suppress(Exception):
                    ledger.set_status(run, "failed", f"{type(error).__name__}: {error}")
            raise
        if ledger is not None and run is not None:
            ledger.set_status(run, "finished")
            run = ledger.run(run.id)
    history = (
        History.of(ledger, run)
        if ledger is not None and run is not None
        else History(label_of(method), plan.seed, rows, metrics, plan.rounds, facts=setting.facts())
    )
    return Result(history, _module(setting, snapshot), run, ledger.path if ledger else None)


def _resumed(ledger: Ledger | None, run: Run | None, method: Method, device: str) -> Snapshot | None:
    stored = ledger.snapshot(run) if ledger is not None and run is not None else None
    if stored is None:
        return None
    at, server, buffers = stored
    return Snapshot(at, method.records()["server"].decode(server).to(device), Buffers.decode(buffers).to(device))


def _worth_keeping(played: Round) -> dict[int, Any]:
    return {client: kept for client, kept in played.kept.items() if kept.tensors()}


def _entry(setting: Setting, played: Round, found: Evaluation) -> Entry:
    spent: Spent = played.spent
    name = setting.federation.population.name
    return Entry(
        round=played.snapshot.round,
        row={
            "seconds": played.seconds,
            "client_seconds": spent.seconds,
            "bytes_up": spent.bytes_up,
            "bytes_down": spent.bytes_down,
            "gradients": spent.gradients,
            "forwards": spent.forwards,
            "macs": setting.federation.profile.macs(spent),
            "participants": 0 if played.skipped else played.cohort.size,
            "rejected": len(played.rejected),
            "skipped": int(played.skipped),
            "drift": json.dumps(played.drift),
            "notes": json.dumps(played.notes),
        },
        metrics=found.metrics,
        clients=found.clients,
        rejections={name(client): reason for client, reason in played.rejected.items()},
        server=played.snapshot.server,
        buffers=played.snapshot.buffers,
        kept=_worth_keeping(played),
    )


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    return {k: json.loads(v) if k in ("drift", "notes") else v for k, v in row.items()}


def _module(setting: Setting, snapshot: Snapshot) -> nn.Module | None:
    """A plain module with the final global model in it."""
    models = setting.method.models(snapshot.server)
    if not models:
        return None
    module = build(setting.federation.module, setting.plan.seed)
    with torch.no_grad():
        views = setting.federation.layout.views(next(iter(models.values())))
        for name, parameter in module.named_parameters():
            if name in views:
                parameter.copy_(views[name])
        at = {True: 0, False: 0}
        for _, buffer in module.named_buffers():
            floating = buffer.is_floating_point()
            source = snapshot.buffers.floats if floating else snapshot.buffers.counts
            buffer.copy_(source[at[floating] : at[floating] + buffer.numel()].view(buffer.shape))
            at[floating] += buffer.numel()
    return module


# --- the public functions ---------------------------------------------------------------------------------------------


def run(
    algorithm: Method | str = "fedavg",
    *,
    data: Dataset | str = "digits",
    partition: Partitioner | str = "dirichlet",
    model: ModelLike | str | None = None,
    loss: Loss | None = None,
    training: Training | None = None,
    ledger: str | Path | None = None,
    name: str | None = None,
    watch: Watcher | None = None,
    resume: bool = False,
    runtime: str = "serial",
    **plan: Any,
) -> Result:
    """Train one method. Names or your own objects: a ``Dataset``, an ``nn.Module`` (or a factory of one), a loss.

    A factory, rather than a module, lets the seed cover the initial weights too. ``plan`` takes ``clients``,
    ``participate``, ``rounds``, ``seed``, ``eval_every`` and the other fields of ``Plan``. With ``ledger`` every round
    is recorded; ``resume=True`` goes on with the run of that name where it stopped.
    """
    method = algorithms.create(algorithm) if isinstance(algorithm, str) else algorithm
    dataset = load(data) if isinstance(data, str) else data
    if isinstance(partition, str):
        if partition not in PARTITIONERS:
            raise unknown("partition", partition, PARTITIONERS)
        partition = PARTITIONERS[partition].create()
    training, made = training or Training(), Plan.create(**{"runtime": runtime, **plan})
    chosen = spec(model or default_model(dataset)) if model is None or isinstance(model, str) else None
    source = SOURCES[data].create() if isinstance(data, str) else None
    if chosen is not None and source is not None and loss is None:  # all is named: the command line can go on with it
        experiment = Experiment(method, source, partition, chosen, train=training, plan=made)
        setting, description = prepare_experiment(experiment, dataset=dataset), experiment.values()
    else:
        setting = prepare(method, dataset, partition, *_own(model, chosen, loss, dataset), training, made)
        description = {
            "algorithm": {"name": type(method).name(), **method.values()},
            "data": {"name": dataset.name},
            "partition": {"name": partition.name, **partition.values()},
            "model": {"name": "own" if chosen is None else chosen.name},
            "train": training.values(),
            **{k: v for k, v in made.values().items() if v is not None},
            "own": True,
        }
    if ledger is None:
        return execute(setting, watch=watch)
    with Ledger(ledger, create=True) as book:
        title = name or f"{type(method).name()}-{dataset.name}-seed{made.seed}"
        if resume:
            found = book.run(title)
            check_same(found, setting)
        else:
            found = book.add(title, description, setting.facts())
        return execute(setting, ledger=book, run=found, watch=watch)


def _own(model: Any, chosen: ModelSpec | None, loss: Loss | None, dataset: Dataset) -> tuple[ModelLike, Loss]:
    """The user's model and loss, or those of a named model."""
    if chosen is not None:
        shape, classes = dataset.shape, dataset.classes or 1
        return (lambda: chosen.build(shape, classes)), loss or LOSSES[chosen.loss]
    usual = nn.functional.cross_entropy if dataset.classes is not None else nn.functional.mse_loss
    return model, loss or usual


def check_same(run: Run, setting: Setting) -> None:
    """Refuse to resume a run on other data, another partition or another model."""
    facts = setting.facts()
    for key, what in (
        ("data_fingerprint", "the data"),
        ("partition_fingerprint", "the partition"),
        ("start_fingerprint", "the initial model"),
        ("label", "the method's settings"),
        ("training", "the training settings"),
        ("participate", "the clients per round"),
    ):
        if facts[key] != run.facts.get(key):
            raise InvalidInput(
                f"run {run.name!r} cannot go on: {what} differ from what it began with "
                f"({run.facts.get(key)} then, {facts[key]} now)"
            )


def refuse(experiments: Sequence[Experiment], dataset: Dataset) -> None:
    """Refuse before the first run what one of the methods would refuse at its turn. Warnings come at their turn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        federation = prepare_experiment(experiments[0], dataset=dataset).federation
        for method in dict.fromkeys(experiment.algorithm for experiment in experiments):
            fit(method, federation)


def start_experiment(
    experiment: Experiment,
    ledger: Ledger,
    *,
    root: str | Path | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Result:
    """Run a described experiment from its beginning."""
    dataset = dataset if dataset is not None else experiment.data.load(data_root(root))
    experiment = completed(experiment, dataset)
    setting = prepare_experiment(experiment, root, dataset)
    name = experiment.name or f"{type(experiment.algorithm).name()}-{experiment.data.name}-seed{experiment.plan.seed}"
    run = ledger.add(name, experiment.values(), setting.facts() | dict(extra or {}))
    return execute(setting, ledger=ledger, run=run, watch=watch)


def resume_experiment(
    run: Run, ledger: Ledger, *, root: str | Path | None = None, watch: Watcher | None = None, rounds: int | None = None
) -> Result:
    """Go on with a run where it stopped; the same bits as if it had never stopped."""
    if run.experiment.get("own"):
        raise InvalidInput(
            f"run {run.name!r} was started from Python with its own model or data: go on with "
            f"undrift.run(..., ledger={str(ledger.path)!r}, name={run.name!r}, resume=True)"
        )
    experiment = Experiment.build(run.experiment, f"run {run.name!r}")
    if rounds is not None:
        experiment = replace(experiment, plan=replace(experiment.plan, rounds=rounds))
    setting = prepare_experiment(experiment, root)
    check_same(run, setting)
    if rounds is not None:
        run = ledger.set_rounds(run, rounds)
    return execute(setting, ledger=ledger, run=run, watch=watch)
