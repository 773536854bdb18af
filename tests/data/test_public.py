"""Data that the server holds: where they come from, and what methods without server data do with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from undrift.core.errors import InvalidInput
from undrift.experiment.description import Experiment
from undrift.experiment.prepare import Prepared, prepare_experiment

DIGITS = 1438  # samples to train on


def setting(method: str, **plan: Any) -> Prepared:
    values = {"algorithm": method, "data": "digits", "partition": "dirichlet", "clients": 5, **plan}
    return prepare_experiment(Experiment.build(values, "test"))


@pytest.mark.parametrize(("share", "size"), [(0.002, 3), (0.01, 14), (0.05, 72)])
@pytest.mark.parametrize("scoring", [20, 64])
def test_public_data_are_balanced_and_held_out(share: float, size: int, scoring: int) -> None:
    found = setting("pfedmo", public=share, scoring=scoring)
    federation, labels = found.federation, found.dataset.labels
    assert federation.public is not None
    assert federation.scoring is not None
    assert labels is not None
    assert (len(federation.public), len(federation.scoring)) == (size, scoring)
    everywhere = np.concatenate([federation.indices, federation.public, federation.scoring])
    assert np.array_equal(np.sort(everywhere), np.arange(DIGITS))  # nobody's twice, and rows of the training set
    for rows in (federation.public, np.concatenate([federation.public, federation.scoring])):
        counts = np.bincount(labels[rows], minlength=10)
        assert counts.max() - counts.min() <= 1


def test_public_data_are_drawn_from_the_seed() -> None:
    first, again, other = (setting("pfedmo", seed=seed).federation.public for seed in (1, 1, 2))
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()


def test_other_methods_share_the_public_data_leave_them_out_or_get_them_as_one_more_client() -> None:
    ours = setting("pfedmo").federation
    assert ours.public is not None
    shared, without, client = (
        setting("fednag", others_public=how).federation for how in ("shared", "held-out", "client")
    )
    assert sorted(shared.indices.tolist()) == list(range(DIGITS))
    assert without.indices.tolist() == ours.indices.tolist()
    assert without.offsets.tolist() == ours.offsets.tolist()
    assert client.population.size == 6
    assert client.rows(5).tolist() == ours.public.tolist()
    assert [client.rows(i).tolist() for i in range(5)] == [ours.rows(i).tolist() for i in range(5)]
    assert all(f.public is None and f.scoring is None for f in (shared, without, client))


def test_the_client_with_the_public_data_takes_part_and_has_no_test_data() -> None:
    found = setting("fedavg", others_public="client")
    assert found.participate == 6
    parts, ours = found.federation.test, setting("pfedmo").federation.test
    assert parts is not None
    assert ours is not None
    offsets = ours.offsets.tolist()
    assert parts.offsets.tolist() == [*offsets, offsets[-1]]  # the others are tested on what they are tested on anyway
    assert parts.indices.tolist() == ours.indices.tolist()


def test_methods_that_pool_all_data_pool_these_too() -> None:
    pooled = setting("central", others_public="client").federation
    assert pooled.population.samples.tolist() == [DIGITS - 64]


def test_more_than_there_is_cannot_be_held_out() -> None:
    with pytest.raises(InvalidInput, match=r"pFedMo wants 719 public and 720 scoring samples; there are 1438 in all"):
        setting("pfedmo", public=0.5, scoring=720)


@pytest.mark.parametrize("how", ["server", "held-out", "client"])
def test_sizes_of_all_data_are_no_reason_to_refuse_public_data(how: str) -> None:
    sizes = [138, 300, 400, 600]  # all 1438
    plan = {} if how == "server" else {"others_public": how}
    values = {"partition": {"name": "quantity", "sizes": sizes}, "clients": 4, "public": 0.05, **plan}
    found = setting("pfedmo" if how == "server" else "fedavg", **values)
    given = found.federation.population.samples[:4]
    left = DIGITS - 72 - 64
    assert given.sum() == left
    assert np.abs(given - np.array(sizes) * left / DIGITS).max() < 1


def test_samples_per_client_of_all_data_are_no_reason_either() -> None:
    values = {"partition": {"name": "dirichlet-equal", "samples": 143}, "clients": 10}
    assert setting("fedavg", **values).federation.population.samples.tolist() == [143] * 10
    assert setting("pfedmo", **values).federation.population.samples.tolist() == [143 * (DIGITS - 78) // DIGITS] * 10


def test_random_classes_warn_of_those_that_nobody_holds() -> None:
    kind = {"name": "classes", "classes_per_client": 2, "cover": False}
    with pytest.warns(UserWarning, match="no client holds class"):
        setting("fedavg", partition=kind, clients=2)
