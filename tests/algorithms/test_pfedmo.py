"""pFedMo: what eqs. 11 and 12 do to the workers, the scores, the representation model."""

from __future__ import annotations

import itertools
import re
import warnings
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
from undrift.runtimes.batched import Batched
from undrift.runtimes.serial import Serial
from worked import play, quad1, quadratics, slopes, small

pytestmark = pytest.mark.filterwarnings("ignore:pFedMo. variant = literal")
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
    server, method = states("literal")[-1], PFedMo(gamma=GAMMA, pi=0.8, variant="literal")
    du = server.u_r - server.u
    for s in server.s:
        np.testing.assert_allclose(method.mix(server, s)[0], server.x - LR * GAMMA * 0.8 * s * du, rtol=0, atol=1e-15)
    q = torch.from_numpy(np.array([7, 12, 5, 20, 9]) / 53)
    gap = method.models(server)["global"] - server.x
    assert float(gap.norm()) == pytest.approx(float(LR * GAMMA * 0.8 * (q @ server.s) * du.norm()), rel=1e-12)


def test_as_printed_the_pull_repels() -> None:
    """No gradients, everybody at 0 and the representation model at 1: the workers walk to -0.4."""
    here, method = slopes([(0.0,)], steps=60, lr=0.1), PFedMo(gamma=0.5, pi=1.0, variant="literal")
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
        method = PFedMo(gamma=0.0, pi=pi, variant="literal")
        np.testing.assert_allclose(method.models(server)["global"], other, rtol=0, atol=1e-14)


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


# -- the printed form diverges ----------------------------------------------------------------------------------------


def gaps(curvature: float, rounds: int, **training: Any) -> list[float]:
    """|x_r - x̄| after every round as printed, with scores of 0.5: quadratics of one curvature with two optima."""
    settings = Training(**{"lr": 0.05, "batch_size": 0, "steps": 12} | training)
    a, c = [[curvature, curvature]] * 2, [[1.0, 0.0], [0.0, 2.0]]
    here = quadratics(a, c, [1, 3], [2.0, 1.0], settings, public=([curvature, curvature], [-1.0, 1.0]))
    played = play(here, "pfedmo", rounds, gamma=0.5, pi=1.0, variant="literal")
    return [float((r.snapshot.server.x_r - r.snapshot.server.x).norm()) for r in played]


@pytest.mark.parametrize(("pi", "s", "gamma", "steps"), [(1.0, 0.9, 0.5, 40), (0.6, 0.5, 0.9, 3), (1.0, 0.4, 0.3, 1)])
def test_on_a_flat_loss_the_printed_form_grows_by_the_predicted_factor(
    monkeypatch: pytest.MonkeyPatch, pi: float, s: float, gamma: float, steps: int
) -> None:
    monkeypatch.setattr(PFedMo, "scores", given(s, s))
    factor = PFedMo(gamma=gamma, pi=pi, variant="literal").growth(steps, s)
    assert factor > 1
    here = slopes([(1.0, 2.0), (0.5, -1.0)], lr=0.1, steps=steps)  # the server's own slope is 0: it stays
    played = play(here, "pfedmo", int(20 / np.log(factor)), gamma=gamma, pi=pi, variant="literal")
    gap = [(r.snapshot.server.x_r - r.snapshot.server.x).norm() for r in played]
    assert float(gap[-1] / gap[-2]) == pytest.approx(factor, rel=1e-6)


def test_it_diverges_below_the_curvature_that_the_warning_names_and_not_above(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PFedMo, "scores", given(0.5, 0.5))
    with pytest.warns(UserWarning, match="variant = literal .* diverges: .* grows 1.5-fold a round") as seen:
        PFedMo(variant="literal").check(Training(lr=0.05, steps=12), small().layout, 12)
    limit = float(re.findall(r"below ([\d.]+)", str(seen[0].message))[0])
    assert limit == pytest.approx(0.5 * np.log(1.5) / (0.05 * 12), rel=0.05)
    below, above = gaps(0.8 * limit, 120), gaps(1.2 * limit, 240)
    assert below[-1] > 10 * below[-30] > 100 * below[-60]
    assert above[-1] == pytest.approx(above[-30], rel=1e-3)


