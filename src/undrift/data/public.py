"""What is set apart: public rows for the server before data are divided, and each client's own part of the test set.

Knows nothing of methods: who gets the public rows is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from undrift.core import rng
from undrift.core.errors import InvalidInput
from undrift.data.build import hold_out
from undrift.data.dataset import Dataset
from undrift.data.partitions.base import Ints, Partition, Partitioner, from_owners
from undrift.data.partitions.draws import largest_remainder

Holder = Literal["server", "shared", "held-out", "client"]  # whose the public rows are; shared: none are set apart


@dataclass(frozen=True)
class Divided:
    """A data set, divided: who trains on which rows, who is tested on which, and what the server holds."""

    partition: Partition
    tests: Partition | None  # None: there is no test set
    public: Ints | None = None
    scoring: Ints | None = None
    validation: Partition | None = None  # rows of the training set that nobody trains on, by whose they are


def divide(
    dataset: Dataset,
    partitioner: Partitioner,
    clients: int | None,
    seed: int,
    *,
    holder: Holder = "shared",
    share: float = 0.01,
    scoring: int = 64,
    who: str = "the server",
    validation: float | None = None,
) -> Divided:
    """Set the public rows apart, divide the others among the clients, and the test set likewise.

    With ``validation`` that share of every client's rows is set apart, to choose settings by.
    """
    divided = _divide(dataset, partitioner, clients, seed, holder, share, scoring, who)
    if not validation:
        return divided
    partition, held = set_apart(divided.partition, validation, seed)
    return replace(divided, partition=partition, validation=held)


def set_apart(partition: Partition, share: float, seed: int) -> tuple[Partition, Partition]:
    """The partition without a share of every client's rows, and those. Nobody trains on a row that is set apart."""
    owners = partition.owners
    held = hold_out(owners, share, seed, "validation")
    used = ~np.isin(partition.indices, partition.indices[held])  # where clients share samples, of everybody's
    parts = []
    for chosen, what in ((used, "training"), (held, "validation")):
        indices, offsets = from_owners(owners[chosen], partition.indices[chosen], len(partition))
        parts.append(Partition(indices, offsets, {**partition.description, what: share}, partition.names))
    empty = np.flatnonzero(parts[0].sizes == 0)
    if len(empty):
        raise InvalidInput(f"validation = {share}: client {int(empty[0])} would have nothing left to train on")
    return parts[0], parts[1]


def _divide(
    dataset: Dataset,
    partitioner: Partitioner,
    clients: int | None,
    seed: int,
    holder: Holder,
    share: float,
    scoring: int,
    who: str,
) -> Divided:
    if holder == "shared":
        partition = partitioner.split(dataset, clients, seed)
        return Divided(partition, _tests(partition, dataset, seed))
    public, scored, rest = public_rows(dataset, seed, share, scoring, who)
    held = subset(dataset, rest)
    partition = partitioner.split(held, clients, seed, whole=len(dataset))
    tests = _tests(partition, held, seed)
    partition = replace(partition, indices=rest[partition.indices])
    if holder == "server":
        return Divided(partition, tests, public, scored)
    if holder == "client":
        partition, tests = with_client(partition, public), tests and with_client(tests, public[:0])
    return Divided(partition, tests)


def public_rows(dataset: Dataset, seed: int, share: float, scoring: int, who: str) -> tuple[Ints, Ints, Ints]:
    """Public rows, rows to score clients by, and the rest: class-balanced, and never from the test set."""
    labels = dataset.labels
    order = rng.permutation(rng.key(seed, "public"), len(dataset))
    if labels is not None:  # deal the shuffled samples class by class, so that every prefix is balanced
        place = np.empty(len(dataset), dtype=np.int64)
        for label in np.unique(labels):
            mine = order[labels[order] == label]
            place[mine] = np.arange(len(mine))
        order = order[np.argsort(place[order], kind="stable")]
    size = max(1, round(share * len(dataset)))
    if size + scoring >= len(dataset):
        raise InvalidInput(f"{who} wants {size} public and {scoring} scoring samples; there are {len(dataset)} in all")
    public, scored = np.sort(order[:size]), np.sort(order[size : size + scoring])
    return public, scored, np.sort(order[size + scoring :])


def subset(dataset: Dataset, rows: Ints) -> Dataset:
    """The data set with these training rows alone."""
    index = torch.from_numpy(rows)
    return replace(
        dataset,
        x=dataset.x[index],
        y=dataset.y[index],
        client=None if dataset.client is None else dataset.client[rows],
        strata=None if dataset.strata is None else dataset.strata[rows],
    )


def with_client(partition: Partition, rows: Ints) -> Partition:
    """The partition with one more client."""
    names = None if partition.names is None else np.append(partition.names, "public")
    return replace(
        partition,
        indices=np.concatenate([partition.indices, rows]),
        offsets=np.append(partition.offsets, partition.offsets[-1] + len(rows)),
        names=names,
    )


def _tests(partition: Partition, dataset: Dataset, seed: int) -> Partition | None:
    return test_parts(partition, dataset, seed) if len(dataset.x_test) else None


def test_parts(parts: Partition, dataset: Dataset, seed: int) -> Partition:
    """Each client's own part of the test set: disjoint parts whose union is the test set.

    Where the data set names the clients of its test samples, a client gets its own. All other test samples are shared
    out class by class: of each class every client gets the share that it holds of it in training.
    """
    count = len(dataset.y_test)
    owner = np.full(count, -1, np.int64)
    groups = parts.description.get("groups", parts.names)  # one name per client, or several
    if groups is not None and dataset.client_test is not None:
        names = np.array([str(name) for group in groups for name in (group if isinstance(group, list) else [group])])
        holder = np.repeat(np.arange(len(parts)), [len(g) if isinstance(g, list) else 1 for g in groups])
        order = np.argsort(names)
        wanted = dataset.client_test.astype(str)
        place = order[np.minimum(np.searchsorted(names, wanted, sorter=order), len(names) - 1)]
        owner = np.where(names[place] == wanted, holder[place], -1)
    labels, labels_test = dataset.labels, dataset.labels_test
    if labels is None or labels_test is None:
        labels, labels_test = np.zeros(len(dataset), np.int64), np.zeros(count, np.int64)
    held = parts.histogram(labels, int(max(labels.max(), labels_test.max(initial=0))) + 1)
    order = rng.permutation(rng.key(seed, "test parts"), count)
    for c in np.unique(labels_test):
        free = order[(labels_test[order] == c) & (owner[order] < 0)]
        shares = held[:, c] if held[:, c].any() else parts.sizes
        owner[free] = np.repeat(np.arange(len(parts)), largest_remainder(shares.astype(np.float64), len(free))[0])
    indices, offsets = from_owners(owner, np.arange(count), len(parts))
    return Partition(indices, offsets, {"test parts of": parts.fingerprint, "seed": seed}, parts.names)


test_parts.__test__ = False  # type: ignore[attr-defined]  # pytest: a function of the library, not a test
