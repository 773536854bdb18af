"""FedADM: the control of the number of steps, the proximal weights, the budget, and what it is without them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from recording import recorded, states
from undrift.algorithms import create
from undrift.algorithms.parts.budget import Estimates
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.loop import Round
from undrift.core.reduce import Reduction, Reply
from undrift.core.runtime import Task
from undrift.runtimes.serial import Serial
from worked import batches as drawn
from worked import play, quadratics, small, toy, trajectory

ENDLESS: dict[str, Any] = {"budget": (1e9,)}
C, B, ETA = 0.013015156, 0.131604348, 0.01


def latest(played: list[Round]) -> list[list[float]]:
    return [r.snapshot.server.x.tolist() for r in played]


def G(
    R: Any, tau: int = 100, delta: float = 0.5, mu: float = 0.0, form: str = "corrected", xi: float = 1.0,
    rise: float = 0.0, c: Any = C, b: Any = B,
) -> Any:  # fmt: skip
    """The control function of the specification's example, for every tau up to a limit."""
    found = Estimates(ETA, delta, rho=1.0, beta=1.0, mu=double([mu] * 5), xi=xi, rise=rise)
    method: Any = create("fedadm", form=form)
    return method.bounds(found, tau, *(double(v).reshape(-1) for v in (c, b, R)))


ALIKE = [[2.0], [2.00001], [1.99999]]  # so nearly that τ is limited by nothing else; but not the same


