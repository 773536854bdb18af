"""Who holds what: partitions of a data set among clients, each a pure function of (data, settings, clients, seed).

Knows nothing of models or training. A partition is two arrays (CSR), so a million clients are as easy as ten.
Every partitioner ends with a partition or with one sentence that says why there is none; none loops until lucky.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from undrift.core import rng
from undrift.core.errors import InvalidInput, unknown
from undrift.core.settings import Settings, at_least, between, positive
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

    def split(self, data: Dataset | NDArray[Any], clients: int | None, seed: int) -> Partition:
        """The partition. ``data`` is a data set, or just the labels."""
        problem = _Problem.of(data, clients, seed, self)
        owners, samples = self.assign(problem)
        indices, offsets = from_owners(owners, samples, problem.clients)
        empty = np.flatnonzero(np.diff(offsets) == 0)
        if len(empty):
            raise problem.infeasible(f"client {int(empty[0])} would hold no samples")
        description = {
            "partitioner": self.name,
            "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in self.values().items()},
            "clients": problem.clients,
            "seed": seed,
            **problem.notes,
        }
        return Partition(indices, offsets, description, problem.names)

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        raise NotImplementedError


@dataclass
class _Problem:
    """What a partitioner works on, with the helpers they share."""

    partitioner: str
    samples: int
    all_labels: Ints | None
    natural: NDArray[Any] | None
    clients: int
    seed: int
    names: NDArray[Any] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(data: Dataset | NDArray[Any], clients: int | None, seed: int, by: Partitioner) -> _Problem:
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
        problem = _Problem(by.name, count, labels, natural, clients, seed)
        if count < clients:
            raise problem.infeasible(f"{count} samples are fewer than {clients} clients")
        return problem

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

    def equal_sizes(self, total: int | None = None) -> Ints:
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


def largest_remainder(shares: Floats, total: int | Ints) -> Ints:
    """Whole numbers proportional to each row of ``shares`` that add up to ``total`` (one per row)."""
    shares = np.atleast_2d(shares)
    totals = np.broadcast_to(np.asarray(total, np.int64), len(shares))
    weight = np.cumsum(shares, axis=1)[:, -1]
    quota = shares * (totals / np.where(weight > 0, weight, 1))[:, None]
    whole = np.floor(quota + 1e-9).astype(np.int64)
    missing = totals - whole.sum(axis=1)
    order = np.argsort(whole - quota, axis=1, kind="stable")
    bonus = np.empty_like(whole)
    np.put_along_axis(bonus, order, np.arange(shares.shape[1])[None, :] < missing[:, None], axis=1)
    return whole + bonus


def fill_up(counts: Ints, low: int) -> tuple[Ints, int]:
    """Move samples from the fullest clients until everyone has ``low``: the new counts and how many moved."""
    sizes = counts.sum(axis=1)
    need = np.maximum(low - sizes, 0)
    moved = int(need.sum())
    if moved == 0:
        return counts, 0
    # The level to which the fullest are cut so that the excess covers the need (the last one gives only what is left).
    order = np.argsort(-sizes, kind="stable")
    ranked = sizes[order]
    excess = np.cumsum(ranked) - ranked * np.arange(1, len(ranked) + 1)
    donors = int(np.searchsorted(excess, moved, side="left"))
    donors = min(max(donors, 1), len(ranked))
    level = max(-(-(int(ranked[:donors].sum()) - moved) // donors), low)
    give = np.zeros_like(sizes)
    give[order[:donors]] = np.maximum(ranked[:donors] - level, 0)
    short = moved - int(give.sum())
    if short > 0:
        give[order[:short]] += 1
    counts = counts.copy()
    rows = np.flatnonzero(give)
    taken = largest_remainder(counts[rows].astype(np.float64), give[rows])
    taken = np.minimum(taken, counts[rows])
    counts[rows] -= taken
    pool = np.repeat(np.arange(counts.shape[1]), taken.sum(axis=0))
    # Deal the taken samples round robin over classes so that nobody is filled with one class alone.
    rank = np.concatenate([np.arange(n) for n in taken.sum(axis=0)]) if len(pool) else pool
    pool = pool[np.lexsort((pool, rank))]
    receivers = np.repeat(np.arange(len(need)), need)
    np.add.at(counts, (receivers, pool[: len(receivers)]), 1)
    return counts, moved


def draw_equal(p: _Problem, priors: Floats, sizes: Ints) -> Ints:
    """Counts per client and class: each client draws ``sizes`` samples by its prior until a class runs out.

    Claims on a class that has too few samples are granted by lot; the refused ones are drawn again among the classes
    that are left. Every pass closes a class or ends, so there are at most as many passes as classes.
    """
    if sizes.sum() > p.samples:
        raise p.infeasible(f"{int(sizes.sum())} samples wanted, but the data set has {p.samples}")
    draw = p.generator("draws")
    left, want = p.pools.copy(), sizes.copy()
    counts = np.zeros((p.clients, p.classes), np.int64)
    for turn in range(p.classes + 1):
        active = np.flatnonzero(want)
        if len(active) == 0:
            break
        open_priors = priors[active] * (left > 0)
        total = open_priors.sum(axis=1, keepdims=True)
        # A client whose own classes are all used up takes what is left, in proportion.
        open_priors = np.where(total > 1e-12, open_priors, left / left.sum())
        open_priors /= open_priors.sum(axis=1, keepdims=True)
        claims = draw.multinomial(want[active], open_priors)
        for c in np.flatnonzero(claims.sum(axis=0) > left):
            tickets = np.repeat(np.arange(len(active)), claims[:, c])
            lucky = rng.permutation(p.key("lots", turn, int(c)), len(tickets))[: left[c]]
            claims[:, c] = np.bincount(tickets[lucky], minlength=len(active))
        counts[active] += claims
        want[active] -= claims.sum(axis=1)
        left -= claims.sum(axis=0)
    return counts


def draw_overlapping(p: _Problem, weights: Floats, size: int) -> tuple[Ints, Ints]:
    """Each client draws ``size`` samples without replacement from the whole data set, class weights as given.

    A draw with weights w is the ``size`` first arrivals of exponential clocks with rates w; clients overlap.
    """
    support = np.where(weights > 0, p.pools, 0).sum(axis=1)
    if (support < size).any():
        i = int((support < size).argmax())
        raise p.infeasible(f"client {i} is to draw {size} samples from classes that have only {int(support[i])}")
    chosen = np.empty((p.clients, size), np.int64)
    keys = rng.keys(p.key("clocks"), np.arange(p.clients))
    for i in range(p.clients):
        uniform = rng.uniform(int(keys[i]), p.samples)
        with np.errstate(divide="ignore"):
            arrival = -np.log1p(-uniform) / weights[i][p.labels]
        arrival[weights[i][p.labels] <= 0] = np.inf
        chosen[i] = np.argpartition(arrival, size - 1)[:size]
    return np.repeat(np.arange(p.clients), size), chosen.reshape(-1)


def dirichlet_rows(draw: np.random.Generator, alpha: float, rows: int, columns: int) -> Floats:
    """Rows of Dir(alpha); tiny concentrations, where all gammas underflow to 0, become one-hot rows as in the limit."""
    gammas = draw.standard_gamma(alpha, (rows, columns))
    total = np.cumsum(gammas, axis=1)[:, -1:]
    dead = np.flatnonzero(total[:, 0] < 1e-290)
    gammas[dead] = 0.0
    gammas[dead, draw.integers(columns, size=len(dead))] = 1.0
    total[dead] = 1.0
    return np.asarray(gammas / total)


class Iid(Partitioner):
    """Shuffle, then split evenly."""

    name = "iid"

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        return np.repeat(np.arange(p.clients), p.equal_sizes()), p.shuffled()


class Dirichlet(Partitioner):
    """Each class is shared out among all clients by one draw from Dir(alpha); sizes come out uneven."""

    name = "dirichlet"
    paper = "Yurochkin et al., ICML 2019; FedTR"
    alpha: Annotated[float, "concentration: small = each client has few classes, large = nearly iid", positive()] = 0.5
    min_size: Annotated[int, "every client gets at least so many samples", at_least(1)] = 1

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        if self.min_size * p.clients > p.samples:
            raise p.infeasible(f"{p.clients} clients of at least {self.min_size} need more than {p.samples} samples")
        # Redraw while someone is short, as published, but only so often as it costs little; then fill up.
        tries = max(1, min(100, 10_000_000 // (p.clients * p.classes)))
        for attempt in range(tries):
            shares = dirichlet_rows(p.generator("shares", attempt), self.alpha, p.classes, p.clients)
            cuts = np.minimum(
                np.floor(np.cumsum(shares, axis=1) * p.pools[:, None] + 1e-9).astype(np.int64), p.pools[:, None]
            )
            cuts[:, -1] = p.pools
            counts = np.ascontiguousarray(np.diff(cuts, axis=1, prepend=0).T)
            if counts.sum(axis=1).min() >= self.min_size:
                break
        counts, moved = fill_up(counts, self.min_size)
        if moved:
            p.notes["moved"] = moved
        return p.deal(counts)


class DirichletEqual(Partitioner):
    """Each client draws its own class mix from Dir(alpha) and then equally many samples by it; no sample twice."""

    name = "dirichlet-equal"
    paper = "FedDyn; FedMRUR"
    alpha: Annotated[float, "concentration of each client's class mix", positive()] = 0.5
    samples: Annotated[int | None, "samples per client; none: all data, split evenly", at_least(1)] = None

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        priors = dirichlet_rows(p.generator("priors"), self.alpha, p.clients, p.classes)
        return p.deal(draw_equal(p, priors, _sizes(p, self.samples)))


class Classes(Partitioner):
    """Each client holds exactly k classes, all clients the same number of samples, each class equally many clients."""

    name = "classes"
    paper = "pFedMo, label skew"
    classes_per_client: Annotated[int, "classes that each client holds", at_least(1)] = 2
    equal: Annotated[bool, "equal sizes (a remainder stays unused); false: all samples are used"] = True

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        held = class_sets(p, self.classes_per_client)
        counts = np.zeros((p.clients, p.classes), np.int64)
        behind = np.zeros(p.clients)  # how much less than its fair share each client has got so far
        for c in np.flatnonzero(p.pools):  # split evenly; odd samples go to the holders that are furthest behind
            holders = np.flatnonzero((held == c).any(axis=1))
            share, odd = divmod(int(p.pools[c]), len(holders))
            lucky = holders[np.argsort(-behind[holders], kind="stable")[:odd]]
            counts[holders, c] = share
            counts[lucky, c] += 1
            behind[holders] += odd / len(holders)
            behind[lucky] -= 1
        sizes = counts.sum(axis=1)
        if self.equal:
            mine = np.take_along_axis(counts, held, axis=1)
            mine = np.minimum(largest_remainder(mine.astype(np.float64), int(sizes.min())), mine)
            counts[:] = 0
            np.put_along_axis(counts, held, mine, axis=1)
            p.notes["unused"] = p.samples - int(counts.sum())
        return p.deal(counts)


class Path(Classes):
    """FedMRUR's Path(n): n classes per client in equal parts, equal sizes, as a true partition.

    The published code's refilled class pools are ``balanced-recycling``.
    """

    name = "path"
    paper = "FedMRUR"
    classes_per_client: Annotated[int, "n: classes that each client holds", at_least(1)] = 10


def class_sets(p: _Problem, k: int) -> Ints:
    """k distinct classes per client, every class held by equally many clients (to within one)."""
    present = np.flatnonzero(p.pools)
    C, N = len(present), p.clients
    if k > C:
        raise p.infeasible(f"classes_per_client = {k}, but the data set has {C} classes")
    if N * k < C:
        raise p.infeasible(f"{N} clients with {k} classes each leave {C - N * k} of the {C} classes with no client")
    blocks, rest = divmod(N, C)
    keys = rng.keys(p.key("class sets"), np.arange(blocks + 1))
    labels = rng.permutation(keys, C)  # a fresh naming of the classes for every C clients
    shifts = rng.permutation(rng.keys(p.key("class shifts"), np.arange(blocks + 1)), C)[:, :k]
    places = (np.arange(C)[None, :, None] + shifts[:blocks, None, :]) % C
    full = np.take_along_axis(labels[:blocks, None, :].repeat(C, axis=1), places, axis=2).reshape(-1, k)
    last = labels[blocks][(np.arange(rest)[:, None] * k + np.arange(k)) % C]
    return np.asarray(present[np.concatenate([full, last.reshape(rest, k)])])


class Quantity(Partitioner):
    """Every client has every class in the global mix, but not equally many samples."""

    name = "quantity"
    paper = "pFedMo, quantity skew"
    sizes: Annotated[tuple[float, ...], "samples of each client, like 5000,12500,17500; none: by alpha"] = ()
    alpha: Annotated[float, "without sizes: one draw from Dir(alpha) says who has how much", positive()] = 1.0
    min_size: Annotated[int, "every client gets at least so many samples", at_least(1)] = 1

    def validate(self) -> None:
        if any(not isinstance(s, int | float) or s < 1 or s != int(s) for s in self.sizes):
            raise InvalidInput(f"partition quantity: sizes = {list(self.sizes)}: they must be whole numbers >= 1")

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        if self.sizes:
            sizes = np.array(self.sizes, np.int64)
            if len(sizes) != p.clients:
                raise p.infeasible(f"{len(sizes)} sizes for {p.clients} clients")
            if sizes.sum() > p.samples:
                raise p.infeasible(f"the sizes add up to {int(sizes.sum())}, but the data set has {p.samples} samples")
        else:
            if self.min_size * p.clients > p.samples:
                raise p.infeasible(
                    f"{p.clients} clients of at least {self.min_size} need more than {p.samples} samples"
                )
            shares = dirichlet_rows(p.generator("sizes"), self.alpha, 1, p.clients)
            sizes = self.min_size + largest_remainder(shares, p.samples - self.min_size * p.clients)[0]
        # Even the class mix: walk through the samples in an order in which every stretch has the global mix.
        order = p.shuffled()
        if p.all_labels is not None:
            order, starts = p.by_class()
            label = p.labels[order]
            order = order[np.argsort((np.arange(p.samples) - starts[label] + 0.5) / p.pools[label], kind="stable")]
        return np.repeat(np.arange(p.clients), sizes), order[: sizes.sum()]


class Column(Partitioner):
    """The data set's own clients: subject, patient, hospital or any column."""

    name = "column"
    natural = True
    group: Annotated[bool, "with fewer clients than names: deal the names out; false: refuse"] = False

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        assert p.natural is not None
        names, owners = np.unique(p.natural, return_inverse=True)
        owners = owners.reshape(-1)
        if p.clients > len(names) or (p.clients < len(names) and not self.group):
            hint = "leave clients out or set group" if p.clients < len(names) else "leave clients out"
            raise p.infeasible(f"the data set names {len(names)} clients, not {p.clients}: {hint}")
        if p.clients < len(names):
            place = np.empty(len(names), np.int64)
            place[rng.permutation(p.key("groups"), len(names))] = np.arange(len(names)) % p.clients
            owners = place[owners]
            p.notes["groups"] = [[str(n) for n in names[place == g].tolist()] for g in range(p.clients)]
        else:
            p.names = names
        return owners, np.arange(p.samples)