@pytest.mark.parametrize(
    "settings", [{}, {"variant": "velocity"}, {"variant": "literal", "pi": 0}, {"variant": "literal", "gamma": 0}]
)
def test_forms_that_do_not_diverge_are_not_warned_of(
    settings: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    PFedMo(**settings).check(Training(lr=0.01, steps=40), small().layout, 40)
    assert not recwarn.list


def test_the_default_stays_near_the_representation_model_where_the_printed_form_leaves_it() -> None:
    here = small(lr=LR)
    usual, printed = (
        [float((r.snapshot.server.x_r - r.snapshot.server.x).norm()) for r in play(here, "pfedmo", 60, **settings)]
        for settings in ({}, {"variant": "literal"})
    )
    assert usual[-1] < max(usual) < 3
    assert max(printed) > 5 * max(usual)


# -- scores -----------------------------------------------------------------------------------------------------------


def test_scores_compare_a_worker_with_its_own_worst_round(monkeypatch: pytest.MonkeyPatch) -> None:
    losses = iter([2.0, 1.0, 3.0, 1.5])
    monkeypatch.setattr(Local, "disagreement", lambda *_, **__: [vector(next(losses))[0]])
    played = play(slopes([(0.0,)]), "pfedmo", 4, variant="literal")
    assert [r.snapshot.server.worst.item() for r in played] == [2, 2, 3, 3]
    assert [r.snapshot.server.s.item() for r in played] == [0, 0.5, 0, 0.5]


def test_a_loss_of_zero_gives_no_score() -> None:
    """One output: no entropy."""
    assert [r.snapshot.server.s.tolist() for r in play(quad1(), "pfedmo", 2, variant="literal")] == [[0, 0]] * 2


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
    assert list(PFedMo(variant="literal").models(server)) == ["global", "representation"]


@pytest.mark.parametrize("runtime", [Serial, Batched])
def test_drift_is_that_of_what_each_worker_did_from_its_own_start(runtime: Any) -> None:
    here, method = small(lr=LR), PFedMo(gamma=GAMMA)
    rounds = play(here, "pfedmo", 3, gamma=GAMMA, runtime=runtime)
    before = rounds[1].snapshot.server
    trainer, updates = here.trainer(), []
    for client in range(5):
        x, u = method.mix(before, before.s[client])
        updates.append((trainer.local(client, 3, here.rows(client)).nesterov(x, u, GAMMA)[0] - x).numpy())
    mean = np.mean(updates, axis=0)
    spread = np.sqrt(np.mean([np.sum((update - mean) ** 2) for update in updates]))
    assert rounds[2].drift["distance"] == pytest.approx(spread, rel=1e-9)
    assert set(rounds[2].drift) == {"cosine", "distance", "amp"}


@pytest.mark.parametrize(("count", "settings", "few"), [
    (29, {}, True), (30, {}, False), (29, {"variant": "interp"}, True), (29, {"pi": 0}, False),
    (29, {"variant": "literal"}, False),
])  # fmt: skip
def test_few_public_samples_are_warned_of(count: int, settings: dict[str, Any], few: bool) -> None:
    here = small()  # three classes
    population = replace(here.population, public=count)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        PFedMo(**settings).check_start(here.start()[0], population)
    said = [str(w.message) for w in seen if "public samples for 3 classes" in str(w.message)]
    assert len(said) == few


@pytest.mark.filterwarnings("default:pFedMo. the server has")
def test_a_run_says_that_the_server_has_few_samples() -> None:
    assert small().population.public == 10
    with pytest.warns(UserWarning, match="the server has 10 public samples for 3 classes"):
        play(small(), "pfedmo", 0)


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
