"""From a description, or a user's own model and data, to an experiment that is ready to run."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation, ModelLike, Registered, Rows, build
from undrift.core.figure import GLOBAL
from undrift.core.loop import resolved
from undrift.core.partial import refuse_sums
from undrift.core.plugins import digest_of
from undrift.core.stages import Uploads
from undrift.core.training import Training
from undrift.core.vector import Layout, layout_of
from undrift.data import Dataset, Partition, Partitioner, data_root
from undrift.data.public import Divided, Holder, divide
from undrift.data.skew import FeatureSkew
from undrift.experiment.description import Experiment, Plan, label_of
from undrift.experiment.evaluate import Evaluator
from undrift.experiment.machine import versions
from undrift.models import ModelSpec, aligned, default_model, fitted, spec

Loss = Callable[[Tensor, Tensor], Tensor]
MOST_NAMES = 10_000  # clients whose names are kept with a run


class Ready(Protocol):
    """What can be played: a simulation (``Prepared``), or sites (``deployed.Deployed``)."""

    @property
    def method(self) -> Method: ...
    @property
    def federation(self) -> Federation | Registered: ...
    @property
    def evaluator(self) -> Evaluator: ...
    @property
    def participate(self) -> int: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def uploads(self) -> Uploads: ...

    def facts(self) -> dict[str, Any]:
        """What the ledger stores beside the description."""


def _named(loss: Any) -> str:
    """The name of a loss function; that of the one inside where it was wrapped."""
    return str(getattr(loss, "__name__", "") or getattr(getattr(loss, "loss", None), "__name__", ""))


@dataclass(frozen=True)
class Prepared:
    """An experiment that is ready to run: method, clients, data, evaluation."""

    method: Method
    federation: Federation
    partition: Partition
    dataset: Dataset
    evaluator: Evaluator
    participate: int
    plan: Plan
    uploads: Uploads = field(default_factory=Uploads)

    def facts(self) -> dict[str, Any]:
        """What the ledger stores beside the description: fingerprints, sizes, versions."""
        start, _ = self.federation.start()
        profile = self.federation.profile
        facts: dict[str, Any] = {
            "label": label_of(self.method),
            "data": self.dataset.name,
            "data_fingerprint": self.dataset.fingerprint,
            "partition_fingerprint": self.partition.fingerprint,
            "start_fingerprint": hashlib.sha256(start.cpu().numpy().tobytes()).hexdigest()[:16],
            "parameters": self.federation.layout.size,
            "macs_forward": profile.forward,
            "macs_gradient": profile.gradient,
            "clients": len(self.partition),
            "participate": self.participate,
            "training": self.federation.training.values(),
            "loss": _named(self.federation.loss),
            "uploads": self.uploads.values(),
            "samples": [
                int(self.partition.sizes.min()),
                int(np.median(self.partition.sizes)),
                int(self.partition.sizes.max()),
            ],
            "versions": versions(),
        }
        code = digest_of(type(self.method))
        if code is not None:
            facts["code"] = code
        passed = [digest_of(type(part)) for part in (*self.uploads.chain, self.uploads.one)]
        if any(passed):
            facts["uploads_code"] = [digest for digest in passed if digest]
        labels = self.dataset.labels
        if self.dataset.label_names:
            facts["class_names"] = list(self.dataset.label_names)
        if self.partition.names is not None and len(self.partition) <= MOST_NAMES:
            facts["client_names"] = [str(name) for name in self.partition.names]
        if labels is not None and len(self.partition) <= 500:
            facts["histogram"] = self.partition.histogram(labels, int(labels.max()) + 1).tolist()
        if self.dataset.classes is not None and len(self.dataset.y_test):
            facts["chance"] = float(self.dataset.y_test.bincount().max()) / len(self.dataset.y_test)
        if self.partition.names is not None and len(self.partition) <= 500:
            facts["client_names"] = [str(name) for name in self.partition.names]
        if self.dataset.class_names:
            facts["class_names"] = [str(name) for name in self.dataset.class_names]
        return facts


def divided(method: Method, dataset: Dataset, partitioner: Partitioner, plan: Plan) -> Divided:
    """The data divided among the clients and, where the method wants it, the server."""
    clients = plan.clients or (None if partitioner.natural else 10)
    holder: Holder = "server" if method.needs_public else plan.others_public
    public: dict[str, Any] = {"holder": holder, "share": plan.public, "scoring": plan.scoring, "who": method.title}
    public["validation"] = plan.validation
    return divide(dataset, partitioner, clients, plan.seed, **public)


def prepare(
    method: Method,
    dataset: Dataset,
    partitioner: Partitioner,
    model: ModelLike,
    loss: Loss,
    training: Training,
    plan: Plan,
    skew: FeatureSkew | None = None,
    uploads: Uploads | None = None,
) -> Prepared:
    """Divide the data, build the model from the seed, and check that everything fits."""
    held = divided(method, dataset, partitioner, plan)
    partition, parts = held.partition, held.tests
    names = None if partition.names is None else tuple(str(name) for name in partition.names)
    _say_what_is_missing(partition, dataset)
    module = build(model, plan.seed)
    dataset = taken(module, dataset)
    if skew is not None:
        dataset = skew.apply(dataset, partition, plan.seed)
    x, y = (_on(tensor, plan.device) for tensor in (dataset.x, dataset.y))
    tests = [dataset.x_test, dataset.y_test]
    validated = 0 if held.validation is None or parts is None else len(held.validation.indices)
    if held.validation is not None:  # behind the test set, in nobody's part of it
        rows = torch.from_numpy(held.validation.indices)
        tests = [torch.cat([test, train[rows]]) for test, train in zip(tests, (dataset.x, dataset.y), strict=True)]
    x_test, y_test = (_on(tensor, plan.device) for tensor in tests)
    federation = Federation(
        module=module.to(plan.device),
        loss=loss,
        x=x,
        y=y,
        indices=partition.indices,
        offsets=partition.offsets,
        training=training,
        seed=plan.seed,
        names=names,
        augment=dataset.augment,
        test=None if parts is None else Rows(x_test, y_test, parts.indices, parts.offsets),
        public=held.public,
        scoring=held.scoring,
    )
    if dataset.classes is None:
        federation = replace(federation, loss=aligned(loss, federation.outputs(x[:2]), y[:2]))
    _check_participants(plan, partition)
    options: dict[str, Any] = {"training": plan.eval_training, "validated": validated}
    options |= {"measures": plan.measures, "headline": plan.headline}
    evaluator = Evaluator(federation, dataset.classes, **options)
    if method.pools_data:
        federation = federation.pooled()
    participate = 1 if method.pools_data else plan.participate or len(partition)
    _warn_of_defaults(method, federation.training)
    method = resolved(method, federation)
    _check_choosing(plan, method, federation)
    if plan.ray_sum:
        refuse_sums(method, uploads or Uploads())
    return Prepared(method, federation, partition, dataset, evaluator, participate, plan, uploads or Uploads())


def _check_choosing(plan: Plan, method: Method, federation: Federation) -> None:
    """Validation data judge a global model: without one, nothing can go by them."""
    if plan.patience is None:
        return
    server = method.server_init(federation.start()[0], federation.population)
    if GLOBAL not in method.models(server):
        raise InvalidInput(
            f"patience = {plan.patience}: {method.title} has no global model, and validation data judge no other; "
            "leave patience out"
        )


def _warn_of_defaults(method: Method, training: Training) -> None:
    """Say where a method's defaults were measured to fall behind, if it is they that are used (docs/defaults.md)."""
    if method.caution and method.values() == type(method)().values() and training.lr >= Training().lr:
        warnings.warn(f"{method.title}, by default, can end far behind FedAvg: {method.caution}", stacklevel=3)