def double(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gap(tau: list[float], eta: float, mu: list[float], delta: float, beta: float) -> torch.Tensor:
    return Estimates(eta, delta, 1.0, beta, double(mu)).gap(double(tau))


def best(*args: Any, **settings: Any) -> int:
    return int(G(*args, **settings).argmin()) + 1


# --- the control function ---------------------------------------------------------------------------------------------


def test_worked_values_of_the_control_function() -> None:
    found = [G(15)[tau - 1].item() for tau in (1, 2, 5, 10, 20)]
    assert found == pytest.approx([38.565201, 21.022761, 10.528488, 7.112483, 5.596915], abs=5e-7)


@pytest.mark.parametrize(
    ("settings", "taus"),
    [
        ({"delta": 0.5}, (36, 13, 2)),
        ({"delta": 2.0}, (21, 8, 2)),
        ({"delta": 0.05}, (84, 31, 6)),
        ({"delta": 0.0}, (100, 100, 100)),
        ({"delta": 0.5, "mu": 0.5}, (29, 11, 2)),
    ],
)
def test_worked_numbers_of_steps(settings: dict[str, float], taus: tuple[int, ...]) -> None:
    assert tuple(best(R, **settings) for R in (15, 60, 600)) == taus


def test_the_printed_form_chooses_other_numbers() -> None:
    assert (best(15, form="printed"), best(600, form="printed")) == (24, 9)


def test_an_endless_budget_takes_single_steps() -> None:
    assert best(1e9) == 1


def test_the_binding_resource_counts() -> None:
    two = G([15.0, 40.0], c=[C, 1.0], b=[B, 0.1])
    each = [G(15.0), G(40.0, c=1.0, b=0.1)]
    torch.testing.assert_close(two, torch.maximum(*each))  # G falls with T, so the smaller T gives the larger G
    assert not torch.equal(two, each[0])


def test_rising_proximal_weights_raise_the_bound() -> None:
    xi, rise = 0.3, 0.8
    found, falling, same = (G(15, tau=1, mu=1, xi=xi, rise=v).item() for v in (rise, -1.0, 0.0))  # one step: h = 0
    e, T = ETA * 0.025, 15 / (C + B)
    expected = 1 / (2 * e * T) + np.sqrt(1 / (4 * e**2 * T**2) + xi**2 / 2 * rise / (e * T))
    assert found == pytest.approx(expected, rel=1e-12)
    assert falling == same == pytest.approx(1 / (e * T), rel=1e-12)


def test_identities_of_the_gap() -> None:
    eta, delta, beta = 0.03, 1.7, 0.9
    s = beta + 0.4
    h = gap([0, 1, 2], eta, [0.1, 0.7, 0.4], delta, beta)
    assert h[:2].tolist() == pytest.approx([0, 0], abs=1e-16)
    assert h[2].item() == pytest.approx(delta * eta**2 * s, rel=1e-12)
    (h3,) = gap([3], eta, [0.4] * 3, delta, beta)
    assert h3.item() == pytest.approx(delta * s * (3 * eta**2 + eta**3 * s), rel=1e-12)
    (h3,) = gap([3], eta, [0.1, 0.7, 0.4], delta, beta)  # for any weights of the same mean
    assert h3.item() == pytest.approx(delta * s * (3 * eta**2 + eta**3 * s), rel=1e-12)
    for mu in (0.0, 0.4):  # equal weights: the gap of Wang et al., with beta + mu for beta
        h = gap([5, 40], eta, [mu] * 3, delta, beta)
        wang = [delta / (beta + mu) * ((eta * (beta + mu) + 1) ** x - 1) - eta * delta * x for x in (5, 40)]
        assert h.tolist() == pytest.approx(wang, rel=1e-11)


def test_overflow_is_infinite() -> None:
    assert torch.isinf(gap([10, 1e6], 0.5, [0], 1.0, 10.0)[1])


# --- a run ------------------------------------------------------------------------------------------------------------


def test_with_fixed_steps_and_no_proximal_weight_it_is_fedavg_bit_for_bit() -> None:
    mine = latest(play(toy(), "fedadm", 6, tau=2, alpha=0, mu=0, **ENDLESS))
    assert mine == trajectory(toy(), "fedavg", 6)


def test_with_fixed_steps_and_a_constant_weight_it_is_fedprox_bit_for_bit() -> None:
    mine = latest(play(toy(), "fedadm", 6, tau=2, alpha=0, mu=0.7, anchor="latest", **ENDLESS))
    assert mine == trajectory(toy(), "fedprox", 6, mu=0.7)


def test_the_returned_model_is_the_best_one_sent_so_far() -> None:
    here = small(batch_size=0)
    played, seen = recorded(here, "fedadm", 8, tau=3, alpha=0, **ENDLESS)
    losses = []
    for task, replies in seen:
        n = np.array([reply.samples for reply in replies])
        losses.append((float(np.average([r.up.f.item() for r in replies], weights=n)), task.down.x))
    for k, result in enumerate(played):
        assert torch.equal(result.snapshot.server.best, min(losses[: k + 1], key=lambda pair: pair[0])[1])


def test_estimates_on_quadratics() -> None:
    a, b = 2.5, [[0.0, 1.0], [3.0, -1.0], [1.0, 2.0]]
    here = quadratics([[a, a]] * 3, b, [1, 2, 3], [0.0, 0.0], toy().training)
    played, seen = recorded(here, "fedadm", 3, tau=2, alpha=0, **ENDLESS)
    centre = np.average(b, axis=0, weights=[1, 2, 3])
    for t, (result, (_, replies)) in enumerate(zip(played, seen, strict=True), 1):
        assert [bool(reply.up.known) for reply in replies] == [t > 1] * 3
        if t > 1:
            np.testing.assert_allclose([reply.up.beta.item() for reply in replies], a, rtol=1e-12)
        far = [a * np.linalg.norm(np.array(row) - centre) for row in b]
        assert result.notes["delta"] == pytest.approx(np.average(far, weights=[1, 2, 3]), rel=1e-12)


def test_the_estimates_are_taken_on_the_batch_that_ended_the_last_round() -> None:
    here = small(batch_size=4)
    _, seen = recorded(here, "fedadm", 4, participate=3, tau=3, alpha=0, **ENDLESS)
    last: dict[int, Any] = {}
    again = 0
    for t, (task, replies) in enumerate(seen, 1):
        for reply in replies:
            batches = drawn(here, reply.client, t, 3)
            first = last.get(reply.client, batches[0])
            w = task.down.x.clone().requires_grad_()
            loss = here.loss(
                torch.func.functional_call(here.module, here.layout.views(w), here.x[first]), here.y[first]
            )
            assert reply.up.f.item() == pytest.approx(loss.item(), rel=1e-12)
            torch.testing.assert_close(reply.up.g, torch.autograd.grad(loss, w)[0], rtol=1e-10, atol=1e-14)
            again += reply.client in last
            last[reply.client] = batches[-1]
    assert again


def test_a_single_step_a_round_stays_on_one_batch() -> None:
    here = small(batch_size=4)
    _, seen = recorded(here, "fedadm", 4, tau=1, alpha=0, **ENDLESS)
    for _, replies in seen:
        assert all((reply.state.t, reply.state.k) == (1, 0) for reply in replies)


def test_with_dropout_the_best_model_is_judged_under_the_same_mask() -> None:
    here = small(5)
    module = torch.nn.Sequential(*list(here.module)[:2], torch.nn.Dropout(0.5), here.module[2])
    _, seen = recorded(replace(here, module=module), "fedadm", 1, tau=2, **ENDLESS)
    assert all(torch.equal(reply.up.f, reply.up.f_best) for reply in seen[0][1])  # the best is the one received


def test_proximal_weights_fall_to_zero_and_no_further() -> None:
    here = quadratics([[0], [0]], [[0], [0]], [1, 1], [1.0], toy().training)  # nothing moves: the distance is 0
    played = play(here, "fedadm", 5, tau=2, alpha=1, xi=0.2, mu=0.5, **ENDLESS)
    assert [r.notes["mu"] for r in played] == pytest.approx([0.5, 0.3, 0.1, 0, 0], abs=1e-15)


@pytest.mark.parametrize("anchor", ["best", "latest"])
def test_proximal_weights_follow_the_distance_to_the_anchor(anchor: str) -> None:
    settings: dict[str, Any] = {"tau": 2, "alpha": 0.5, "xi": 0.1, "mu": 0.2, "anchor": anchor} | ENDLESS
    _, seen = recorded(toy(), "fedadm", 4, **settings)
    for (_, before), (task, after) in pairwise(seen):
        a = task.down.best if anchor == "best" else task.down.x
        for old, new in zip(before, after, strict=True):
            expected = max(0.0, old.state.mu.item() + 0.5 * (abs((old.state.y - a).item()) - 0.1))
            assert new.state.mu.item() == pytest.approx(expected, abs=1e-15)


def test_steps_grow_by_ten_at_most_and_not_beyond_the_limit() -> None:
    here = quadratics([[1]] * 3, ALIKE, [1] * 3, [0.0], toy(lr=1e-3).training)  # hardly a divergence: all there are
    played = play(here, "fedadm", 6, tau_max=60, budget=(1e4,))
    assert [r.notes["tau"] for r in played] == [1, 1, 10, 60, 60, 60]


def test_the_diagnostics_of_loss_dissimilarity() -> None:
    played, seen = recorded(small(), "fedadm", 4, participate=3, tau=2, **ENDLESS)
    for result, (_, replies) in zip(played, seen, strict=True):
        B, F = result.notes["B"], np.array([reply.up.f.item() for reply in replies])
        assert result.notes["B"] > 1
        assert result.notes["Hs"] > 0
        assert pytest.approx(np.mean(F**2), rel=1e-12) == B**2 * np.mean(F) ** 2  # the printed H is 0 for this B
        assert result.notes["Hs"] == pytest.approx(np.sqrt(np.mean((F - F.mean()) ** 2)), rel=1e-12)
    alike = quadratics([[1]] * 3, [[2]] * 3, [1] * 3, [0.0], toy().training)
    for result in play(alike, "fedadm", 4, tau=2, **ENDLESS):
        assert result.notes["B"] == pytest.approx(1, abs=1e-15)
        assert result.notes["Hs"] == 0


def test_equal_losses_do_not_mean_equal_gradients() -> None:
    here = quadratics([[1]] * 2, [[1], [-1]], [1, 1], [0.0], toy().training)
    for result in play(here, "fedadm", 3, tau=2, alpha=0, **ENDLESS):  # by symmetry the model stays at 0
        assert (result.notes["B"], result.notes["Hs"]) == pytest.approx((1, 0), abs=1e-14)
        assert result.notes["delta"] == pytest.approx(1, abs=1e-14)


def test_a_cohort_of_one_keeps_its_number_of_steps() -> None:
    with pytest.warns(UserWarning, match="cohort of one has no gradient divergence"):
        played = play(small(sizes=(9,)), "fedadm", 3)
    assert [r.notes["tau"] for r in played] == [1, 1, 1]


# --- the budget -------------------------------------------------------------------------------------------------------

EXACT: dict[str, Any] = {"step_cost": (0.1,), "step_sd": (0.0,), "round_cost": (0.5,), "round_sd": (0.0,)}


def until_finished(settings: dict[str, Any]) -> list[Round]:
    method = create("fedadm", **settings)
    played = play(small(), "fedadm", 60, **settings)
    (end,) = [i for i, r in enumerate(played) if method.finished(r.snapshot.server)][:1]
    return played[: end + 1]


def test_the_run_ends_within_its_budget_after_a_round_that_only_evaluates() -> None:
    played = until_finished({"tau": 4, "budget": (10.0,)} | EXACT)
    used = [r.snapshot.server.used.item() for r in played]
    assert [r.notes["tau"] for r in played] == [4] * (len(played) - 2) + [played[-2].notes["tau"], 1]
    assert used[-1] == pytest.approx(sum(0.1 * r.notes["tau"] + 0.5 for r in played), abs=1e-12)
    assert 10 - 0.9 < used[-1] <= 10 + 0.1 + 0.5  # the last round takes a step even if only evaluating is left
    assert torch.equal(played[-1].snapshot.server.x, played[-2].snapshot.server.x)


def test_the_first_resource_that_runs_out_ends_the_run() -> None:
    two = {name: (*values, values[0] * 3) for name, values in EXACT.items()}
    played = until_finished({"tau": 4, "budget": (10.0, 12.0)} | two)
    used = played[-1].snapshot.server.used
    assert used[0] < 10 - 0.9
    assert 12 - 2.7 < used[1] <= 12 + 1.8


def test_simulated_resources_come_from_the_seed_alone() -> None:
    first, again = (play(small(), "fedadm", 5) for _ in range(2))
    used = [r.snapshot.server.used.item() for r in first]
    assert used == [r.snapshot.server.used.item() for r in again]
    assert len({round(b - a, 9) for a, b in pairwise(used)}) == 4  # and differ from round to round


def test_measured_resources_are_the_seconds_of_the_rounds() -> None:
    """With the server's own work: more than the clients were waited for, and no more than the rounds took."""
    played = play(small(), "fedadm", 3, tau=2, resources="measured")
    used = [0.0, *(r.snapshot.server.used.item() for r in played)]
    for result, charged in zip(played, (b - a for a, b in pairwise(used)), strict=True):
        assert result.cohort.elapsed < charged < result.seconds


def test_without_finite_models_the_server_stays() -> None:
    method: Any = create("fedadm", tau=3)
    _, seen = recorded(small(), "fedadm", 1, tau=3)
    server, _ = states(small(), "fedadm", 1, tau=3)
    (result,) = play(small(), "fedadm", 1, tau=3)
    reduction = Reduction(method.records()["up"])
    for reply, weight in zip(seen[0][1], result.cohort.portions, strict=True):
        reduction.add(reply.up, weight)
    up = reduction.result()
    bad = type(up)(**{f.name: v for f, v in up.items()} | {"x": up.x * float("nan")})
    after = method.server_update(server, bad, result.cohort)
    assert torch.equal(after.x, server.x)
    assert after.tau == 1


class Diverging(Serial):
    """In one round nobody's model is finite."""

    def __init__(self, federation: Federation, bad: int) -> None:
        super().__init__(federation)
        self.bad = bad

    def replies(self, task: Task) -> Iterator[Reply]:
        for reply in super().replies(task):
            fields = {field.name: value for field, value in reply.up.items()}
            if task.cohort.round == self.bad:
                fields["x"] = fields["x"] * float("nan")
            yield replace(reply, up=type(reply.up)(**fields))


@pytest.mark.parametrize(("tau", "bad", "taken"), [(4, 2, [4, 4, 1, 4]), (None, 4, [1, 1, 10, 60, 1, 10])])
def test_a_round_that_diverged_is_charged_and_followed_by_a_single_step(
    tau: int | None, bad: int, taken: list[int]
) -> None:
    here = quadratics([[1]] * 3, ALIKE, [1] * 3, [0.0], toy(lr=1e-3).training)
    settings: dict[str, Any] = {"tau": tau, "tau_max": 60, "budget": (1e4,)} | EXACT
    played = play(here, "fedadm", len(taken), runtime=lambda here: Diverging(here, bad), **settings)
    assert [r.skipped for r in played] == [t == bad for t in range(1, len(taken) + 1)]
    assert [r.notes["tau"] for r in played] == taken
    used = [r.snapshot.server.used.item() for r in played]
    assert used == pytest.approx(np.cumsum([0.1 * steps + 0.5 for steps in taken]), abs=1e-12)
    assert torch.equal(played[bad - 1].snapshot.server.x, played[bad - 2].snapshot.server.x)


def test_a_run_that_only_diverges_ends_with_its_budget() -> None:
    here = quadratics([[1e3]] * 2, [[0], [1]], [1, 1], [0.5], toy(lr=1.0).training)  # 500 steps overflow
    settings: dict[str, Any] = {"tau": 500, "alpha": 0, "budget": (300.0,)} | EXACT
    method, played = create("fedadm", **settings), play(here, "fedadm", 12, **settings)
    assert played[0].skipped
    assert method.finished(played[-1].snapshot.server)


def test_after_a_lost_round_the_end_is_judged_by_the_single_step_that_follows() -> None:
    """The lost round leaves 3.5: too little for another 30 steps, enough for one, and then for more."""
    here = quadratics([[1]] * 3, [[2]] * 3, [1] * 3, [0.0], toy(lr=1e-3).training)
    settings: dict[str, Any] = {"tau": 30, "budget": (7.0,)} | EXACT
    played = play(here, "fedadm", 4, runtime=lambda here: Diverging(here, 1), **settings)
    assert [r.notes["tau"] for r in played] == [30, 1, 17, 1]  # 3.5 + 0.6 + 2.2 + 0.6 of 7
    assert create("fedadm", **settings).finished(played[-1].snapshot.server)


def test_a_last_model_that_is_the_received_one_says_nothing() -> None:
    here = quadratics([[0]] * 2, [[0]] * 2, [1, 1], [1.0], toy().training)  # nothing moves
    played, seen = recorded(here, "fedadm", 4, budget=(1e4,))
    assert not any(reply.up.known for _, replies in seen for reply in replies)
    assert [r.notes["tau"] for r in played] == [1, 1, 1, 1]


@pytest.mark.parametrize("mode", ["inner", "outer"])
def test_both_slopes_are_of_the_same_loss(mode: str) -> None:
    """F = a x²/2: with an inner decay λ both are those of (a + λ) x²/2, with an outer one those of F."""
    a, decay = 2.5, 0.3
    training = replace(toy().training, weight_decay=decay, decay_mode=mode)
    here = quadratics([[a]] * 2, [[0]] * 2, [1, 1], [1.0], training)
    _, seen = recorded(here, "fedadm", 2, tau=2, alpha=0, **ENDLESS)
    (before, _), (after, replies) = seen
    curve = a + decay * (mode == "inner")
    w = after.down.x.item()
    for reply, last in zip(replies, seen[0][1], strict=True):
        y = last.state.y.item()
        assert reply.up.beta.item() == pytest.approx(curve, rel=1e-9) if y != w else not reply.up.known
        if y != w:
            assert reply.up.rho.item() == pytest.approx(curve * abs(y + w) / 2, rel=1e-9)
    assert before.down.x.item() == 1.0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"budget": ()}, "budget = \\(\\).*one or more positive numbers"),
        ({"budget": (1.0, 2.0)}, "step_cost = .*it must be 2 positive numbers"),
        ({"round_cost": (-1.0,)}, "round_cost = .*positive"),
        ({"step_cost": (0.0,)}, "step_cost = .*positive"),
        ({"budget": (float("nan"),)}, "budget = .*positive"),
        ({"step_sd": (float("inf"),)}, "step_sd = .*positive"),
        ({"mu": -1}, "mu = -1"),
        ({"tau": 0}, "tau = 0"),
        ({"phi": 0}, "phi = 0"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        create("fedadm", **settings)
