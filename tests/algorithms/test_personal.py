"""FedRep, FedProto and the two reference lines: what is shared, what is not, and what is evaluated."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recording import recorded, states
from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from worked import play, quadratics, small, toy, trajectory

MOMENTUM: dict[str, Any] = {"momentum": 0.5, "weight_decay": 0.01}

# --- FedRep -----------------------------------------------------------------------------------------------------------


def test_fedrep_freezes_the_other_part_in_each_phase() -> None:
    here, method = small(5, **MOMENTUM), create("fedrep", head_epochs=2)
    start, _ = here.start()
    local, phases = here.trainer().local(1, 1, here.rows(1)), []
    descend = local.descend

    def watched(*args: Any, **kwargs: Any) -> Tensor:
        phases.append(descend(*args, **kwargs))
        return phases[-1]

    local.descend = watched  # type: ignore[method-assign]
    split = here.layout.split
    with torch.no_grad():
        down = method.broadcast(method.server_init(start, here.population), None)  # type: ignore[arg-type]
        up, me = method.client_update(down, method.client_init(start, here.layout), local)
    first, second = phases
    assert torch.equal(split(first, "body"), split(start, "body"))
    assert not torch.equal(split(first, "head"), split(start, "head"))
    assert torch.equal(split(second, "head"), split(first, "head"))
    assert not torch.equal(split(second, "body"), split(start, "body"))
    assert torch.equal(up.body, split(second, "body"))
    assert torch.equal(me.head, split(second, "head"))


def test_fedrep_without_head_epochs_keeps_the_heads() -> None:
    here = small(5, **MOMENTUM)
    _, kept = states(here, "fedrep", 4, participate=3, head_epochs=0)
    head = here.layout.split(here.start()[0], "head")
    assert all(torch.equal(state.head, head) for state in kept.values())


def test_fedrep_without_a_head_is_fedavg_bit_for_bit() -> None:
    here = quadratics([[1], [3]], [[0], [1]], [1, 3], [0.0], toy().training)
    mine = [r.snapshot.server.body.tolist() for r in play(here, "fedrep", 4, head_epochs=0)]
    assert mine == trajectory(here, "fedavg", 4)


def test_the_server_of_fedrep_never_sees_a_head() -> None:
    here = small(5)
    played, seen = recorded(here, "fedrep", 2, participate=3)
    body, method = here.layout.extent("body"), create("fedrep")
    for task, replies in seen:
        assert task.down.body.shape == (body,)
        assert all([v.shape for _, v in reply.up.items()] == [(body,)] for reply in replies)
    assert method.models(played[-1].snapshot.server) == {}


def test_fedrep_evaluates_the_global_body_with_the_clients_head() -> None:
    here = small(5)
    server, kept = states(here, "fedrep", 3, participate=3)
    w = create("fedrep").personal(create("fedrep").broadcast(server, None), kept[1], here.layout)  # type: ignore[arg-type]
    assert torch.equal(here.layout.split(w, "body"), server.body)
    assert torch.equal(here.layout.split(w, "head"), kept[1].head)


# --- FedProto ---------------------------------------------------------------------------------------------------------


def test_fedproto_without_weight_is_local_training_bit_for_bit() -> None:
    mine, other = (
        states(small(5, **MOMENTUM), name, 5, participate=3, **settings)[1]
        for name, settings in (("fedproto", {"lam": 0}), ("local", {}))
    )
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[i].x, other[i].x) for i in mine)


def test_the_first_round_of_fedproto_has_no_prototypes() -> None:
    runs = [states(small(5, **MOMENTUM), "fedproto", 1, lam=lam)[1] for lam in (0.0, 2.0)]
    assert all(torch.equal(runs[0][i].x, runs[1][i].x) for i in runs[0])


@pytest.mark.parametrize("average", ["clients", "samples"])
def test_identical_clients_have_the_global_prototypes(average: str) -> None:
    here = small(5, sizes=(8,), batch_size=0)
    three = replace(here, indices=np.tile(here.indices, 3), offsets=np.array([0, 8, 16, 24]))
    server, kept = states(three, "fedproto", 1, average=average)
    torch.testing.assert_close(server.proto, prototypes(three, 0, kept[0].x), rtol=1e-12, atol=0)


def prototypes(here: Federation, client: int, w: Tensor) -> Tensor:
    """The mean feature of each class of a client, by hand."""
    rows, parts = here.rows(client), here.layout.views(w)
    z = torch.tanh(here.x[rows] @ parts["0.weight"].T + parts["0.bias"])
    return torch.stack([z[here.y[rows] == j].mean(0) for j in range(3)])


@pytest.mark.parametrize("average", ["clients", "samples"])
def test_prototypes_are_means_over_their_owners(average: str) -> None:
    here = small(5)
    here.y[:19] = torch.tensor([0] * 4 + [1] * 3 + [0] * 2 + [1] * 10)  # clients 0 and 1 share two classes
    here.y[19:53] = 1
    here.y[19] = 2  # client 2 alone owns the third
    server, kept = states(here, "fedproto", 1, average=average)
    own = [prototypes(here, i, kept[i].x) for i in range(5)]
    torch.testing.assert_close(server.proto[2], own[2][2], rtol=1e-12, atol=0)
    n = torch.tensor([4.0, 2.0]).double() if average == "samples" else torch.ones(2).double()
    torch.testing.assert_close(server.proto[0], (n[0] * own[0][0] + n[1] * own[1][0]) / n.sum(), rtol=1e-12, atol=0)


def test_a_class_that_nobody_holds_keeps_its_prototype() -> None:
    here = small(5)
    here.y[:53] = torch.from_numpy(np.repeat([0, 1, 1, 2, 1], here.population.samples))
    _, seen = recorded(here, "fedproto", 8, participate=2)
    kept = 0
    for (before, replies), (after, _) in pairwise(seen):
        for j in range(3):
            if before.down.proto[j].isfinite().all() and sum(reply.up.n[j] for reply in replies) == 0:
                assert torch.equal(after.down.proto[j], before.down.proto[j])
                kept += 1
    assert kept


def test_fedproto_may_decide_by_the_nearest_prototype() -> None:
    here, method = small(5), create("fedproto", inference="prototypes")
    here.y[:53] = torch.from_numpy(np.tile([0, 1, 1], 18)[:53])  # nobody has the third class
    server, kept = states(here, "fedproto", 2, inference="prototypes")
    x, chosen = here.x[53:], set()
    for state in kept.values():
        parts = here.layout.views(method.personal(method.broadcast(server, None), state, here.layout))
        z = torch.tanh(x @ parts["0.weight"].T + parts["0.bias"])
        own = here.layout.views(state.x)
        assert torch.equal(parts["0.weight"], own["0.weight"])
        distances = torch.stack([(z - server.proto[j]).norm(dim=1) for j in (0, 1)], dim=1)
        decided = (z @ parts["2.weight"].T + parts["2.bias"]).argmax(1)
        assert torch.equal(decided, distances.argmin(1))
        chosen |= set(decided.tolist())
    assert chosen == {0, 1}


def test_before_the_first_round_of_fedproto_the_classifier_decides() -> None:
    here, method = small(5), create("fedproto", inference="prototypes")
    start, _ = here.start()
    server = method.server_init(start, here.population)
    down = method.broadcast(server, None)  # type: ignore[arg-type]
    assert torch.equal(method.personal(down, method.client_init(start, here.layout), here.layout), start)


def test_a_classifier_without_a_bias_cannot_be_replaced_by_prototypes() -> None:
    here = small(5)
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    with pytest.raises(InvalidInput, match="prototypes needs a model whose last layer is linear, with a bias"):
        play(replace(here, module=module), "fedproto", 1, inference="prototypes")


def test_the_traffic_of_fedproto_does_not_depend_on_the_model() -> None:
    found = set()
    for inputs in (4, 40):
        here = small(5)
        module = nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        x = here.x.repeat(1, inputs // 4)
        (result,) = play(replace(here, module=module, x=x), "fedproto", 1)
        found.add((result.spent.bytes_up, result.spent.bytes_down))
    assert len(found) == 1


# --- reference lines --------------------------------------------------------------------------------------------------


def test_local_training_is_every_client_on_its_own() -> None:
    here = small(sizes=(7, 12, 5), **MOMENTUM)
    _, kept = states(here, "local", 4)
    for client in range(3):
        alone, _ = here.start()
        for t in range(1, 5):
            local = here.trainer().local(client, t, here.rows(client))
            with torch.no_grad():
                alone = local.descend(local.grad, alone)
        assert torch.equal(kept[client].x, alone)


def test_local_training_exchanges_no_numbers() -> None:
    played, seen = recorded(small(), "local", 2)
    assert create("local").models(played[-1].snapshot.server) == {}
    assert all(list(task.down.items()) == [] for task, _ in seen)
    assert all(list(reply.up.items()) == [] for _, replies in seen for reply in replies)


def test_centralised_training_takes_as_many_steps_as_the_largest_client() -> None:
    here = small(**MOMENTUM)
    played = play(here, "central", 2)
    assert [len(r.cohort.ids) for r in played] == [1, 1]
    assert played[0].cohort.steps.item() == here.training.steps_for(20)
    assert played[0].spent.gradients == 10 * 4
    assert here.pooled().population.samples.tolist() == [sum(here.population.samples)]
