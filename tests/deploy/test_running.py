"""A site behind the real engine and mutual TLS: it trains with the bits of the simulation, and refuses what it must."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from together import SOON, bits, coordinated, direct, names, rounds, sites_of, told

from conformance import problem
from conftest import Federation
from undrift.algorithms import create
from undrift.core.loop import Loop
from undrift.core.packing import pack, unpack
from undrift.deploy import protocol
from undrift.deploy.coordinator import register
from undrift.deploy.journal import entries
from undrift.deploy.nvflare_pipe import NVFlarePipe
from undrift.deploy.pipe import Answers, Failure, Pipe, socket_file
from undrift.deploy.policy import Policy
from undrift.deploy.protocol import Refusal
from undrift.runtimes.serial import Serial

pytestmark = pytest.mark.deploy

FAR, KIT = "site00", "north"  # the site that is behind the engine, and whose kit it has there


class Through:
    """One site is reached through the engine, the others directly; what was sent to the one is remembered."""

    def __init__(self, far: Pipe, near: Pipe) -> None:
        self.far, self.near = far, near
        self.sent: list[bytes] = []

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        yield from self.near.call({name: m for name, m in messages.items() if name != FAR}, seconds)
        if FAR in messages:
            self.sent.append(messages[FAR])
            yield from ((FAR, answer) for _, answer in self.far.call({KIT: messages[FAR]}, seconds))


def refused(pipe: Pipe, message: bytes) -> str:
    [(_, answer)] = pipe.call({KIT: message}, SOON)
    assert isinstance(answer, bytes)
    with pytest.raises(Refusal) as refusal:
        protocol.opened(answer)
    return f"{refusal.value.kind}: {refusal.value}"


def test_a_site_behind_the_engine_trains_and_refuses(ready: NVFlarePipe, trial: Federation, tmp_path: Path) -> None:
    whole, method = problem.federation(), create("scaffold")
    sites = sites_of(tmp_path, whole)
    pipe = Through(ready, direct(sites))
    trial.end_site(KIT)
    socket_file(trial.kits[KIT]).unlink(missing_ok=True)
    with Answers(socket_file(trial.kits[KIT]), sites[FAR].answer):
        simulated = rounds(Loop(whole, method, Serial(whole), whole.population.size), 3)
        played = rounds(coordinated(whole, method, pipe), 3)
        assert [bits(mine) for mine in played] == [bits(theirs) for theirs in simulated]

        tasks = [message for message in pipe.sent if protocol.look(message).kind == "update"]
        kept = {path.name: path.read_bytes() for path in (sites[FAR].folder / "runs" / "trial-1").iterdir()}
        for replayed in tasks[:-1]:
            assert refused(ready, replayed).startswith("stale: ")
        tensors, header = unpack(tasks[-1])
        assert refused(ready, pack(tensors, {**header, "run": "other-1"})) == "unknown: has not joined other-1"
        assert refused(ready, pack(tensors, {**header, "client": 1})) == "refused: is client 0 of this run, not 1"
        assert refused(ready, pack(tensors, {**header, "kind": "execute"})).startswith("bad: ")
        assert refused(ready, b"\x80\x04.").startswith("bad: ")
        assert {p.name: p.read_bytes() for p in (sites[FAR].folder / "runs" / "trial-1").iterdir()} == kept

        experiment = told(whole, method)
        _, absent = register(ready, [KIT], "trial-2", experiment, SOON)  # it has the kit, and says another name
        assert str(absent[KIT]) == f"calls itself {FAR!r}"
        sites[FAR].policy = Policy(experiments="any", smallest_cohort=1, methods={"fedavg": "any"})
        _, absent = register(pipe, names(whole)[:1], "trial-3", experiment, SOON)
        assert str(absent[FAR]) == "does not allow the method scaffold"
        assert list(entries(sites[FAR].folder / "journal.jsonl"))[-1]["why"] == "does not allow the method scaffold"
    trial.start_site(KIT)
