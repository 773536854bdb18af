"""Partitions: what each promises, for any data, number of clients and seed."""

from __future__ import annotations

import os
import subprocess
import sys
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undrift.core.errors import InvalidInput
from undrift.data import PARTITIONERS, Dataset, FeatureSkew, Partition, heterogeneity, partition, test_parts

QUANTITY = PARTITIONERS["quantity"]
TRUE = {  # settings under which no sample is given twice
    "iid": {},
    "dirichlet": {"alpha": 0.1},
    "dirichlet-equal": {"alpha": 0.1},
    "classes": {"classes_per_client": 2},
    "path": {"classes_per_client": 2},
    "quantity": {},
    "shards": {},
    "fedtrip-dirichlet": {"alpha": 0.1, "overlap": False},
    "fedtrip-orthogonal": {"clusters": 2, "overlap": False},
    "fedadm": {"case": 4},
}


def labels_of(counts: list[int], seed: int = 0) -> np.ndarray:
    y = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(y)
    return y


def dataset(y: np.ndarray, y_test: np.ndarray | None = None, **more: object) -> Dataset:
    y_test = y if y_test is None else y_test
    return Dataset.from_arrays(np.zeros((len(y), 1)), y, np.zeros((len(y_test), 1)), y_test, **more)  # type: ignore[arg-type]


problems = st.tuples(
    st.lists(st.integers(20, 60), min_size=2, max_size=6), st.integers(3, 12), st.integers(0, 2**31), st.integers(0, 9)
)


def test_shards_as_mcmahan_dealt_them() -> None:
    """200 shards of 300 in order of class, two for each of 100 clients: most see two digits, none more than four."""
    y = labels_of([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])  # MNIST's
    parts = partition("shards", y, 100, 1)
    assert set(parts.sizes) == {600}
    held = (parts.histogram(y, 10) > 0).sum(1)
    assert held.max() <= 4
    assert (held <= 2).mean() > 0.5
    assert partition("shards", y, 100, 2).fingerprint != parts.fingerprint
    with pytest.raises(InvalidInput, match="2000 shards need at least 2000 samples"):
        partition("shards", y[:100], 10, 1, shards_per_client=200)


@pytest.mark.parametrize("name", TRUE)
@settings(max_examples=25, deadline=None)
@given(problem=problems)
def test_no_sample_is_given_twice_and_nobody_is_empty(name: str, problem: tuple[list[int], int, int, int]) -> None:
    counts, clients, seed, shuffle = problem
    y = labels_of(counts, shuffle)
    if name in ("classes", "path") and 2 * clients < len(counts):
        clients = len(counts)
    parts = partition(name, y, clients, seed, **TRUE[name])
    assert len(parts) == clients
    assert len(np.unique(parts.indices)) == len(parts.indices)
    assert parts.sizes.min() >= 1
    assert parts.indices.min() >= 0
    assert parts.indices.max() < len(y)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "dirichlet-equal", "quantity", "fedadm"])
def test_all_samples_are_used(name: str) -> None:
    parts = partition(name, labels_of([50, 70, 33]), 7, 3)
    assert sorted(parts.indices) == list(range(153))


@pytest.mark.parametrize("name", [n for n, kind in PARTITIONERS.items() if not kind.natural])
def test_the_seed_decides(name: str) -> None:
    y = labels_of([60] * 10)
    given = {"clusters": 5} if name == "fedtrip-orthogonal" else {}
    first, again, other = (partition(name, y, 20, seed, **given) for seed in (1, 1, 2))
    assert first.fingerprint == again.fingerprint
    assert first.fingerprint != other.fingerprint


