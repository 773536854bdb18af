"""pFedMo: what eqs. 11 and 12 do to the workers, the scores, the representation model."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn, tensor

from undrift.algorithms.pfedmo import Down, PFedMo, Server
from undrift.core.cohort import Cohort
from undrift.core.errors import InvalidInput
from undrift.core.local import Local
from undrift.core.loop import Loop, Snapshot
from undrift.core.training import Training
from undrift.runtimes.serial import Serial
from worked import play, quad1, quadratics, slopes, small

VARIANTS = ["literal", "interp", "velocity"]
LR, GAMMA = 0.2, 0.6


def vector(*values: float) -> Tensor:
    return tensor(values, dtype=torch.float64)


def given(*s: float) -> Any:
    """Scores given by hand."""
    return lambda self, server, x, x_r, cohort: (server.worst, vector(*s))


def states(variant: str, rounds: int = 4, participate: int = 5, **settings: Any) -> list[Server]:
    settings = {"gamma": GAMMA, "pi": 0.8, "variant": variant} | settings
    return [r.snapshot.server for r in play(small(lr=LR), "pfedmo", rounds, participate=participate, **settings)]


# -- what goes back to the workers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_equations_11_and_12_in_the_papers_own_form(variant: str) -> None:
    server, method = states(variant)[-1], PFedMo(gamma=GAMMA, pi=0.8, variant=variant)
    assert bool((server.s > 0).any())
    y, y_r = (x + LR * GAMMA * u for x, u in ((server.x, server.u), (server.x_r, server.u_r)))
    for client in range(5):
        share = 0.8 * server.s[client]
        y_i = (1 - share) * y + share * y_r  # (11)
        x_i = (1 - share) * server.x + share * server.x_r  # (12) without its last term
        if variant == "velocity":  # (11), (12) with m = -ηu for y
            u_i = (1 - share) * server.u + share * server.u_r
            x_i, y_i = x_i + LR * (u_i - server.u), x_i + LR * (u_i - server.u) + LR * GAMMA * u_i
        elif variant == "literal":
            x_i = x_i + y - y_i
        x, u = method.mix(server, server.s[client])
        np.testing.assert_allclose(x, x_i, rtol=0, atol=1e-13)
        np.testing.assert_allclose(x + LR * GAMMA * u, y_i, rtol=0, atol=1e-13)
        if variant == "interp":  # without the last term it does not matter whether points or velocities are mixed
            np.testing.assert_allclose(u, (1 - share) * server.u + share * server.u_r, rtol=0, atol=1e-13)
        assert torch.equal(method.personal(Down(x, u), None, None), x)  # type: ignore[arg-type]


def test_as_printed_the_representation_model_cancels() -> None:
    server, method = states("literal")[-1], PFedMo(gamma=GAMMA, pi=0.8)
    du = server.u_r - server.u
    for s in server.s:
        np.testing.assert_allclose(method.mix(server, s)[0], server.x - LR * GAMMA * 0.8 * s * du, rtol=0, atol=1e-15)
    q = torch.from_numpy(np.array([7, 12, 5, 20, 9]) / 53)
    gap = method.models(server)["global"] - server.x
    assert float(gap.norm()) == pytest.approx(float(LR * GAMMA * 0.8 * (q @ server.s) * du.norm()), rel=1e-12)


def test_as_printed_the_pull_repels() -> None:
    """No gradients, everybody at 0 and the representation model at 1: the workers walk to -0.4."""
    here, method = slopes([(0.0,)], steps=60, lr=0.1), PFedMo(gamma=0.5, pi=1.0)
    none = vector(0.0)
    server = Server(none, none, none + 1, none, none + 1, vector(0.4), none[0] + 0.4, 0.1)
    assert method.mix(server, server.s[0])[0].tolist() == [0]
    loop = Loop(here, method, Serial(here), 1)
    _, buffers = here.start()
    after = loop.play(Snapshot(1, server, buffers)).snapshot.server
    np.testing.assert_allclose(after.x, [-0.4], rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("pi", [0.3, 1.0])
def test_equal_objectives_give_centralised_nesterov_descent(
    monkeypatch: pytest.MonkeyPatch, variant: str, pi: float
) -> None:
    monkeypatch.setattr(PFedMo, "scores", given(0.2, 0.9))
    a, c = [1.0, 2.0], [1.0, 0.0]
    alike = quadratics([a, a], [c, c], [1, 3], [2.0, 1.0], Training(lr=0.1, batch_size=0, steps=2), public=(a, c))
    method = PFedMo(gamma=0.5, pi=pi, variant=variant)
    x = y = np.array([2.0, 1.0])
    for r in play(alike, "pfedmo", 4, gamma=0.5, pi=pi, variant=variant):
        for _ in range(2):
            new = x - 0.1 * np.array(a) * (x - c)
            x, y = new + 0.5 * (new - y), new
        server = r.snapshot.server
        for model in (server.x_r, *(method.mix(server, s)[0] for s in server.s)):
            np.testing.assert_allclose(model, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_scores_of_zero_it_is_fednag(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    monkeypatch.setattr(PFedMo, "scores", given(0, 0, 0, 0, 0))
    theirs = [r.snapshot.server for r in play(small(lr=LR), "fednag", 4, participate=3, gamma=GAMMA)]
    for mine, other in zip(states(variant, participate=3), theirs, strict=True):
        assert torch.equal(mine.x, other.x)
        assert torch.equal(mine.u, other.u)


@pytest.mark.parametrize("pi", [0.3, 1.0])
def test_as_printed_without_momentum_it_is_fedavg_for_any_scores(monkeypatch: pytest.MonkeyPatch, pi: float) -> None:
    monkeypatch.setattr(PFedMo, "scores", given(0.9, 0.1, 0.5, 0.7, 0.3))
    servers = states("literal", participate=3, gamma=0.0, pi=pi)
    averaged = [r.snapshot.server.x for r in play(small(lr=LR), "fedavg", 4, participate=3)]
    for server, other in zip(servers, averaged, strict=True):
        np.testing.assert_allclose(PFedMo(gamma=0.0, pi=pi).models(server)["global"], other, rtol=0, atol=1e-14)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_first_round_is_fednags(variant: str) -> None:
    mine = states(variant, rounds=1)[0]
    other = play(small(lr=LR), "fednag", 1, gamma=GAMMA)[0].snapshot.server
    assert mine.s.tolist() == [0] * 5
    assert torch.equal(PFedMo(variant=variant).models(mine)["global"], other.x)
    assert torch.equal(mine.u, other.u)


class Pair(Loop):
    """A loop in which the clients 0 and 1 alone take part."""

    def _cohort(self, t: int, ids: Any = None) -> Cohort:
        return super()._cohort(t, np.array([0, 1]) if ids is None else ids)


def test_clients_receive_different_models_and_a_new_one_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PFedMo, "scores", given(0.3, 0.6, 0, 0, 0))
    here, method = small(lr=LR), PFedMo(gamma=GAMMA, pi=1.0, variant="interp")
    loop = Pair(here, method, Serial(here), 2)
    snapshot = loop.start()
    for _ in range(3):
        snapshot = loop.play(snapshot).snapshot
    server = snapshot.server
    down = method.broadcast(server, loop._cohort(4, np.arange(5)))
    for new in (2, 3, 4):
        assert torch.equal(down.row(new).x, server.x)
        assert torch.equal(down.row(new).u, server.u)
    for client, share in ((0, 0.3), (1, 0.6)):
        expected = (1 - share) * server.x + share * server.x_r
        np.testing.assert_allclose(down.row(client).x, expected, rtol=0, atol=1e-14)


# -- scores -----------------------------------------------------------------------------------------------------------


def test_scores_compare_a_worker_with_its_own_worst_round(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([2.0, 1.0, 3.0, 1.5])
    monkeypatch.setattr(Local, "disagreement", lambda *_, **__: [vector(next(losses))[0]])
    played = play(slopes([(0.0,)]), "pfedmo", 4)
    assert [r.snapshot.server.worst.item() for r in played] == [2, 2, 3, 3]
    assert [r.snapshot.server.s.item() for r in played] == [0, 0.5, 0, 0.5]


def test_a_loss_of_zero_gives_no_score() -> None:
    assert [r.snapshot.server.s.tolist() for r in play(quad1(), "pfedmo", 2)] == [[0, 0]] * 2  # one output: no entropy


@pytest.mark.parametrize(
    ("teacher", "worker", "loss"),
    [
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), np.log(3)),
        ((0.0, 0.0, -1e3), (0.7, -0.7, -1e3), np.log(2 * np.cosh(0.7))),
    ],
)
def test_score_loss(teacher: Any, worker: Any, loss: float) -> None:
    here = small()
    scoring = here.public_local(here.trainer(), -2, 1)
    assert scoring is not None
    x_i = torch.cat([torch.zeros(12).double(), vector(*worker)])  # outputs are the biases
    x_r = torch.cat([torch.zeros(12).double(), vector(*teacher)])
    assert float(scoring.disagreement([x_i], x_r)[0]) == pytest.approx(loss, abs=1e-14)


def test_the_least_score_loss_is_the_entropy_of_the_representation_model() -> None:
    here = small()
    scoring = here.public_local(here.trainer(), -2, 1)
    assert scoring is not None
    x_r, _ = here.start()
    outputs = here.x[here.rows(-2)] @ x_r[:12].view(3, 4).T + x_r[12:]
    entropy = float(torch.distributions.Categorical(logits=outputs).entropy().mean())
    other = x_r + 0.1 * torch.randn(15, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    own, others = scoring.disagreement([x_r, other], x_r)
    assert float(own) == pytest.approx(entropy, rel=1e-13)
    assert float(others) > entropy


# -- the representation model -----------------------------------------------------------------------------------------


def test_the_representation_model_runs_on_alone_for_as_many_steps_as_the_busiest_worker() -> None:
    here = small(lr=LR)
    x, u = here.start()[0], torch.zeros(15).double()
    for t, server in enumerate(states("literal", participate=5), start=1):
        public = here.public_local(here.trainer(), -1, t)
        assert public is not None
        x, u = public.nesterov(x, u, GAMMA, 10)  # 20 samples in batches of 4, two epochs
        assert torch.equal(server.x_r, x)
        assert torch.equal(server.u_r, u)


def test_a_reset_representation_model_starts_from_the_global_one() -> None:
    here, method = small(lr=LR), PFedMo(gamma=GAMMA, pi=0.8, variant="interp", repr_reset=True)
    servers = states("interp", repr_reset=True)
    for t, (before, after) in enumerate(itertools.pairwise(servers), start=2):
        public = here.public_local(here.trainer(), -1, t)
        assert public is not None
        x, _ = public.nesterov(*method.mix(before, before.pull), GAMMA, 10)
        assert torch.equal(after.x_r, x)


def test_both_models_are_evaluated() -> None:
    server = states("literal")[-1]
    assert list(PFedMo().models(server)) == ["global", "representation"]


# -- bad input --------------------------------------------------------------------------------------------------------


def test_public_data_are_needed() -> None:
    with pytest.raises(InvalidInput, match="pFedMo needs public data on the server"):
        play(replace(quad1(), public=None), "pfedmo", 1)


def test_batch_norm_is_refused() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    with pytest.raises(InvalidInput, match="batch-norm"):
        play(replace(small(), module=module), "pfedmo", 1)


@pytest.mark.parametrize("settings", [{"pi": 1.1}, {"pi": -0.1}, {"gamma": 1.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=rf"{next(iter(settings))} = .* must be a number"):
        PFedMo(**settings)


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(InvalidInput, match="one of literal, interp, velocity"):
        PFedMo(variant="printed")
