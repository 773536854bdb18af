"""Beginning runs and going on with them: from Python with one's own objects, or from a description."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from undrift import algorithms
from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput, unknown
from undrift.core.federation import ModelLike
from undrift.core.settings import Settings
from undrift.core.stages import Uploads
from undrift.core.training import Training
from undrift.data import PARTITIONERS, SOURCES, Dataset, Partitioner, data_root, load
from undrift.experiment.bars import watcher
from undrift.experiment.description import Experiment, Plan, differences
from undrift.experiment.execute import Result, execute
from undrift.experiment.machine import changes
from undrift.experiment.prepare import Loss, Prepared, completed, prepare, prepare_experiment
from undrift.experiment.progress import Glance, Watcher
from undrift.experiment.recorder import InLedger, InMemory, tracked
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.models import ModelSpec, default_model, fitted, spec
from undrift.runtimes import check_workers


def run(
    algorithm: Method | str = "fedavg",
    *,
    data: Dataset | str = "digits",
    partition: Partitioner | str | None = None,
    model: ModelLike | ModelSpec | str | None = None,
    loss: Loss | None = None,
    training: Training | None = None,
    uploads: Uploads | None = None,
    ledger: str | Path | None = None,
    name: str | None = None,
    watch: Watcher | None = None,
    resume: bool = False,
    strict: bool = False,
    track: str | None = None,
    facts: Mapping[str, Any] | None = None,
    runtime: str = "serial",
    **plan: Any,
) -> Result:
    """Train one method. Names or your own objects: a ``Dataset``, an ``nn.Module`` (or a factory of one), a loss.

    Without ``partition`` the clients that the data name are used, or else a Dirichlet draw over the classes.
    A factory, rather than a module, lets the seed cover the initial weights too. ``plan`` takes ``clients``,
    ``participate``, ``rounds``, ``seed``, ``eval_every`` and the other fields of ``Plan``. ``uploads`` says what
    happens to uploads on their way, such as ``Uploads(clip=10)``. With ``ledger`` every round is recorded;
    ``resume=True`` goes on with the run of that name where it stopped, and with ``strict=True`` only where the same
    versions run on the same kind of processor, so that the bits are sure to be the same. ``track`` writes the rounds to
    ``"tensorboard"`` or ``"mlflow"`` too, with a ledger or without. ``facts`` are recorded beside the description.
    """
    watch = watcher(watch)
    method, dataset = _method(algorithm), _dataset(data)
    usual = "dirichlet" if dataset.client is None else "column"
    partition, training, passage = _partitioner(partition or usual), _training(training), _uploads(uploads)
    made = Plan.create(**{"runtime": runtime, **plan})
    check_workers(made.workers)
    chosen = _spec(model, dataset)
    source = SOURCES[data].create() if isinstance(data, str) else None
    if chosen is not None and source is not None and loss is None:  # all is named: the command line can go on with it
        experiment = Experiment(method, source, partition, chosen, train=training, uploads=passage, plan=made)
        prepared, description = prepare_experiment(experiment, dataset=dataset), experiment.values()
    else:
        prepared = prepare(
            method, dataset, partition, *_own(model, chosen, loss, dataset), training, made, uploads=passage
        )
        description = {
            "algorithm": {"name": type(method).name(), **method.values()},
            "data": {"name": dataset.name},
            "partition": {"name": partition.name, **partition.values()},
            "model": {"name": "own"} if chosen is None else {"name": chosen.name, **chosen.values()},
            "train": training.values(),
            **({} if passage == Uploads() else {"uploads": passage.values()}),
            **{k: v for k, v in made.values().items() if v is not None},
            "own": True,
        }
    title = name or f"{type(method).name()}-{dataset.name}-seed{made.seed}"
    if ledger is None:
        return execute(prepared, tracked(InMemory(prepared, title, description), track), watch=watch)
    with Ledger(ledger, create=True) as book:
        if resume:
            found = book.run(title)
            check_same(found, prepared, strict)
            book.verify(found)
        else:
            found = book.add(title, description, prepared.facts() | dict(facts or {}))
        return execute(prepared, tracked(InLedger(book, found), track), watch=watch)


def start_experiment(
    experiment: Experiment,
    ledger: Ledger,
    *,
    root: str | Path | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    within: Glance | None = None,
    extra: Mapping[str, Any] | None = None,
    track: str | None = None,
    workers: int | None = None,
) -> Result:
    """Run a described experiment from its beginning. ``extra`` is recorded among the run's facts."""
    check_workers(workers or experiment.plan.workers)
    dataset = dataset if dataset is not None else experiment.data.load(data_root(root))
    experiment = completed(experiment, dataset)
    prepared = prepare_experiment(experiment, root, dataset)
    name = experiment.name or f"{type(experiment.algorithm).name()}-{experiment.data.name}-seed{experiment.plan.seed}"
    run = ledger.add(name, experiment.values(), prepared.facts() | dict(extra or {}))
    recorder = tracked(InLedger(ledger, run), track)
    return execute(prepared, recorder, watch=watch, within=within, workers=workers)


