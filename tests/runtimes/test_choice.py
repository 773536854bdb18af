"""Runtimes by name, and the rule that picks one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

from conformance.problem import federation
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation
from undrift.runtimes import auto, create
from undrift.runtimes.auto import choose, decide

ONE_CORE = dict.fromkeys(("threads", "processes"), "there is one core")


@pytest.mark.parametrize(
    ("figures", "name", "because"),
    [
        ({"serial": 2e-4, "clients": 10}, "serial", "processes would save"),
        ({"serial": 8e-3, "clients": 100}, "threads", "processes would save 1.4 s"),
        ({"serial": 8e-3}, "processes", "threads 4.15 ms, processes 4.03 ms"),
        ({"serial": 8e-3}, "processes", "serial 8 ms"),
        ({"serial": 8e-3, "cores": 64}, "processes", "threads 9.57 ms"),  # they wait for each other
        ({"serial": 8e-3, "obstacles": ONE_CORE}, "serial", "there is one core"),
        ({"serial": 8e-3, "obstacles": {"threads": "dropout"}}, "processes", "dropout"),
        ({"serial": 8e-3, "obstacles": {"processes": "a lambda"}}, "threads", "a lambda"),
    ],
)
def test_the_rule(figures: dict[str, Any], name: str, because: str) -> None:
    choice = decide(**{"steps": 12.0, "clients": 1000, "cores": 2, "obstacles": {}} | figures)
    assert choice.name == name
    assert because in choice.why


def many(few: Federation) -> Federation:
    return replace(few, indices=np.arange(400) % len(few.x), offsets=np.arange(201) * 2)


@pytest.mark.parametrize("seconds", [1e-12, 1e-4, 1e4])
@pytest.mark.parametrize("workers", [None, 1, 2])
def test_only_size_decides_the_bits(monkeypatch: pytest.MonkeyPatch, seconds: float, workers: int | None) -> None:
    monkeypatch.setattr(auto, "_eager", lambda federation: seconds)
    few = federation()
    assert few.population.size < 100
    assert choose(few, workers).name != "batched"
    choice = choose(many(few), workers)
    assert choice.name == "batched"
    assert "a client's step takes 480 MACs (at most 150,000), and 200 are many clients (100 are)" in choice.why
    wide = nn.Sequential(nn.Linear(12, 4000), nn.ReLU(), nn.Linear(4000, 3))
    assert choose(replace(many(few), module=wide), workers).name != "batched"


def test_a_model_that_vmap_does_not_know_is_not_batched() -> None:
    module = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    choice = choose(replace(many(federation()), module=module))
    assert choice.name != "batched"
    assert "batched" not in choice.why


class Stubborn(nn.Module):
    """It looks at values, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.detach().sum()) < 1e30 else self.layer(-x)  # type: ignore[no-any-return]


def test_a_model_that_looks_at_values_is_not_batched() -> None:
    assert choose(replace(many(federation()), module=Stubborn())).name != "batched"


def test_more_workers_than_cores_are_not_expected_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    seen: list[int] = []
    monkeypatch.setattr(auto, "decide", lambda *given: seen.append(given[3]))
    for workers in (None, 1, 2, 64):
        choose(federation(), workers)
    assert seen == [2, 1, 2, 2]


def test_what_cannot_be_pickled_does_not_go_to_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    choice = choose(replace(federation(), loss=lambda outputs, y: nn.functional.cross_entropy(outputs, y)), workers=2)
    assert choice.name != "processes"
    assert "cannot be sent" in choice.why


@pytest.mark.parametrize("name", ["serial", "threads", "processes", "batched"])
def test_a_runtime_by_name(name: str) -> None:
    with create(name, federation(), 1 if name in ("threads", "processes") else None) as runtime:
        assert runtime.name == name
        assert runtime.why == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("serial", "workers = 3 has no effect: the serial runtime works in this process alone"),
        ("batched", "workers = 3 has no effect: the batched runtime uses every core by itself"),
    ],
)
def test_workers_that_nobody_needs_are_not_ignored_in_silence(name: str, words: str) -> None:
    with pytest.warns(UserWarning, match=words), create(name, federation(), 3):
        pass


SCRIPT = """
import sys
{imports}
import numpy as np
import torch
from torch import Tensor, nn
from undrift.algorithms import create
from undrift.core.federation import Federation
from undrift.core.training import Training
from undrift.runtimes import auto, create as runtime

{own}

def federation():
    x, y = torch.randn(200, 4), torch.randint(0, 2, (200,))
    return Federation(
        module={model}, loss={loss}, x=x, y=y,
        indices=np.arange(200), offsets=np.arange(0, 201, 20), training=Training(),
    )

def chosen():
    auto._eager = lambda federation: 1.0  # seconds: processes would be worth it
    auto.cores = lambda: 64
    return auto.choose(federation(), method={method})

{guard}
"""
OWN_MODEL = "class Net(nn.Linear):\n    pass"
OWN_LOSS = "def off(outputs, y):\n    return nn.functional.cross_entropy(outputs, y)"
OWN_METHOD = "from undrift.algorithms.fedavg import FedAvg\nclass Mine(FedAvg):\n    pass"
PLAIN = {"imports": "", "own": "", "model": "nn.Linear(4, 2)", "loss": "nn.functional.cross_entropy", "method": "None"}
TELL = "choice = chosen(); print(choice.name, '|', choice.why)"
GUARD = f'if __name__ == "__main__":\n    {TELL}'
HERE = "is defined in a notebook or a main script, which processes cannot import"


@pytest.mark.parametrize(
    ("parts", "name", "because"),
    [
        ({"guard": GUARD}, "processes", "ms"),
        ({"guard": GUARD, "own": OWN_MODEL, "model": "Net(4, 2)"}, "threads", f"Net {HERE}"),
        ({"guard": GUARD, "own": OWN_LOSS, "loss": "off"}, "threads", f"off {HERE}"),
        ({"guard": GUARD, "own": OWN_METHOD, "method": "Mine()"}, "threads", f"Mine {HERE}"),
        ({"guard": TELL}, "threads", "processes would run the script again: it has no `if __name__"),
    ],
    ids=["importable", "model", "loss", "method", "no guard"],
)
def test_what_a_worker_could_not_import_runs_in_threads(
    parts: dict[str, str], name: str, because: str, tmp_path: Path
) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT.format(**PLAIN | parts), encoding="utf-8")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    picked, _, why = done.stdout.partition(" | ")
    assert picked == name
    assert because in why


def test_the_same_holds_where_there_is_no_script() -> None:
    code = SCRIPT.format(**PLAIN | {"own": OWN_MODEL, "model": "Net(4, 2)", "guard": TELL})
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.startswith("threads | "), done.stderr
    assert f"Net {HERE}" in done.stdout


def test_auto_says_what_it_chose_and_why() -> None:
    with create("auto", federation()) as runtime:
        assert runtime.name in ("serial", "threads", "processes", "batched")
        assert "client's step" in runtime.why


def test_an_unknown_runtime_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidInput, match="did you mean 'processes'"):
        create("process", federation())


@pytest.mark.parametrize("name", ["auto", "serial", "threads", "processes", "batched"])
def test_no_workers_are_refused_by_every_runtime(name: str) -> None:
    with pytest.raises(InvalidInput, match="workers = 0: at least 1"):
        create(name, federation(), 0)
