"""``Partition``: who holds what. ``Partitioner``: how that is decided: a function of data, settings, clients, seed.

Knows nothing of models or training. A partition is two arrays (CSR), so a million clients are as easy as ten.
Every partitioner ends with a partition or with one sentence that says why there is none; none loops until lucky.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from undrift.core import rng
from undrift.core.errors import InvalidInput
from undrift.core.settings import Settings
from undrift.data.dataset import Dataset

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Partition:
    """Sample numbers of client ``i`` are ``indices[offsets[i]:offsets[i + 1]]``."""

    indices: Ints
    offsets: Ints
    description: dict[str, Any] = field(default_factory=dict)  # partitioner, settings, clients, seed
    names: NDArray[Any] | None = None  # what the data set calls each client, for natural partitions

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int) -> Ints:
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        client %= len(self)
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[i] for i in range(len(self)))

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)

    @property
    def owners(self) -> Ints:
        """The client of each entry of ``indices``."""
        return np.repeat(np.arange(len(self)), self.sizes)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(json.dumps(self.description, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(self.indices, "<i8").tobytes())
        digest.update(np.ascontiguousarray(self.offsets, "<i8").tobytes())
        return digest.hexdigest()[:16]

    def histogram(self, labels: Ints, classes: int) -> Ints:
        """How many samples of each class each client holds: one row per client."""
        flat = self.owners * classes + labels[self.indices]
        return np.bincount(flat, minlength=len(self) * classes).reshape(len(self), classes)


def from_owners(owners: Ints, samples: Ints, clients: int) -> tuple[Ints, Ints]:
    """CSR arrays from (client, sample) pairs; each client's samples in increasing order."""
    order = np.lexsort((samples, owners))
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=clients))])
    return samples[order].astype(np.int64), offsets.astype(np.int64)


class Partitioner(Settings):
    """How to split a data set. Subclasses give ``assign``: (client, sample) pairs."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    natural: ClassVar[bool] = False  # the data set itself says who the clients are; ``clients`` may be left out
    newer: ClassVar[frozenset[str]] = (
        frozenset()
    )  # settings that recorded fingerprints do not know: left out by default

    def split(
        self, data: Dataset | NDArray[Any], clients: int | None, seed: int, *, whole: int | None = None
    ) -> Partition:
        """The partition. ``data`` is a data set, or just the labels; ``whole`` its size before rows were set apart."""
        division = Division.of(data, clients, seed, self)
        division.whole = whole or division.samples
        owners, samples = self.assign(division)
        indices, offsets = from_owners(owners, samples, division.clients)
        empty = np.flatnonzero(np.diff(offsets) == 0)
        if len(empty):
            raise division.infeasible(f"client {int(empty[0])} would hold no samples")
        description = {
            "partitioner": self.name,
            "settings": self.described(),
            "clients": division.clients,
            "seed": seed,
            **division.notes,
        }
        return Partition(indices, offsets, description, division.names)

    def described(self) -> dict[str, Any]:
        """The settings as the fingerprint sees them."""
        quiet = {s.name for s in self.settings() if s.name in self.newer and getattr(self, s.name) == s.default}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self.values().items() if k not in quiet}

    def assign(self, p: Division) -> tuple[Ints, Ints]:
        raise NotImplementedError


@dataclass
class Division:
    """What a partitioner works on, with the helpers they share."""

    partitioner: str
    samples: int
    all_labels: Ints | None
    natural: NDArray[Any] | None
    clients: int
    seed: int
    whole: int = 0  # samples before public rows were set apart: what sizes in settings refer to
    names: NDArray[Any] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(data: Dataset | NDArray[Any], clients: int | None, seed: int, by: Partitioner) -> Division:
        labels: Ints | None
        if isinstance(data, Dataset):
            count, labels, natural = len(data), data.labels, data.client
        else:
            labels = np.asarray(data).astype(np.int64)
            count, natural = len(labels), None
        if by.natural:
            if natural is None:
                raise InvalidInput(f"partition {by.name}: the data set names no clients: give a client column")
            clients = clients or len(np.unique(natural))
        if clients is None or clients < 1:
            raise InvalidInput(f"partition {by.name}: clients = {clients}: it must be a whole number >= 1")
        division = Division(by.name, count, labels, natural, clients, seed)
        if count < clients:
            raise division.infeasible(f"{count} samples are fewer than {clients} clients")
        return division

    def infeasible(self, why: str) -> InvalidInput:
        return InvalidInput(f"partition {self.partitioner}: {why}")

    def key(self, *purpose: int | str) -> int:
        return rng.key(self.seed, "partition", *purpose)

    def generator(self, *purpose: int | str) -> np.random.Generator:
        return rng.generator(self.seed, "partition", *purpose)

    @property
    def labels(self) -> Ints:
        if self.all_labels is None:
            raise self.infeasible("it goes by class labels, and this data set has none; use iid, quantity or column")
        return self.all_labels

    @cached_property
    def classes(self) -> int:
        return int(self.labels.max()) + 1

    @cached_property
    def pools(self) -> Ints:
        """How many samples each class has."""
        return np.bincount(self.labels, minlength=self.classes)

    def shuffled(self) -> Ints:
        return rng.permutation(self.key("order"), self.samples)

    def by_class(self) -> tuple[Ints, Ints]:
        """All samples grouped by class, in random order inside a class, and where each class starts."""
        order = self.shuffled()
        order = order[np.argsort(self.labels[order], kind="stable")]
        return order, np.cumsum(self.pools) - self.pools

    def equalclient_sizes(self, total: int | None = None) -> Ints:
        total = self.samples if total is None else total
        return total // self.clients + (np.arange(self.clients) < total % self.clients)

    def deal(self, counts: Ints) -> tuple[Ints, Ints]:
        """Hand out ``counts[client, class]`` samples of each class, no sample twice."""
        order, starts = self.by_class()
        per_class = counts.T  # class by class, client after client
        owners = np.repeat(np.tile(np.arange(self.clients), len(per_class)), per_class.reshape(-1))
        used = per_class.sum(axis=1)
        within = np.arange(used.sum()) - np.repeat(np.cumsum(used) - used, used)
        return owners, order[np.repeat(starts, used) + within]