def resume_experiment(
    run: Run,
    ledger: Ledger,
    *,
    root: str | Path | None = None,
    dataset: Dataset | None = None,
    watch: Watcher | None = None,
    within: Glance | None = None,
    rounds: int | None = None,
    track: str | None = None,
    workers: int | None = None,
    strict: bool = False,
) -> Result:
    """Go on with a run where it stopped; the same bits as if it had never stopped."""
    if run.experiment.get("own"):
        raise InvalidInput(
            f"run {run.name!r} was started from Python with its own model or data: go on with "
            f"undrift.run(..., ledger={str(ledger.path)!r}, name={run.name!r}, resume=True)"
        )
    if "deployed" in run.facts:
        raise InvalidInput(f"run {run.name!r} is a deployment: go on with `undrift deploy run --resume {run.name}`")
    experiment = Experiment.build(run.experiment, f"run {run.name!r}")
    if rounds is not None:
        experiment = replace(experiment, plan=replace(experiment.plan, rounds=rounds))
    prepared = prepare_experiment(experiment, root, dataset)
    check_same(run, prepared, strict)
    ledger.verify(run)
    if rounds is not None:
        run = ledger.set_rounds(run, rounds)
    recorder = tracked(InLedger(ledger, run), track)
    return execute(prepared, recorder, watch=watch, within=within, workers=workers)


def check_same(run: Run, prepared: Prepared, strict: bool = False) -> None:
    """Refuse to resume a run on other data, another partition or another model; and, where it is ``strict``, with other
    versions or on another kind of processor, which is only said otherwise."""
    facts = prepared.facts()
    usual: dict[str, Settings] = {"training": Training(), "uploads": Uploads()}  # for settings that came later
    then = run.facts | {key: kind.values() | run.facts.get(key, {}) for key, kind in usual.items()}
    for key, what in (
        ("data_fingerprint", "the data"),
        ("partition_fingerprint", "the partition"),
        ("start_fingerprint", "the initial model"),
        ("label", "the method's settings"),
        ("code", "the method's file and that"),
        ("uploads_code", "the files of stages and reducer"),
        ("training", "the training settings"),
        ("uploads", "the settings of the uploads"),
        ("participate", "the clients per round"),
    ):
        if facts.get(key) != then.get(key):
            raise InvalidInput(
                f"run {run.name!r} cannot go on: {what} differ from what it began with "
                f"({then.get(key)} then, {facts.get(key)} now)"
            )
    other = changes(run.facts.get("versions", {}), facts["versions"])
    if other and strict:
        raise InvalidInput(f"run {run.name!r} cannot go on with the same bits: {'; '.join(other)}")
    if other:
        warnings.warn(f"run {run.name!r} goes on, but its bits may differ: {'; '.join(other)}", stacklevel=2)


def check_described(run: Run, experiment: Experiment) -> None:
    """A run of that name may only go on as the same experiment; more rounds are fine."""
    then = run.experiment if run.experiment.get("own") else Experiment.build(run.experiment).values()
    differ = differences(then, experiment.values())
    if differ:
        raise InvalidInput(
            f"run {run.name!r} exists already with another {', '.join(differ)}: choose another name or another ledger"
        )


# --- what may be given in Python --------------------------------------------------------------------------------------


def _method(given: Any) -> Method:
    if isinstance(given, str):
        return algorithms.create(given)
    if isinstance(given, type):
        call = f"{given.__name__}(...)"
        raise InvalidInput(f"algorithm = {given.__name__} is a class: give an object, {call}, or a name")
    if not hasattr(given, "client_update"):
        raise InvalidInput(f"algorithm must be a name or a method's object, not {type(given).__name__}")
    method: Method = given
    return method


def _dataset(given: Any) -> Dataset:
    if isinstance(given, str):
        return load(given)
    if isinstance(given, tuple | list):
        raise InvalidInput("data must be a name or a Dataset; arrays become one by undrift.Dataset.from_arrays(x, y)")
    if not isinstance(given, Dataset):
        raise InvalidInput(f"data must be a name or a Dataset, not {type(given).__name__}")
    return given


def _partitioner(given: Any) -> Partitioner:
    if isinstance(given, str):
        if given not in PARTITIONERS:
            raise unknown("partition", given, PARTITIONERS)
        return PARTITIONERS[given].create()
    if not isinstance(given, Partitioner):
        raise InvalidInput(f"partition must be a name or a partitioner's object, not {type(given).__name__}")
    return given


def _training(given: Any) -> Training:
    if given is None:
        return Training()
    if not isinstance(given, Training):
        what = "a class" if isinstance(given, type) else type(given).__name__
        raise InvalidInput(f"training must be an undrift.Training(lr=..., epochs=...), not {what}")
    return given


def _uploads(given: Any) -> Uploads:
    if given is None:
        return Uploads()
    if not isinstance(given, Uploads):
        what = "a class" if isinstance(given, type) else type(given).__name__
        raise InvalidInput(f"uploads must be an undrift.Uploads(clip=..., guard=...), not {what}")
    return given


def _spec(given: Any, dataset: Dataset) -> ModelSpec | None:
    """The named model; None for the user's own."""
    if isinstance(given, ModelSpec):
        return given
    if given is None or isinstance(given, str):
        return spec(given or default_model(dataset))
    if not isinstance(given, nn.Module) and not callable(given):
        raise InvalidInput(f"model must be a name, an nn.Module or a function that makes one, not {given!r}")
    return None


def _own(model: Any, chosen: ModelSpec | None, loss: Loss | None, dataset: Dataset) -> tuple[ModelLike, Loss]:
    """The user's model and loss, or those of a named model."""
    if chosen is not None:
        build, own = fitted(chosen, dataset)
        return build, loss or own
    usual = nn.functional.cross_entropy if dataset.classes is not None else nn.functional.mse_loss
    return model, loss or usual
