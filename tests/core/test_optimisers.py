"""Local optimisers beside plain SGD: equal to ``torch.optim``, in every runtime, fresh or kept."""

from __future__ import annotations

import inspect
import re
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift
from undrift.algorithms import algorithms
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.core.loop import Loop
from undrift.core.optimisers import adapted, begun
from undrift.core.states import Kept
from undrift.core.training import Training
from undrift.runtimes.batched import Batched
from undrift.runtimes.serial import Serial

SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"optimiser": "adam", "lr": 0.01},
    "adam with decay": {"optimiser": "adam", "lr": 0.01, "weight_decay": 0.1, "beta_mean": 0.8, "beta_square": 0.95},
    "adamw": {"optimiser": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "rmsprop": {"optimiser": "rmsprop", "lr": 0.01},
    "rmsprop with momentum": {"optimiser": "rmsprop", "lr": 0.01, "momentum": 0.9, "weight_decay": 0.1},
    "adagrad": {"optimiser": "adagrad", "lr": 0.1, "weight_decay": 0.1},
    "adagrad with eps": {"optimiser": "adagrad", "lr": 0.1, "optimiser_eps": 0.01},
    "momentum": {"optimiser": "sgd", "lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}
WORST = {torch.float64: 1e-12, torch.float32: 1e-5}


def theirs(training: Training, w: Tensor) -> torch.optim.Optimizer:
    """What PyTorch calls the same."""
    t, decay = training, training.weight_decay
    betas, eps = (t.beta_mean, t.beta_square or 0.999), t.optimiser_eps
    floor: dict[str, Any] = {} if eps is None else {"eps": eps}
    if t.optimiser == "adam":
        return torch.optim.Adam([w], t.lr, betas, weight_decay=decay, **floor)
    if t.optimiser == "adamw":
        return torch.optim.AdamW([w], t.lr, betas, weight_decay=decay, **floor)
    if t.optimiser == "rmsprop":
        return torch.optim.RMSprop([w], t.lr, t.beta_square or 0.99, weight_decay=decay, momentum=t.momentum, **floor)
    if t.optimiser == "adagrad":
        return torch.optim.Adagrad([w], t.lr, weight_decay=decay, **floor)
    return torch.optim.SGD([w], t.lr, t.momentum, weight_decay=decay, nesterov=t.nesterov)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_rule_is_that_of_torch(name: str, dtype: torch.dtype) -> None:
    training = Training(**SETTINGS[name])
    start = torch.linspace(-1, 1, 11, dtype=dtype)
    slopes = torch.sin(torch.arange(40 * 11, dtype=dtype)).view(40, 11)
    w = start.clone().requires_grad_()
    optimiser = theirs(training, w)
    x, moments = start.clone(), begun(training, start)
    for g in slopes:
        w.grad = g.clone()
        optimiser.step()
        own = g + training.weight_decay * x if training.adds_decay else g
        v, moments = adapted(training, own, x, moments)
        x = x - training.lr * v
    torch.testing.assert_close(x, w.detach(), rtol=WORST[dtype], atol=WORST[dtype])
    assert (x - start).abs().max() > 0.01


def problem(training: Training, dtype: torch.dtype = torch.float64) -> Federation:
    """Three clients with 7, 12 and 5 samples: the last batches are short, and the numbers of steps differ."""
    x = torch.sin(torch.arange(24 * 5, dtype=dtype)).view(24, 5)
    y = torch.arange(24) % 3
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    with torch.no_grad():
        for number, p in enumerate(module.parameters()):
            p.copy_(torch.cos(torch.arange(p.numel(), dtype=dtype) + number).view_as(p) / 2)
    return Federation(
        module=module,
        loss=nn.CrossEntropyLoss(reduction="none"),
        training=training,
        x=x,
        y=y,
        indices=np.arange(24),
        offsets=np.array([0, 7, 19, 24]),
        seed=4,
    )


def by_hand(federation: Federation, client: int, start: Tensor, rounds: int) -> Tensor:
    """One client that trains by itself with the optimiser of PyTorch, over the batches that it is given."""
    training = federation.training
    module = federation.module
    nn.utils.vector_to_parameters(start, module.parameters())
    whole = [p.detach().clone() for p in module.parameters()]
    params = [p.requires_grad_() for p in whole]
    flat = torch.cat([p.detach().reshape(-1) for p in params]).requires_grad_()
    optimiser = theirs(training, flat)
    trainer = federation.trainer()
    for t in range(1, rounds + 1):
        if training.optimiser_state == "reset":
            optimiser = theirs(training, flat)
        optimiser.param_groups[0]["lr"] = training.lr_at(t)
        local = trainer.local(client, t, federation.rows(client))
        for k in range(int(local.steps)):
            b = local.batch(t, k)
            sizes = [p.numel() for p in params]
            views = [part.view(p.shape) for part, p in zip(flat.split(sizes), params, strict=True)]
            names = [name for name, _ in module.named_parameters()]
            outputs = torch.func.functional_call(module, dict(zip(names, views, strict=True)), (b.x,))
            optimiser.zero_grad()
            nn.functional.cross_entropy(outputs, b.y).backward()
            optimiser.step()
    return flat.detach()


@pytest.mark.parametrize("state", ["reset", "kept"])
@pytest.mark.parametrize("runtime", [Serial, Batched])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_client_trains_as_with_torch(name: str, runtime: Any, state: str) -> None:
    training = Training(**SETTINGS[name], optimiser_state=state, batch_size=4, epochs=2, warmup=2)
    federation = problem(training)
    start = federation.start()[0]
    method = algorithms()["local"].create()
    with runtime(federation) as place, warnings.catch_warnings():
        warnings.simplefilter("error")
        loop = Loop(federation, method, place, 3)
        snapshot = loop.start()
        for _ in range(3):
            snapshot = loop.play(snapshot).snapshot
        found = [place.kept(method, client).state.x for client in range(3)]
    for client in range(3):
        torch.testing.assert_close(found[client], by_hand(problem(training), client, start, 3), rtol=1e-9, atol=1e-9)


OPTIONS: dict[str, Any] = {"model": "mlp", "clients": 6, "participate": 4, "rounds": 3, "seed": 2}


@pytest.mark.parametrize("state", ["reset", "kept"])
@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn", "fedrep", "moon"])
def test_the_same_everywhere(algorithm: str, state: str) -> None:
    training = Training(optimiser="adam", optimiser_state=state, lr=0.01, batch_size=32, epochs=1)
    found = {
        runtime: undrift.run(algorithm, training=training, runtime=runtime, **OPTIONS)
        for runtime in ("serial", "threads", "processes", "batched")
    }
    values = {name: [value for _, _, value in run.history.metrics] for name, run in found.items()}
    assert values["serial"] == values["threads"] == values["processes"]
    assert values["batched"] == pytest.approx(values["serial"], abs=0.02)


def test_kept_is_not_reset() -> None:
    runs = [
        undrift.run(training=Training(optimiser="adagrad", optimiser_state=state, lr=0.05, epochs=1), **OPTIONS)
        for state in ("reset", "kept")
    ]
    assert runs[0].history.metrics != runs[1].history.metrics


def test_what_is_kept_survives_a_file() -> None:
    federation = problem(Training(optimiser="adam", optimiser_state="kept", lr=0.01))
    method: Any = algorithms()["feddyn"].create()
    fresh = federation.fresh(method)
    again = Kept.decode(method.records()["client"], fresh.encode())
    assert type(again.state) is type(fresh.state)
    assert [f.name for f in again.state.schema()] == [
        "lam",
        "last",
        "optimiser_steps",
        "optimiser_mean",
        "optimiser_square",
    ]


def test_a_run_goes_on_with_what_was_kept(tmp_path: Any) -> None:
    training = Training(optimiser="adam", optimiser_state="kept", lr=0.01, epochs=1)
    whole = undrift.run(training=training, **OPTIONS)
    some: dict[str, Any] = {**OPTIONS, "training": training, "ledger": tmp_path / "runs.db", "name": "one"}
    undrift.run(**some | {"rounds": 2})
    assert sorted(undrift.run(**some).history.metrics, key=str) == sorted(whole.history.metrics, key=str)


def test_warmup() -> None:
    training = Training(lr=0.4, warmup=4)
    assert [training.lr_at(t) for t in range(1, 7)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    assert Training(lr=0.4).lr_at(1) == 0.4
    falling = replace(training, schedule="exponential", lr_decay=0.5)
    assert falling.lr_at(2) == pytest.approx(0.4 * 0.5 * 2 / 4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimiser": "adamm"}, r"one of sgd, adam.*did you mean 'adam'"),
        ({"optimiser": "adam", "momentum": 0.9}, "adam has no momentum"),
        ({"optimiser": "rmsprop", "momentum": 0.9, "nesterov": True}, "belongs to sgd"),
        ({"optimiser": "adamw", "decay_mode": "inner"}, "adamw decays beside its gradient"),
    ],
)
def test_what_does_not_go_together(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Training(**settings)


def fit(name: str, **settings: Any) -> None:
    federation = problem(Training(**{"lr": 0.01, **settings}))
    algorithms()[name].create().fit(federation.training, federation.layout, 4)


OWN = {"fednag", "fastslowmo", "pfedmo", "domo", "domos", "fedadm", "fedsmoo", "fedtr"}
ASSUMING = {
    "fednova", "scaffold", "fedpvr", "feddc", "fedtrip", "fedcm", "fedadc", "slowmo", "fedmrur", "mofedsam", "mime",
    "mimelite",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(algorithms()))
def test_methods_that_assume_sgd_say_so(name: str) -> None:
    if name in OWN:
        with pytest.raises(InvalidInput, match="set optimiser = sgd"):
            fit(name, optimiser="adam")
    elif name in ASSUMING:
        with pytest.warns(UserWarning, match="assumes sgd steps"):
            fit(name, optimiser="adam")
    else:
        fit(name, optimiser="adam")


def test_every_divisor_of_a_displacement_is_known() -> None:
    """A method whose code divides by the learning rate, or asks how far sgd travels, must say that it assumes sgd."""
    for name, cls in algorithms().items():
        text = inspect.getsource(inspect.getmodule(cls))  # type: ignore[arg-type]
        if re.search(r"/ \(?(local|cohort)\.lr|travel\(|\.travel\b", text):
            known = {other.name() for other in vars(inspect.getmodule(cls)).values() if isinstance(other, type(cls))
                     and hasattr(other, "assumes_sgd") and (other.assumes_sgd or other.refuses_optimisers)}  # fmt: skip
            assert known, name


def test_a_rate_for_sgd_is_too_large() -> None:
    with pytest.warns(UserWarning, match=r"lr = 0.1: a step of adam moves every parameter by about lr"):
        fit("fedavg", optimiser="adam", lr=0.1)


def test_a_method_of_ones_own_that_steps_by_itself() -> None:
    federation = problem(Training(optimiser="adam", lr=0.01))
    local = federation.trainer().local(0, 1, federation.rows(0))
    x = federation.start()[0]
    with pytest.raises(InvalidInput, match="steps of its own, which know sgd alone"):
        local.move(x, x, torch.zeros_like(x))