def test_another_process_makes_the_same_partitions() -> None:
    script = (
        "import numpy as np\n"
        "from undrift.data import PARTITIONERS, partition\n"
        "y = np.arange(1000) % 10\n"
        "print(*(partition(n, y, 20, 7).fingerprint for n in PARTITIONERS if n != 'column'))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "123", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
    y = np.arange(1000) % 10
    assert run.stdout.split() == [partition(n, y, 20, 7).fingerprint for n in PARTITIONERS if n != "column"]


class TestDirichlet:
    def test_small_alpha_gives_few_classes_and_large_alpha_all(self) -> None:
        y = labels_of([500] * 10)
        skewed, even = (heterogeneity(partition("dirichlet", y, 10, 1, alpha=a), y, 10) for a in (0.05, 1000.0))
        assert skewed.entropy < 1.5 < 3.2 < even.entropy
        assert skewed.divergence > 0.5 > 0.05 > even.divergence

    def test_min_size_holds_even_where_redrawing_cannot_help(self) -> None:
        y = labels_of([200] * 10)
        parts = partition("dirichlet", y, 50, 1, alpha=0.01, min_size=30)
        assert parts.sizes.min() >= 30
        assert sorted(parts.indices) == list(range(2000))
        assert parts.description["moved"] > 0

    @settings(max_examples=50, deadline=None)
    @given(counts=st.lists(st.integers(5, 40), min_size=1, max_size=5), clients=st.integers(1, 20), data=st.data())
    def test_any_feasible_min_size_is_met(self, counts: list[int], clients: int, data: st.DataObject) -> None:
        y = labels_of(counts)
        clients = min(clients, len(y))
        low = data.draw(st.integers(1, len(y) // clients))
        parts = partition("dirichlet", y, clients, 1, alpha=0.05, min_size=low)
        assert parts.sizes.min() >= low
        assert sorted(parts.indices) == list(range(len(y)))

    def test_min_size_equal_to_the_mean_forces_equal_sizes(self) -> None:
        assert set(partition("dirichlet", labels_of([10, 10, 20]), 8, 3, min_size=5).sizes) == {5}

    def test_vanishing_alpha_does_not_break(self) -> None:
        y = labels_of([40] * 5)
        parts = partition("dirichlet-equal", y, 10, 1, alpha=1e-6)
        assert set(parts.sizes) == {20}

    @pytest.mark.parametrize("clients", [11, 1000])
    def test_infeasible_says_why(self, clients: int) -> None:
        with pytest.raises(InvalidInput, match=f"10 samples are fewer than {clients} clients"):
            partition("dirichlet", np.arange(10) % 2, clients, 1)
        with pytest.raises(InvalidInput, match="4 clients of at least 3 need more than 10 samples"):
            partition("dirichlet", np.arange(10) % 2, 4, 1, min_size=3)

    def test_equal_sizes(self) -> None:
        sizes = partition("dirichlet-equal", labels_of([55, 60, 70]), 8, 2, alpha=0.1).sizes
        assert sizes.max() - sizes.min() <= 1
        assert sizes.sum() == 185

    def test_mean_class_mix_is_the_dirichlet_mean(self) -> None:
        y = labels_of([1000] * 4)
        histogram = partition("dirichlet-equal", y, 400, 5, alpha=1.0, samples=5).histogram(y, 4)
        # The variance of a client's count of one class is 5 * (1/4)(3/4) * (5 + 4) / (1 + 4).
        tolerance = 4 * np.sqrt(5 * 3 / 16 * 9 / 5 / 400)
        assert np.abs(histogram.mean(axis=0) - 1.25).max() < tolerance


class TestClasses:
    @settings(max_examples=40, deadline=None)
    @given(clients=st.integers(1, 40), classes=st.integers(2, 10), k=st.integers(1, 10), seed=st.integers(0, 2**31))
    def test_k_classes_equal_sizes_every_class_held(self, clients: int, classes: int, k: int, seed: int) -> None:
        y = labels_of([100 + 10 * c for c in range(classes)])
        if k > classes or clients * k < classes:
            with pytest.raises(InvalidInput, match="classes"):
                partition("classes", y, clients, seed, classes_per_client=k)
            return
        parts = partition("classes", y, clients, seed, classes_per_client=k)
        held = parts.histogram(y, classes) > 0
        assert set(held.sum(axis=1)) == {k}
        holders = held.sum(axis=0)
        assert holders.min() >= 1
        assert holders.max() - holders.min() <= 1
        assert len(set(parts.sizes)) == 1
        assert parts.description["unused"] == len(y) - parts.sizes.sum()

    def test_balanced_data_is_nearly_all_used(self) -> None:
        y = labels_of([500] * 100)  # CIFAR-100's training set
        parts = partition("path", y, 200, 1, classes_per_client=20)
        assert set((parts.histogram(y, 100) > 0).sum(axis=1)) == {20}
        assert parts.sizes.min() >= 249

    def test_all_samples_where_sizes_may_differ(self) -> None:
        y = labels_of([30, 50, 70, 90])
        parts = partition("classes", y, 6, 1, classes_per_client=2, equal=False)
        assert sorted(parts.indices) == list(range(240))
        assert set((parts.histogram(y, 4) > 0).sum(axis=1)) == {2}

    def test_labels_may_have_holes(self) -> None:
        y = 3 * labels_of([50] * 4)  # 0, 3, 6, 9
        parts = partition("classes", y, 6, 1, classes_per_client=2)
        assert set((parts.histogram(y, 10) > 0).sum(axis=1)) == {2}

    def test_class_no_client_holds(self) -> None:
        with pytest.raises(InvalidInput, match="leave 4 of the 10 classes with no client: cover = false"):
            partition("classes", labels_of([10] * 10), 3, 1, classes_per_client=2)
        parts = partition("classes", labels_of([10] * 10), 3, 1, classes_per_client=2, cover=False)
        held = parts.histogram(labels_of([10] * 10), 10) > 0
        assert set(held.sum(axis=1)) == {2}
        assert parts.description["classes of nobody"] == np.flatnonzero(~held.any(axis=0)).tolist()

    @settings(max_examples=40, deadline=None)
    @given(clients=st.integers(1, 40), k=st.integers(1, 10), seed=st.integers(0, 2**31))
    def test_random_classes(self, clients: int, k: int, seed: int) -> None:
        y = labels_of([100 + 10 * c for c in range(10)])
        parts = partition("classes", y, clients, seed, classes_per_client=k, cover=False)
        assert set((parts.histogram(y, 10) > 0).sum(axis=1)) == {k}
        assert len(set(parts.sizes)) == 1
        assert len(np.unique(parts.indices)) == len(parts.indices)

    def test_random_classes_are_drawn_alike(self) -> None:
        y = labels_of([400] * 10)
        parts = partition("classes", y, 2000, 1, classes_per_client=3, equal=False, cover=False)
        held = parts.histogram(y, 10) > 0
        holders = held.sum(axis=0)  # each is binomial(2000, 0.3); 400 samples for about 600 holders
        assert holders.tolist() == [400] * 10
        few = partition("classes", y, 300, 1, classes_per_client=3, cover=False).histogram(y, 10) > 0
        assert np.abs(few.sum(axis=0) - 90).max() < 4 * np.sqrt(300 * 0.3 * 0.7)
        assert few.sum(axis=0).max() - few.sum(axis=0).min() > 1  # unlike the covering one

    def test_fingerprints_recorded_before_the_setting_existed_stay(self) -> None:
        y = np.arange(1000) % 10
        assert partition("classes", y, 20, 7).fingerprint == "59f4d8192ae6334a"
        assert partition("path", y, 20, 7).fingerprint == "6bef641ea9f00106"
        assert partition("classes", y, 20, 7, cover=False).description["settings"]["cover"] is False


class TestQuantity:
    def test_given_sizes_with_the_global_mix(self) -> None:
        y = labels_of([6000] * 10)
        parts = partition("quantity", y, 4, 1, sizes=[5000, 12500, 17500, 25000])
        assert parts.sizes.tolist() == [5000, 12500, 17500, 25000]
        shares = parts.histogram(y, 10) / parts.sizes[:, None]
        assert np.abs(shares - 0.1).max() < 0.02

    @pytest.mark.parametrize(
        ("sizes", "words"),
        [([5, 5], "2 sizes for 3 clients"), ([50, 50, 50], "add up to 150"), ([1, 2.5, 3], "whole numbers")],
    )
    def test_bad_sizes(self, sizes: list[float], words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            partition("quantity", np.arange(100) % 2, 3, 1, sizes=sizes)

    @pytest.mark.parametrize("kind", [{"sizes": [5000, 12500, 17500, 25000]}, {"sizes": [1000, 1000, 1000, 56999]}])
    def test_sizes_of_the_whole_give_their_share_of_what_is_set_apart(self, kind: dict[str, list[int]]) -> None:
        y = labels_of([5934] * 10)
        parts = QUANTITY.create(**kind).split(y, 4, 1, whole=60000)
        wanted = np.array(kind["sizes"]) * 59340 / 60000
        assert np.abs(parts.sizes - wanted).max() < 1
        assert parts.sizes.sum() == sum(kind["sizes"]) * 59340 // 60000
        assert parts.description["settings"]["sizes"] == kind["sizes"]  # what was asked for
        assert parts.description["sizes"] == parts.sizes.tolist()  # what it became
        with pytest.raises(InvalidInput, match="add up to 60001, but the data set has 60000"):
            QUANTITY.create(sizes=[60001]).split(y, 1, 1, whole=60000)

    def test_sizes_that_still_fit_stay_as_given(self) -> None:
        parts = QUANTITY.create(sizes=[100, 200]).split(labels_of([500, 450]), 2, 1, whole=1000)
        assert parts.sizes.tolist() == [100, 200]
        assert "sizes" not in parts.description

    def test_needs_no_labels(self) -> None:
        data = Dataset.from_arrays(np.zeros((50, 1)), np.linspace(0, 1, 50), regression=True)
        assert partition("quantity", data, 5, 1, min_size=3).sizes.min() >= 3

    def test_labels_are_needed_elsewhere(self) -> None:
        data = Dataset.from_arrays(np.zeros((50, 1)), np.linspace(0, 1, 50), regression=True)
        with pytest.raises(InvalidInput, match="goes by class labels"):
            partition("dirichlet", data, 5, 1)


class TestColumn:
    client = np.array(["b", "a", "c", "a", "b", "c", "c", "a"])

    def data(self) -> Dataset:
        y = np.arange(8) % 2
        return dataset(y, y, client=self.client, client_test=self.client[::-1].copy())

    def test_by_name(self) -> None:
        parts = partition("column", self.data(), None, 1)
        assert parts.names is not None
        assert parts.names.tolist() == ["a", "b", "c"]
        assert parts[0].tolist() == [1, 3, 7]
        assert parts[2].tolist() == [2, 5, 6]

    def test_another_number_is_refused(self) -> None:
        with pytest.raises(InvalidInput, match="names 3 clients, not 2"):
            partition("column", self.data(), 2, 1)

    def test_groups_keep_names_together(self) -> None:
        parts = partition("column", self.data(), 2, 1, group=True)
        groups = [set(self.client[part]) for part in parts]
        assert groups[0] | groups[1] == {"a", "b", "c"}
        assert not groups[0] & groups[1]

    def test_groups_have_their_own_test_rows(self) -> None:
        data = self.data()
        parts = partition("column", data, 2, 1, group=True)
        assert data.client is not None
        assert data.client_test is not None
        for rows, rows_test in zip(parts, test_parts(parts, data, 1), strict=True):
            assert set(data.client[rows]) == set(data.client_test[rows_test])

    def test_data_without_clients(self) -> None:
        with pytest.raises(InvalidInput, match="names no clients"):
            partition("column", dataset(np.arange(8) % 2), None, 1)

    def test_own_test_rows(self) -> None:
        data = self.data()
        parts = partition("column", data, None, 1)
        assert data.client_test is not None
        for name, rows in zip("abc", test_parts(parts, data, 1), strict=True):
            assert set(data.client_test[rows]) == {name}


class TestFedTrip:
    def test_overlapping_draws(self) -> None:
        y = labels_of([600] * 10)
        parts = partition("fedtrip-dirichlet", y, 10, 1, alpha=0.5, samples=600)
        assert set(parts.sizes) == {600}
        assert all(len(np.unique(part)) == 600 for part in parts)  # without replacement inside a client
        assert len(np.unique(parts.indices)) < len(parts.indices)  # but clients share samples

    def test_weights_are_followed(self) -> None:
        y = labels_of([1000] * 4)
        histogram = partition("fedtrip-dirichlet", y, 100, 1, alpha=1e6, samples=40).histogram(y, 4)
        share = histogram.sum(axis=0) / 4000
        assert np.abs(share - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 4000)

    @pytest.mark.parametrize("overlap", [True, False])
    def test_clusters_have_contiguous_classes(self, overlap: bool) -> None:
        y = labels_of([100] * 10)
        parts = partition("fedtrip-orthogonal", y, 10, 1, clusters=5, overlap=overlap)
        for i, rows in enumerate(parts):
            assert set(y[rows]) <= {2 * (i % 5), 2 * (i % 5) + 1}

    def test_one_class_each(self) -> None:
        y = labels_of([100] * 10)
        for i, rows in enumerate(partition("fedtrip-orthogonal", y, 10, 1, clusters=10, samples=60)):
            assert set(y[rows]) == {i}

    def test_more_than_the_classes_have(self) -> None:
        with pytest.raises(InvalidInput, match="draw 150 samples from classes that have only 100"):
            partition("fedtrip-orthogonal", labels_of([100] * 10), 10, 1, clusters=10, samples=150)

    def test_true_partition_of_equal_sizes(self) -> None:
        y = labels_of([100] * 10)
        parts = partition("fedtrip-dirichlet", y, 10, 1, alpha=0.1, samples=60, overlap=False)
        assert set(parts.sizes) == {60}
        assert len(np.unique(parts.indices)) == 600


def cases_one_by_one(y: np.ndarray, nodes: int, case: int) -> list[list[int]]:
    """The four cases, sample by sample as the rule is written down."""
    held: list[list[int]] = [[] for _ in range(nodes)]
    labels = int(y.max()) + 1

    def least_filled(target: int) -> int:
        return min((n for n in range(nodes) if n % labels == target), key=lambda n: (len(held[n]), n))

    for i, label in enumerate(y.tolist()):
        uniform = ceil(min(nodes, labels) / 2)
        if case == 1:
            target = i % nodes
        elif case == 2:
            target = label % nodes if nodes <= labels else least_filled(label)
        elif case == 3:
            for node in held:
                node.append(i)
            continue
        else:
            if label < (labels - 1) / 2:
                target = i % uniform
            else:
                target = label % (min(nodes, labels) - uniform) + uniform
            if nodes > labels:
                target = least_filled(target)
        held[target].append(i)
    return held


@pytest.mark.parametrize("case", [1, 2, 3, 4])
@pytest.mark.parametrize("nodes", [2, 5, 10, 15, 30])
def test_fedadm_cases(case: int, nodes: int) -> None:
    y = labels_of([40] * 10)
    parts = partition("fedadm", y, nodes, 1, case=case)
    assert [rows.tolist() for rows in parts] == cases_one_by_one(y, nodes, case)


class TestRecycling:
    def test_equal_sizes_and_repeated_samples(self) -> None:
        y = labels_of([50] * 10)
        parts = partition("balanced-recycling", y, 10, 1, alpha=0.1)
        assert set(parts.sizes) == {50}
        assert len(np.unique(parts.indices)) < 500

    def test_a_class_is_refilled_only_when_used_up(self) -> None:
        y = labels_of([30, 30])
        parts = partition("balanced-recycling", y, 6, 1, classes_per_client=1, samples=20)
        uses = np.bincount(parts.indices, minlength=60)
        for c in (0, 1):
            used = uses[y == c]
            assert used.max() - used.min() <= 1


class TestTestParts:
    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 2**31), clients=st.integers(1, 30))
    def test_disjoint_and_complete(self, seed: int, clients: int) -> None:
        y, y_test = labels_of([50, 60, 70], seed), labels_of([11, 13, 17], seed)
        data = dataset(y, y_test)
        parts = test_parts(partition("dirichlet", data, clients, seed, alpha=0.2), data, seed)
        assert len(parts) == clients
        assert sorted(parts.indices) == list(range(41))

    def test_shares_follow_training(self) -> None:
        y = np.array([0] * 30 + [1] * 10)
        data = dataset(y, np.array([0] * 12 + [1] * 4))
        parts = Partition(np.arange(40), np.array([0, 10, 40]))  # client 0: a third of class 0; client 1: the rest
        mine = test_parts(parts, data, 1)
        assert [np.bincount(data.y_test[rows], minlength=2).tolist() for rows in mine] == [[4, 0], [8, 4]]

    def test_regression_goes_by_size(self) -> None:
        data = Dataset.from_arrays(
            np.zeros((40, 1)), np.arange(40.0), np.zeros((8, 1)), np.arange(8.0), regression=True
        )
        parts = test_parts(Partition(np.arange(40), np.array([0, 10, 40])), data, 1)
        assert parts.sizes.tolist() == [2, 6]

    def test_a_class_nobody_trains_on_is_shared_by_size(self) -> None:
        data = dataset(np.array([0] * 20 + [1] * 20), np.array([1] * 4))
        parts = Partition(np.arange(20), np.array([0, 5, 20]))
        assert test_parts(parts, data, 1).sizes.tolist() == [1, 3]


class TestHeterogeneity:
    def test_disjoint_classes(self) -> None:
        y = np.array([0, 0, 1, 1])
        figures = heterogeneity(Partition(np.arange(4), np.array([0, 2, 4])), y, 2)
        assert (figures.entropy, figures.entropy_global) == (0, 1)
        assert figures.divergence == pytest.approx(1)
        assert figures.distance == pytest.approx(0.5)
        assert figures.histogram.tolist() == [[2, 0], [0, 2]]

    def test_same_mix(self) -> None:
        y = np.array([0, 1, 0, 1, 0, 1])
        figures = heterogeneity(Partition(np.arange(6), np.array([0, 2, 6])), y, 2)
        assert (figures.entropy, figures.divergence, figures.distance) == (1, 0, 0)
        assert (figures.smallest, figures.median, figures.largest) == (2, 3, 4)

    def test_divergence_by_hand(self) -> None:
        # mixes (1, 0) and (1/2, 1/2): H(3/4, 1/4) - 1/2 = 0.3113 bits
        y = np.array([0, 0, 0, 1])
        figures = heterogeneity(Partition(np.arange(4), np.array([0, 2, 4])), y, 2)
        expected = -(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25)) - 0.5
        assert figures.divergence == pytest.approx(expected)

    def test_sampled_pairs_are_close_to_all_pairs(self) -> None:
        y = labels_of([500] * 10)
        parts = partition("dirichlet", y, 100, 1, alpha=0.3)
        everyone, some = heterogeneity(parts, y, 10), heterogeneity(parts, y, 10, pairs=3000)
        assert some.sampled_pairs
        assert not everyone.sampled_pairs
        assert some.divergence == pytest.approx(everyone.divergence, abs=0.02)


class TestFeatureSkew:
    def data(self) -> Dataset:
        x = np.random.default_rng(0).normal(size=(40, 1, 8, 8))
        return Dataset.from_arrays(x, np.arange(40) % 2, x[:4], np.arange(4) % 2)

    def test_off_changes_nothing(self) -> None:
        data = self.data()
        assert FeatureSkew().apply(data, partition("iid", data, 4, 1), 1) is data

    def test_noise_grows_with_the_client(self) -> None:
        data = self.data()
        parts = partition("iid", data, 4, 1)
        changed = FeatureSkew(noise=3.0).apply(data, parts, 1)
        spread = [float((changed.x[rows] - data.x[rows]).std()) for rows in parts]
        assert spread[0] == 0
        assert np.allclose(spread, [0, 1, 2, 3], rtol=0.1)
        assert np.array_equal(changed.x_test, data.x_test)

    def test_rotation_is_one_angle_per_client(self) -> None:
        data = self.data()
        gradient = np.broadcast_to(np.linspace(-1, 1, 8), (40, 1, 8, 8)).copy()
        data = Dataset.from_arrays(gradient, np.arange(40) % 2, gradient, np.arange(40) % 2)
        parts = partition("iid", data, 4, 1)
        changed = FeatureSkew(rotation=90.0).apply(data, parts, 1)
        pictures = [changed.x[rows] for rows in parts]
        for mine in pictures:
            assert np.allclose(mine, mine[:1], atol=1e-6)
        assert not np.allclose(pictures[0][0], pictures[1][0], atol=1e-3)
        assert changed.fingerprint != data.fingerprint

    def test_shared_samples_are_refused(self) -> None:
        data = self.data()
        with pytest.raises(InvalidInput, match="share samples"):
            FeatureSkew(noise=1.0).apply(data, partition("fedadm", data, 2, 1, case=3), 1)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("dirichlet", {"alpha": 0.0}, "alpha = 0.0: it must be a number > 0"),
        ("dirichlet", {"alfa": 0.1}, "did you mean 'alpha'"),
        ("dirichlt", {}, "did you mean 'dirichlet'"),
        ("fedadm", {"case": 5}, "case = 5"),
        ("classes", {"classes_per_client": 11}, "the data set has 10 classes"),
        ("dirichlet-equal", {"samples": 60}, "samples = 60 for each of 20 clients, but the data set has 1000"),
        ("fedtrip-orthogonal", {"clusters": 11}, "clusters = 11"),
    ],
)
def test_bad_settings(name: str, given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        partition(name, np.arange(1000) % 10, 20, 1, **given)


@pytest.mark.parametrize("clients", [0, -1, None])
def test_bad_number_of_clients(clients: int | None) -> None:
    with pytest.raises(InvalidInput, match="clients = "):
        partition("iid", np.arange(10) % 2, clients, 1)


def test_indexing() -> None:
    parts = Partition(np.arange(6), np.array([0, 1, 3, 6]))
    assert parts[-1].tolist() == [3, 4, 5]
    assert [rows.tolist() for rows in parts] == [[0], [1, 2], [3, 4, 5]]
    with pytest.raises(IndexError):
        parts[3]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["iid", "dirichlet", "dirichlet-equal", "classes", "quantity", "fedadm"])
def test_a_million_clients(name: str) -> None:
    y = np.arange(3_000_000) % 10
    parts = partition(name, y, 1_000_000, 1)
    assert len(parts) == 1_000_000
    assert parts.sizes.min() >= 1
    assert np.bincount(parts.indices).max() == 1