class FedTripDirichlet(Partitioner):
    """FedTrip's Dir-a: each client draws its class mix from Dir(a), then its samples from the whole data set."""

    name = "fedtrip-dirichlet"
    paper = "FedTrip"
    alpha: Annotated[float, "concentration of each client's class mix", positive()] = 0.5
    samples: Annotated[int | None, "samples per client; none: all data, split evenly", at_least(1)] = None
    overlap: Annotated[bool, "clients draw independently and share samples (as published); false: they do not"] = True

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        priors = dirichlet_rows(p.generator("priors"), self.alpha, p.clients, p.classes)
        sizes = _sizes(p, self.samples, p.samples if self.overlap else None)
        if self.overlap:
            return draw_overlapping(p, np.maximum(priors, 1e-30), int(sizes[0]))
        return p.deal(draw_equal(p, priors, sizes))


class FedTripOrthogonal(Partitioner):
    """FedTrip's Orthogonal-c: clients in c clusters, each cluster with its own contiguous group of classes."""

    name = "fedtrip-orthogonal"
    paper = "FedTrip"
    clusters: Annotated[int, "c: groups of classes", at_least(1)] = 5
    samples: Annotated[int | None, "samples per client; none: all data, split evenly", at_least(1)] = None
    overlap: Annotated[bool, "clients draw independently and share samples (as published); false: they do not"] = True

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        if self.clusters > min(p.classes, p.clients):
            raise p.infeasible(f"clusters = {self.clusters}: at most {p.clients} clients and {p.classes} classes")
        group = np.arange(p.classes) * self.clusters // p.classes
        cluster = np.arange(p.clients) % self.clusters
        member = (group[None, :] == cluster[:, None]).astype(np.float64)
        if self.overlap:
            return draw_overlapping(p, member, int(_sizes(p, self.samples, p.samples)[0]))
        room = np.array([p.pools[group == g].sum() // (cluster == g).sum() for g in range(self.clusters)])
        size = int(room.min()) if self.samples is None else self.samples
        if size > room.min():
            raise p.infeasible(f"samples = {size}: cluster {int(room.argmin())} has only {int(room.min())} per client")
        counts = largest_remainder(member * p.pools, size)
        # Rounding may ask one class for a sample too many: draw those again inside the cluster.
        if (counts.sum(axis=0) > p.pools).any():
            counts = draw_equal(p, member * p.pools, np.full(p.clients, size))
        p.notes["unused"] = p.samples - size * p.clients
        return p.deal(counts)


class FedADM(Partitioner):
    """Cases 1 to 4 of FedADM (Wang et al.): uniform; by label; everybody has everything; half and half."""

    name = "fedadm"
    paper = "FedADM; Wang et al., JSAC 2019"
    case: Annotated[int, "1 uniform, 2 by label, 3 all data everywhere, 4 uniform and by label", between(1, 4)] = 1

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        sample, N = np.arange(p.samples), p.clients
        if self.case == 1:
            return sample % N, sample
        if self.case == 3:
            return np.repeat(np.arange(N), p.samples), np.tile(sample, N)
        low = int(p.labels.min())
        label, L = p.labels - low, p.classes - low
        if self.case == 2:
            target = label % N
        else:
            uniform = -(-min(N, L) // 2)
            rest = max(min(N, L) - uniform, 1)
            target = np.where(2 * label < L - 1, sample % uniform, np.minimum(label % rest + uniform, N - 1))
        if N > L:  # more nodes than labels: of the nodes congruent to the target, the least filled one
            rank = np.empty(p.samples, np.int64)
            order = np.argsort(target, kind="stable")
            sizes = np.bincount(target, minlength=L)
            rank[order] = sample - np.repeat(np.cumsum(sizes) - sizes, sizes)
            congruent = (N - target + L - 1) // L
            target = target + L * (rank % congruent)
        return target, sample


class BalancedRecycling(Partitioner):
    """Equal sizes by per-client class priors; a used-up class is refilled, so samples repeat and some go unused."""

    name = "balanced-recycling"
    paper = "FL-Simulator (FedSpeed, FedSMOO)"
    alpha: Annotated[float, "concentration of each client's class mix", positive()] = 0.6
    classes_per_client: Annotated[int | None, "n equiprobable classes instead of a Dirichlet mix", at_least(1)] = None
    samples: Annotated[int | None, "samples per client; none: all data, split evenly", at_least(1)] = None

    def assign(self, p: _Problem) -> tuple[Ints, Ints]:
        if self.classes_per_client is None:
            priors = dirichlet_rows(p.generator("priors"), self.alpha, p.clients, p.classes)
        else:
            if self.classes_per_client > p.classes:
                raise p.infeasible(f"classes_per_client = {self.classes_per_client}, but there are {p.classes} classes")
            keys = rng.keys(p.key("class sets"), np.arange(p.clients))
            chosen = rng.permutation(keys, p.classes)[:, : self.classes_per_client]
            priors = np.zeros((p.clients, p.classes))
            np.put_along_axis(priors, chosen, 1 / self.classes_per_client, axis=1)
        priors = priors * (p.pools > 0)
        priors /= priors.sum(axis=1, keepdims=True)
        counts = p.generator("draws").multinomial(_sizes(p, self.samples, p.samples), priors)
        owners, samples = [], []
        for c in np.flatnonzero(counts.sum(axis=0)):
            mine = np.flatnonzero(p.labels == c)
            wanted = int(counts[:, c].sum())
            passes = -(-wanted // len(mine))  # each refill comes in a new order
            stream = rng.permutation(rng.keys(p.key("refill", int(c)), np.arange(passes)), len(mine)).reshape(-1)[
                :wanted
            ]
            samples.append(mine[stream])
            owners.append(np.repeat(np.arange(p.clients), counts[:, c]))
        return np.concatenate(owners), np.concatenate(samples)


def _sizes(p: _Problem, samples: int | None, limit: int | None = None) -> Ints:
    """Samples per client: as asked, or all data split evenly. ``limit`` is for draws that may share samples."""
    if samples is None:
        return p.equal_sizes() if limit is None else np.full(p.clients, p.samples // p.clients)
    if samples > p.samples or (limit is None and samples * p.clients > p.samples):
        raise p.infeasible(f"samples = {samples} for each of {p.clients} clients, but the data set has {p.samples}")
    return np.full(p.clients, samples)


PARTITIONERS: dict[str, type[Partitioner]] = {
    kind.name: kind
    for kind in (
        Iid,
        Dirichlet,
        DirichletEqual,
        Classes,
        Path,
        Quantity,
        Column,
        FedTripDirichlet,
        FedTripOrthogonal,
        FedADM,
        BalancedRecycling,
    )
}


def partition(name: str, data: Dataset | NDArray[Any], clients: int | None, seed: int, **settings: Any) -> Partition:
    """``partition("dirichlet", dataset, 50, seed=1, alpha=0.1)``."""
    if name not in PARTITIONERS:
        raise unknown("partition", name, PARTITIONERS)
    return PARTITIONERS[name].create(**settings).split(data, clients, seed)


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


@dataclass(frozen=True)
class Heterogeneity:
    """How different the clients are. Entropies and divergences in bits; distances as a share of all samples."""

    clients: int
    samples: int  # held by anyone, counted once per holder
    smallest: int
    median: float
    largest: int
    entropy: float  # mean over clients of the entropy of the client's class mix
    entropy_global: float
    divergence: float  # mean Jensen-Shannon divergence of two clients' class mixes, 0 (same) to 1 (disjoint)
    distance: float  # n-weighted mean earth mover's distance of a client's class mix to the global one, 0 to 1
    histogram: Ints  # samples per client and class
    sampled_pairs: bool = False


def heterogeneity(
    parts: Partition, labels: NDArray[Any], classes: int, *, pairs: int = 20_000, seed: int = 0
) -> Heterogeneity:
    """The figures of a partition. Beyond ``pairs`` pairs of clients, that many pairs are drawn."""
    histogram = parts.histogram(np.asarray(labels).astype(np.int64), classes)
    sizes = histogram.sum(axis=1)
    mix = histogram / np.maximum(sizes, 1)[:, None]
    whole = histogram.sum(axis=0) / max(int(sizes.sum()), 1)
    N = len(parts)
    sampled = pairs < N * (N - 1) // 2
    if sampled:
        words = rng.bits(rng.key(seed, "pairs"), 2 * pairs)
        a = (words[:pairs] % np.uint64(N)).astype(np.int64)
        b = (a + 1 + (words[pairs:] % np.uint64(N - 1)).astype(np.int64)) % N
    else:
        a, b = np.triu_indices(N, 1)
    divergence = 0.0
    if len(a):
        middle = _entropy((mix[a] + mix[b]) / 2)
        divergence = float(np.mean(middle - (_entropy(mix[a]) + _entropy(mix[b])) / 2))
    # Between class labels every move costs the same, so the earth mover's distance is the total variation distance.
    distance = np.abs(mix - whole).sum(axis=1) / 2
    return Heterogeneity(
        clients=N,
        samples=int(sizes.sum()),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        entropy=float(_entropy(mix).mean()),
        entropy_global=float(_entropy(whole[None])[0]),
        divergence=max(divergence, 0.0),
        distance=float((distance * sizes).sum() / max(int(sizes.sum()), 1)),
        histogram=histogram,
        sampled_pairs=sampled,
    )


def _entropy(rows: Floats) -> Floats:
    safe = np.where(rows > 0, rows, 1.0)
    return np.asarray(-(rows * np.log2(safe)).sum(axis=1))
