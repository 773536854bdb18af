"""Ten thousand hostile messages at either end: each is answered or refused, and none of them stays in memory."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from loopback import federation
from together import SOON, coordinated, direct, names, rounds, site_of, sites_of
from torch import nn

from conformance import problem
from undrift.algorithms import create
from undrift.core.federation import Federation
from undrift.core.runtime import Task
from undrift.deploy import protocol
from undrift.deploy.coordinator import Abandoned, Remote, Rules
from undrift.deploy.pipe import Direct, Failure

MESSAGES, WARM = 10_000, 2_000  # of all messages, those after which memory is looked at for the first time
MOST = 10 << 20  # bytes that may be more at the end: less than a fifth of what has passed since


@pytest.fixture(scope="module")
def whole() -> Federation:
    plain = problem.federation()
    inputs, classes = plain.x[0].numel(), plain.layout.classes
    module = nn.Sequential(nn.Flatten(), nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, classes))
    return replace(plain, module=module)


def changed(dice: random.Random, message: bytes, number: int) -> bytes:
    """Some bytes are others, half of the time in the header; some messages are cut."""
    said = bytearray(message)
    for _ in range(dice.randint(1, 6)):
        said[dice.randrange(min(len(said), 900) if number % 2 else len(said))] ^= dice.randint(1, 255)
    return bytes(said[: dice.randrange(len(said))] if dice.random() < 0.2 else said)


class Memory:
    """What this process has more than after the warm-up."""

    def __init__(self) -> None:
        self.process, self.warm, self.passed = psutil.Process(), 0, 0

    def look(self, number: int, length: int) -> None:
        self.passed += length if number >= WARM else 0
        if number == WARM:
            self.warm = self.process.memory_info().rss

    def check(self) -> None:
        assert self.passed > 5 * MOST  # so that keeping them would be seen
        assert self.process.memory_info().rss - self.warm < MOST


@pytest.mark.slow
def test_a_site_keeps_nothing_of_ten_thousand_hostile_messages(
    tmp_path: Path, whole: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "undrift")  # pytest would keep a line for each of them
    monkeypatch.setattr("os.fsync", lambda file: None)  # of thousands of replies, which are not what is tried here
    sites = sites_of(tmp_path, whole)
    seen: list[bytes] = []

    def listening(message: bytes) -> bytes:
        seen.append(message)
        return sites[names(whole)[0]].answer(message)

    pipe = Direct({**direct(sites).sites, names(whole)[0]: listening})
    assert len(list(rounds(coordinated(whole, create("fedavg"), pipe), 2))) == 2
    task = next(message for message in reversed(seen) if protocol.look(message).kind == "update")
    site, dice, memory = sites[names(whole)[0]], random.Random(29), Memory()
    for number in range(MESSAGES):
        said = changed(dice, task, number)
        assert protocol.look(site.answer(said)).kind in ("failed", "reply")
        memory.look(number, len(said))
    memory.check()


class Nonsense:
    """A pipe whose sites answer with a reply of the round that was changed at random."""

    def __init__(self, replies: Mapping[str, bytes]) -> None:
        self.replies, self.dice, self.memory, self.number = replies, random.Random(31), Memory(), 0

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        for site in messages:
            said = changed(self.dice, self.replies[site], self.number)
            yield site, said
            self.memory.look(self.number, len(said))
            self.number += 1


@pytest.mark.slow
def test_a_coordinator_keeps_nothing_of_ten_thousand_hostile_replies(
    tmp_path: Path, whole: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "undrift")
    replies: dict[str, bytes] = {}
    tasks: list[Task] = []
    sites = sites_of(tmp_path, whole)

    def remembered(name: str) -> Any:
        def answer(message: bytes) -> bytes:
            said = sites[name].answer(message)
            if protocol.look(message).kind == "update":
                replies[name] = said
            return said

        return answer

    before = Remote.exchange
    monkeypatch.setattr(Remote, "exchange", lambda self, task: (tasks.append(task), before(self, task))[1])
    loop = coordinated(whole, create("fedavg"), Direct({name: remembered(name) for name in sites}))
    next(rounds(loop, 1))
    remote: Any = loop.runtime
    task = next(task for task in tasks if task.kind == "update")
    remote.pipe = pipe = Nonsense(replies)
    remote.rules = Rules(deadline=SOON, quorum=1, attempts=1)
    refused = 0
    while pipe.number < MESSAGES:
        for standing in remote.standing.values():
            standing.joined = True
        remote.timings.clear()  # as every round does
        try:
            refused += sum(not hasattr(reply, "up") for reply in remote.replies(task))
        except Abandoned:
            refused += 1
    assert refused > MESSAGES // 10
    pipe.memory.check()


def test_fedadm_measures_its_budget_over_the_network_and_ends_by_itself(tmp_path: Path) -> None:
    """What a round used is between the longest work at a site and the whole round; the run ends within its budget."""
    whole, budget = problem.federation(), 2.0
    method = create("fedadm", resources="measured", budget=(budget,), tau=2)
    sites = {name: site_of(tmp_path, whole, number) for number, name in enumerate(names(whole))}
    with federation(tmp_path / "sockets", {name: site.answer for name, site in sites.items()}) as calls:
        loop = coordinated(whole, method, calls)
        snapshot, before, played = loop.start(), 0.0, 0
        while not method.finished(snapshot.server):
            done = loop.play(snapshot)
            snapshot, played = done.snapshot, played + 1
            used = float(snapshot.server.used[0])
            longest = max(done.notes["seconds worked, slowest site"], 0.0)
            assert longest * 0.5 < used - before <= done.seconds  # the network and the server are in it, nothing else
            before = used
    assert played >= 3
    assert before >= budget / 2
