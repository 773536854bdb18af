"""MOON, FedNTD, FedGKD: losses on what a model says of a sample, compared with what other models say."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from recording import recorded
from undrift.algorithms import create
from undrift.core.errors import InvalidInput
from worked import play, small, toy, trajectory

MOMENTUM: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.01, "lr": 0.05}


def rows(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize(("name", "knob"), [("moon", "mu"), ("fedntd", "beta"), ("fedgkd", "gamma")])
def test_without_weight_it_is_fedavg_bit_for_bit(name: str, knob: str) -> None:
    mine = trajectory(small(5, **MOMENTUM), name, 4, participate=3, **{knob: 0})
    assert mine == trajectory(small(5, **MOMENTUM), "fedavg", 4, participate=3)


@pytest.mark.parametrize("name", ["moon", "fedgkd"])
def test_the_first_round_is_fedavg_bit_for_bit(name: str) -> None:
    assert trajectory(small(5, **MOMENTUM), name, 1) == trajectory(small(5, **MOMENTUM), "fedavg", 1)


def test_moon_is_absent_from_the_first_participation_alone() -> None:
    runs = [recorded(small(5), name, 2, participate=3)[1] for name in ("moon", "fedavg")]
    first = {reply.client for reply in runs[0][0][1]}
    equal = {a.client: torch.equal(a.up.x, b.up.x) for a, b in zip(runs[0][1][1], runs[1][1][1], strict=True)}
    assert equal == {client: client not in first for client in equal}
    assert set(equal.values()) == {True, False}


ONE = torch.ones(())

# --- MOON -------------------------------------------------------------------------------------------------------------


def test_moon_worked_number() -> None:
    moon: Any = create("moon", temperature=0.5)
    assert moon.contrastive(rows(1, 0), rows(1, 0), [rows(0, 1)], ONE).item() == pytest.approx(
        0.1269280110429726, abs=1e-15
    )


def test_moon_with_equal_models_has_loss_log_2_and_no_gradient() -> None:
    moon: Any = create("moon")
    z = rows(0.3, -2, 1).requires_grad_()
    value = moon.contrastive(z, rows(1, 1, 0), [rows(1, 1, 0)], ONE)
    value.sum().backward()
    assert value.item() == pytest.approx(np.log(2), abs=1e-15)
    np.testing.assert_allclose(z.grad, 0, rtol=0, atol=1e-16)


def test_moon_is_bounded_and_does_not_see_lengths() -> None:
    T = 0.7
    moon: Any = create("moon", temperature=T)
    z, a, b = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 200, 4)))
    values = moon.contrastive(z, a, [b], ONE)
    assert np.log1p(np.exp(-2 / T)) <= values.min()
    assert values.max() <= np.log1p(np.exp(2 / T))
    torch.testing.assert_close(moon.contrastive(3 * z, 0.5 * a, [7 * b], ONE), values, rtol=1e-12, atol=0)
    assert moon.contrastive(rows(1.0, 0), rows(-1, 0), [rows(1, 0)], ONE).item() == pytest.approx(
        np.log1p(np.exp(2 / T))
    )


def test_moon_adds_every_old_model_that_there_is_to_the_denominator() -> None:
    moon: Any = create("moon", temperature=0.5, history=3)
    z, a, old = rows(1, 0.2), rows(1, 1), [rows(0, 1), rows(-1, 1), rows(1, -1)]
    s = [float(torch.nn.functional.cosine_similarity(z, other)) / 0.5 for other in (a, *old)]
    for seen in range(4):
        z.grad = None
        z.requires_grad_()
        value = moon.contrastive(z, a, old, torch.tensor(float(seen)))
        assert value.item() == pytest.approx(-np.log(np.exp(s[0]) / np.exp(s[: 1 + seen]).sum()), abs=1e-12)
        value.sum().backward()
        assert z.grad is not None
        assert bool(z.grad.isfinite().all())
        assert bool(z.grad.any()) == (seen > 0)


def test_moon_keeps_the_last_models_newest_first() -> None:
    _, seen = recorded(small(5), "moon", 4, history=2)
    for (_, before), (_, after) in pairwise(seen):
        for old, new in zip(before, after, strict=True):
            assert torch.equal(new.state.h[0], new.up.x)
            assert torch.equal(new.state.h[1], old.up.x)
    assert [replies[0].state.seen.item() for _, replies in seen] == [1, 2, 2, 2]


@pytest.mark.parametrize("name", ["moon", "fedproto", "fedtr", "fedrep"])
def test_a_model_without_features_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="needs features, and the model has no linear layer"):
        play(toy(), name, 1)


@pytest.mark.parametrize("name", ["moon", "fedproto", "fedtr", "fedrep"])
def test_a_model_that_is_all_head_is_warned_of(name: str) -> None:
    job = small(5)
    alone = replace(job, module=nn.Sequential(nn.Flatten(), nn.Linear(job.x[0].numel(), 3, dtype=job.x.dtype)))
    with pytest.warns(UserWarning, match="its features are its inputs"):
        play(alone, name, 1)


# --- FedNTD -----------------------------------------------------------------------------------------------------------


def test_fedntd_worked_number() -> None:
    ntd: Any = create("fedntd", temperature=1)
    z = rows(2, 1, 0).requires_grad_()
    value = ntd.not_true(z, rows(1, 1, 1), torch.tensor([0]))
    value.sum().backward()
    assert value.item() == pytest.approx(0.12011450695827758, abs=1e-15)
    np.testing.assert_allclose(z.grad, [[0, 0.2310585786300049, -0.2310585786300049]], rtol=0, atol=1e-15)


@pytest.mark.parametrize("y", [0, 1, 2])
def test_fedntd_does_not_see_the_true_logit(y: int) -> None:
    ntd: Any = create("fedntd", temperature=2)
    z, teacher, label = rows(0.3, -1, 2), rows(1, 0.5, -0.2), torch.tensor([y])
    moved = z.clone()
    moved[0, y] += 5
    assert ntd.not_true(moved, teacher, label).item() == ntd.not_true(z, teacher, label).item()


def test_fedntd_with_two_classes_is_fedavg_bit_for_bit() -> None:
    here = small(**MOMENTUM)
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).double()
    here = replace(here, module=module, y=here.y % 2)
    assert trajectory(here, "fedntd", 3, participate=3) == trajectory(here, "fedavg", 3, participate=3)


@pytest.mark.parametrize(("name", "settings"), [("fedntd", {"beta": 3}), ("fedgkd", {"gamma": 3})])
def test_the_first_step_of_a_round_has_no_distillation(name: str, settings: dict[str, Any]) -> None:
    mine, other = (np.array(trajectory(small(5, steps=1), n, 3, **s)) for n, s in ((name, settings), ("fedavg", {})))
    np.testing.assert_allclose(mine, other, rtol=0, atol=1e-14)


# --- FedGKD -----------------------------------------------------------------------------------------------------------


def test_fedgkd_has_the_gradient_of_a_softened_softmax() -> None:
    gkd: Any = create("fedgkd", temperature=2)
    z, teacher = rows(0.3, -1, 2).requires_grad_(), rows(1, 0.5, -0.2)
    gkd.distillation(z, teacher).sum().backward()
    expected = 2 * (torch.softmax(z.detach() / 2, 1) - torch.softmax(teacher / 2, 1))
    torch.testing.assert_close(z.grad, expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(gkd.distillation(z + 3, teacher), gkd.distillation(z, teacher))
    torch.testing.assert_close(gkd.distillation(z, teacher - 4), gkd.distillation(z, teacher))


def test_fedgkd_mse_is_the_mean_over_the_classes() -> None:
    gkd: Any = create("fedgkd", distance="mse")
    assert gkd.distillation(rows(1, 2, 4), rows(0, 2, 2)).item() == pytest.approx(5 / 3)


def test_the_teacher_of_fedgkd_is_the_mean_of_the_last_models() -> None:
    played, seen = recorded(small(5), "fedgkd", 4, history=2)
    models = [small(5).start()[0], *[r.snapshot.server.x for r in played]]
    for t, (task, _) in enumerate(seen):
        expected = (models[t] + models[t - 1]) / 2 if t else models[0]
        assert torch.equal(task.down.x, models[t])
        assert torch.equal(task.down.teacher, expected)
    assert len(played[-1].snapshot.server.past) == 2


def test_fedgkd_with_one_model_sends_no_teacher() -> None:
    _, seen = recorded(small(5), "fedgkd", 2)
    assert [task.down.teacher.numel() for task, _ in seen] == [0, 0]
