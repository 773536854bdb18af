"""Processes that are killed, hang, or have no room on their disk: every round keeps the bits of the simulation."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from party import COUNT, NAMES, Process

from undrift.deploy.journal import verify
from undrift.experiment.description import read_toml
from undrift.experiment.execute import execute
from undrift.experiment.federate import Witnessed, fingerprint, rehearsal
from undrift.experiment.prepare import prepare_experiment
from undrift.experiment.recorder import InMemory

ROUNDS = 25
EXPERIMENT = """
rounds = {rounds}
[algorithm]
name = "{method}"
[model]
name = "logistic"
[train]
lr = 0.1
batch_size = 32
[deploy]
deadline = 8
attempts = 20
pause = 0.2
"""


def simulated(path: Path) -> dict[int, str]:
    found: list[str] = []
    prepared = prepare_experiment(rehearsal(read_toml(path), COUNT, str(path)))
    execute(prepared, Witnessed(InMemory(prepared), lambda entry: found.append(fingerprint(entry))))
    return dict(enumerate(found, 1))


class Party:
    """Sites and a coordinator, each a process that can be ended and started again."""

    def __init__(self, folder: Path, method: str) -> None:
        self.folder = folder
        self.experiment = folder / "trial.toml"
        self.experiment.write_text(EXPERIMENT.format(rounds=ROUNDS, method=method))
        (folder / "coordinator").mkdir(mode=0o700)
        self.sites = [self._start("site", str(number)) for number in range(COUNT)]
        for process in self.sites:
            process.await_ready()
        self.coordinator = self._start("coordinator", str(self.experiment))

    def _start(self, role: str, what: str) -> Process:
        return Process(role, self.folder, what)

    def restart_site(self, number: int) -> None:
        self.sites[number].kill()
        self.sites[number] = self._start("site", str(number))
        self.sites[number].await_ready()

    def restart_coordinator(self) -> None:
        self.coordinator.kill()
        self.coordinator = self._start("coordinator", str(self.experiment))

    def rounds(self) -> list[tuple[int, str]]:
        path = self.folder / "coordinator" / "journal.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [json.loads(line) for line in lines if line.endswith("\n")]
        return [(line["round"], line["bits"]) for line in whole if line["what"] == "round"]

    def await_round(self, number: int) -> bool:
        """Whether a round was played before the coordinator ended."""
        until = time.monotonic() + 120
        while time.monotonic() < until:
            if max((at for at, _ in self.rounds()), default=0) >= number:
                return True
            if not self.coordinator.running():
                return False
            time.sleep(0.02)  # there is no event to wait for in another process's file
        raise AssertionError(f"round {number} was not played; the logs are in {self.folder}")

    def close(self) -> None:
        for process in (self.coordinator, *self.sites):
            process.kill()


@pytest.fixture
def party(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Party]:
    made = Party(tmp_path, request.param)
    yield made
    made.close()


def happen(party: Party, kind: str, dice: random.Random) -> None:
    number = dice.randrange(COUNT)
    process = party.sites[number]
    match kind:
        case "kill a site":
            party.restart_site(number)
        case "kill all sites":
            for each in range(COUNT):
                party.restart_site(each)
        case "kill the coordinator":
            party.restart_coordinator()
        case "kill both":
            party.coordinator.kill()
            party.restart_site(number)
            party.restart_coordinator()
        case "hang":
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(dice.random() * 2)
            os.kill(process.pid, signal.SIGCONT)
        case "full disk":  # a limit of the size of files stands for it: what is larger is written in part
            limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (dice.choice([0, 100, 3000]), limits[1]))
            time.sleep(0.3)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)


KINDS = ("kill a site", "kill all sites", "kill the coordinator", "kill both", "hang", "full disk")


def play(party: Party, dice: random.Random, kinds: list[str]) -> None:
    """Let things happen between rounds; then every round that was played has the bits of the simulation."""
    expected = simulated(party.experiment)
    for number, kind in enumerate(kinds, 1):
        if party.await_round(max(1, ROUNDS * number // (len(kinds) + 2)) - dice.randrange(2)):
            happen(party, kind, dice)
    assert party.coordinator.wait(240) == 0, (party.folder / "coordinator/.log").read_text()[-2000:]
    played = party.rounds()
    assert {at for at, _ in played} == set(expected)
    assert all(bits == expected[at] for at, bits in played)
    for name in NAMES:
        assert verify(party.folder / name / "journal.jsonl").lines > ROUNDS
    assert not list(party.folder.glob("*/runs/*/*.new"))


@pytest.mark.faults
@pytest.mark.parametrize("party", ["scaffold"], indirect=True)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_killed_comes_back_without_a_bit_of_difference(party: Party, kind: str) -> None:
    play(party, random.Random(kind), [kind, kind])


@pytest.mark.faults
@pytest.mark.parametrize(
    ("party", "seed"),
    [(method, seed) for seed, method in enumerate(["scaffold", "mime", "fedtrip", "feddyn"] * 5)],
    indirect=["party"],
)
def test_accidents_in_a_row(party: Party, seed: int) -> None:
    dice = random.Random(seed)
    play(party, dice, dice.choices(KINDS, k=5))
