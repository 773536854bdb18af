"""From a description, or a user's own model and data, to an experiment that is ready to run."""

from __future__ import annotations

import hashlib
import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core import rng
from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation, ModelLike, Rows, build
from undrift.core.loop import resolved
from undrift.core.stages import Uploads
from undrift.core.training import Training
from undrift.core.vector import Layout, layout_of
from undrift.data import Dataset, Partition, Partitioner, data_root, test_parts
from undrift.data.skew import FeatureSkew
from undrift.experiment.description import Experiment, Plan, label_of
from undrift.experiment.evaluate import Evaluator
from undrift.models import LOSSES, ModelSpec, default_model, spec
from undrift.version import version

Loss = Callable[[Tensor, Tensor], Tensor]


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
            "uploads": self.uploads.values(),
            "samples": [
                int(self.partition.sizes.min()),
                int(np.median(self.partition.sizes)),
                int(self.partition.sizes.max()),
            ],
            "versions": {
                "undrift": version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        labels = self.dataset.labels
        if labels is not None and len(self.partition) <= 500:
            facts["histogram"] = self.partition.histogram(labels, int(labels.max()) + 1).tolist()
        if self.dataset.classes is not None and len(self.dataset.y_test):
            facts["chance"] = float(self.dataset.y_test.bincount().max()) / len(self.dataset.y_test)
        return facts


@dataclass(frozen=True)
class Divided:
    """Who holds which rows: the clients, their parts of the test set, and the server."""

    partition: Partition
    parts: Partition | None
    public: NDArray[np.int64] | None
    scoring: NDArray[np.int64] | None


def divided(method: Method, dataset: Dataset, partitioner: Partitioner, plan: Plan) -> Divided:
    """The data divided among the clients and, where the method wants it, the server."""
    public, scoring, rest = _public(method, dataset, plan)
    clients = plan.clients or (None if partitioner.natural else 10)
    held = dataset if rest is None else _subset(dataset, rest)
    partition = partitioner.split(held, clients, plan.seed)
    parts = test_parts(partition, held, plan.seed) if len(dataset.x_test) else None
    if rest is not None:
        partition = replace(partition, indices=rest[partition.indices])
    if public is not None and not method.needs_public:
        if plan.others_public == "client":
            partition, parts = _with_client(partition, public), parts and _with_client(parts, public[:0])
        public = scoring = None
    return Divided(partition, parts, public, scoring)


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
    partition, parts = held.partition, held.parts
    names = None if partition.names is None else tuple(str(name) for name in partition.names)
    _say_what_is_missing(partition, dataset)
    if skew is not None:
        dataset = skew.apply(dataset, partition, plan.seed)
    x, y = (_on(tensor, plan.device) for tensor in (dataset.x, dataset.y))
    x_test, y_test = (_on(tensor, plan.device) for tensor in (dataset.x_test, dataset.y_test))
    federation = Federation(
        module=build(model, plan.seed).to(plan.device),
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
    _check_participants(plan, partition)
    evaluator = Evaluator(federation, dataset.classes)
    if method.pools_data:
        federation = federation.pooled()
    participate = 1 if method.pools_data else plan.participate or len(partition)
    method = resolved(method, federation)
    return Prepared(method, federation, partition, dataset, evaluator, participate, plan, uploads or Uploads())


def completed(experiment: Experiment, dataset: Dataset) -> Experiment:
    """The experiment with a model that suits the data, where it names none."""
    return replace(experiment, model=experiment.model or spec(default_model(dataset)))


def prepare_experiment(
    experiment: Experiment, root: str | Path | None = None, dataset: Dataset | None = None
) -> Prepared:
    """What an experiment describes, ready to run."""
    if dataset is None:
        dataset = experiment.data.load(data_root(root))
    shape, classes = dataset.shape, dataset.classes or 1
    model = completed(experiment, dataset).model
    assert model is not None
    return prepare(
        experiment.algorithm,
        dataset,
        experiment.partition,
        lambda: model.build(shape, classes),
        LOSSES[model.loss],
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
                module = build(partial(model.build, dataset.shape, dataset.classes or 1), plan.seed)
                layouts[model] = layout_of(module, dataset.x[:1])
            held = (experiment.partition, plan.clients, plan.seed, plan.others_public, method.needs_public)
            if held not in largest:
                partition = divided(method, dataset, experiment.partition, plan).partition
                _check_participants(plan, partition)
                largest[held] = int(partition.sizes.max())
            experiment.uploads.fit(method)
            method.fit(experiment.train, layouts[model], experiment.train.steps_for(largest[held]))


def _check_participants(plan: Plan, partition: Partition) -> None:
    if plan.participate and plan.participate > len(partition):
        raise InvalidInput(f"participate = {plan.participate} is more than the {len(partition)} clients there are")


def _public(
    method: Method, dataset: Dataset, plan: Plan
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """The server's rows: class-balanced, held out before partitioning, never from the test set."""
    if not method.needs_public and plan.others_public == "shared":
        return None, None, None
    labels = dataset.labels
    order = rng.permutation(rng.key(plan.seed, "public"), len(dataset))
    if labels is not None:  # deal the shuffled samples class by class, so that every prefix is balanced
        place = np.empty(len(dataset), dtype=np.int64)
        for label in np.unique(labels):
            mine = order[labels[order] == label]
            place[mine] = np.arange(len(mine))
        order = order[np.argsort(place[order], kind="stable")]
    size = max(1, round(plan.public * len(dataset)))
    if size + plan.scoring >= len(dataset):
        raise InvalidInput(
            f"{method.title} wants {size} public and {plan.scoring} scoring samples; there are {len(dataset)} in all"
        )
    public, scoring = np.sort(order[:size]), np.sort(order[size : size + plan.scoring])
    return public, scoring, np.sort(order[size + plan.scoring :])


def _say_what_is_missing(partition: Partition, dataset: Dataset) -> None:
    """Warn of classes that are tested but that nobody trains on."""
    if dataset.classes is None:
        return
    trained = np.unique(dataset.y.numpy()[partition.indices])
    missing = np.setdiff1d(np.unique(dataset.y_test.numpy()), trained).tolist()
    if missing:
        names = ", ".join(str(dataset.class_names[c]) if dataset.class_names else str(c) for c in missing)
        warnings.warn(f"no client holds class {names}, which {dataset.name} is tested on", stacklevel=3)


def _with_client(partition: Partition, rows: NDArray[np.int64]) -> Partition:
    """The partition with one more client."""
    names = None if partition.names is None else np.append(partition.names, "public")
    return replace(
        partition,
        indices=np.concatenate([partition.indices, rows]),
        offsets=np.append(partition.offsets, partition.offsets[-1] + len(rows)),
        names=names,
    )


def _on(tensor: Tensor, device: str) -> Tensor:
    try:
        return tensor.to(torch.device(device))
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"device = {device!r} cannot be used here ({reason}); cpu always can") from None


def _subset(dataset: Dataset, rows: NDArray[np.int64]) -> Dataset:
    index = torch.from_numpy(rows)
    return replace(
        dataset,
        x=dataset.x[index],
        y=dataset.y[index],
        client=None if dataset.client is None else dataset.client[rows],
        strata=None if dataset.strata is None else dataset.strata[rows],
    )
