"""Runtimes by name, and the rule that picks one."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import nn

from conformance.problem import federation
from undrift.core.errors import InvalidInput
from undrift.runtimes import auto, create
from undrift.runtimes.auto import choose, decide

ONE_CORE = dict.fromkeys(("threads", "processes"), "there is one core")


@pytest.mark.parametrize(
    ("figures", "name", "because"),
    [
        ({"serial": 3e-4, "batched": 3e-5}, "batched", "batched 0.03 ms"),
        ({"serial": 2e-4, "batched": 1.5e-4, "clients": 10}, "serial", "processes would save"),
        ({"serial": 8e-3, "batched": 9e-3, "clients": 100}, "threads", "processes would save 1.4 s"),
        ({"serial": 8e-3, "batched": 9e-3}, "processes", "threads 4.15 ms, processes 4.03 ms"),
        ({"serial": 8e-3, "batched": None}, "processes", "serial 8 ms"),
        ({"serial": 8e-3, "batched": None, "cores": 64}, "processes", "threads 9.57 ms"),  # they wait for each other
        ({"serial": 8e-3, "batched": None, "obstacles": ONE_CORE}, "serial", "there is one core"),
        ({"serial": 8e-3, "batched": None, "obstacles": {"threads": "dropout"}}, "processes", "dropout"),
        ({"serial": 8e-3, "batched": None, "obstacles": {"processes": "a lambda"}}, "threads", "a lambda"),
        ({"serial": 8e-3, "batched": 3e-3}, "processes", "batched 3 ms"),  # faster, but not enough to give up the bits
    ],
)
def test_the_rule(figures: dict[str, Any], name: str, because: str) -> None:
    choice = decide(**{"steps": 12.0, "clients": 1000, "cores": 2, "obstacles": {}} | figures)
    assert choice.name == name
    assert because in choice.why


def test_batched_is_considered_only_for_small_steps_of_many_clients() -> None:
    few = federation()
    assert few.population.size < 100
    assert "batched" not in choose(few).why
    offsets = np.arange(201) * 2
    crowd = replace(few, indices=np.arange(400) % len(few.x), offsets=offsets)
    assert "batched" in choose(crowd).why
    wide = nn.Sequential(nn.Linear(12, 4000), nn.ReLU(), nn.Linear(4000, 3))
    assert "batched" not in choose(replace(crowd, module=wide)).why


def test_a_model_that_vmap_does_not_know_is_not_batched() -> None:
    module = nn.Sequential(nn.Linear(12, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    choice = choose(replace(federation(), module=module))
    assert choice.name != "batched"
    assert "batched" not in choice.why


def test_more_workers_than_cores_are_not_expected_to_be_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    seen: list[int] = []
    monkeypatch.setattr(auto, "decide", lambda *given: seen.append(given[4]))
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
    with create(name, federation(), 1) as runtime:
        assert runtime.name == name
        assert runtime.why == ""


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