def taken(module: nn.Module, dataset: Dataset) -> Dataset:
    """The data set as the model takes it: whole numbers stay what they are for one that does (an embedding)."""
    if dataset.x.dtype.is_floating_point:
        return dataset
    try:
        with torch.no_grad():
            copy.deepcopy(module).eval()(dataset.x[:1])
    except (RuntimeError, TypeError):
        return dataset.as_numbers()
    return dataset


def completed(experiment: Experiment, dataset: Dataset) -> Experiment:
    """The experiment with a model that suits the data, where it names none."""
    return replace(experiment, model=experiment.model or spec(default_model(dataset)))


def prepare_experiment(
    experiment: Experiment, root: str | Path | None = None, dataset: Dataset | None = None
) -> Prepared:
    """What an experiment describes, ready to run."""
    if dataset is None:
        dataset = experiment.data.load(data_root(root))
    model = completed(experiment, dataset).model
    assert model is not None
    return prepare(
        experiment.algorithm,
        dataset,
        experiment.partition,
        *fitted(model, dataset),
        experiment.train,
        experiment.plan,
        experiment.skew,
        experiment.uploads,
    )


def refuse(experiments: Sequence[Experiment], dataset: Dataset) -> None:
    """Refuse before the first run what one of the methods would refuse at its turn. Warnings come at their turn.

    Nothing is built for it but one model; the data are divided once for methods with public data and once for others.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layouts: dict[ModelSpec, Layout] = {}
        largest: dict[tuple[Any, ...], int] = {}
        for experiment in experiments:
            method, plan = experiment.algorithm, experiment.plan
            model = completed(experiment, dataset).model
            assert model is not None
            if model not in layouts:
                module = build(fitted(model, dataset)[0], plan.seed)
                layouts[model] = layout_of(module, taken(module, dataset).x[:1])
            held = (experiment.partition, plan.clients, plan.seed, plan.others_public, method.needs_public)
            if held not in largest:
                partition = divided(method, dataset, experiment.partition, plan).partition
                _check_participants(plan, partition)
                largest[held] = int(partition.sizes.max())
            experiment.uploads.fit(method)
            if plan.ray_sum:
                refuse_sums(method, experiment.uploads)
            method.fit(experiment.train, layouts[model], experiment.train.steps_for(largest[held]))


def _check_participants(plan: Plan, partition: Partition) -> None:
    if plan.participate and plan.participate > len(partition):
        raise InvalidInput(f"participate = {plan.participate} is more than the {len(partition)} clients there are")


def _say_what_is_missing(partition: Partition, dataset: Dataset) -> None:
    """Warn of classes that are tested but that nobody trains on."""
    if dataset.classes is None:
        return
    trained = np.unique(dataset.y.numpy()[partition.indices])
    missing = np.setdiff1d(np.unique(dataset.y_test.numpy()), trained).tolist()
    if missing:
        names = ", ".join(str(dataset.class_names[c]) if dataset.class_names else str(c) for c in missing)
        warnings.warn(f"no client holds class {names}, which {dataset.name} is tested on", stacklevel=3)


def _on(tensor: Tensor, device: str) -> Tensor:
    try:
        return tensor.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"device = {device!r} cannot be used here ({reason}); cpu always can") from None
