"""Sites and a coordinator in one process, made from a simulation: every site holds the rows of one of its clients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from undrift.core.algorithm import Method
from undrift.core.federation import Federation, Model, Registered
from undrift.core.loop import Loop, Round, resolved
from undrift.core.stages import Uploads
from undrift.core.states import Memory, States
from undrift.core.training import Training
from undrift.deploy.coordinator import Remote, Roster, Rules, register, roster
from undrift.deploy.pipe import Direct, Pipe
from undrift.deploy.policy import Policy
from undrift.deploy.protocol import Kind
from undrift.deploy.site import Data, Site
from undrift.experiment.deployed import Installed

OPEN = Policy(experiments="any", smallest_cohort=1)
SOON = 60.0


class Workshop(Installed):
    """Makes the methods that are installed, and the model of a simulation."""

    def __init__(self, simulated: Federation) -> None:
        self.simulated = simulated

    def model(self, experiment: Mapping[str, Any], task: Any) -> Model:
        whole = self.simulated
        training = Training.create(**experiment["train"])
        return Model(module=whole.module, loss=whole.loss, training=training, sample=whole.x[:1], seed=whole.seed)


def names(simulated: Federation) -> list[str]:
    return [f"site{client:02d}" for client in range(simulated.population.size)]


def data_of(simulated: Federation, client: int) -> Data:
    rows = simulated.rows(client)
    test = simulated.test
    tested = test.at(client) if test is not None else torch.empty(0, dtype=torch.int64)
    whole = test if test is not None else simulated
    kind = Kind(tuple(simulated.x.shape[1:]), simulated.layout.classes, simulated.layout.classes)
    content = hashlib.sha256(simulated.x[rows].numpy().tobytes()).hexdigest()
    return Data(
        simulated.x[rows], simulated.y[rows], whole.x[tested], whole.y[tested],
        kind, content=content, augment=simulated.augment,
    )  # fmt: skip


def site_of(folder: Path, simulated: Federation, client: int, policy: Policy = OPEN) -> Site:
    name = names(simulated)[client]
    return Site(folder / name, name, data_of(simulated, client), policy, Workshop(simulated))


def sites_of(folder: Path, simulated: Federation, policy: Policy = OPEN) -> dict[str, Site]:
    count = simulated.population.size
    return {names(simulated)[client]: site_of(folder, simulated, client, policy) for client in range(count)}


def direct(sites: Mapping[str, Site]) -> Direct:
    return Direct({name: site.answer for name, site in sites.items()})


def told(
    simulated: Federation, method: Method, rounds: int = 50, uploads: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What sites are told of the experiment."""
    section = {"name": type(method).name(), **plain(method)}
    train = simulated.training.values()
    return {
        "name": "trial",
        "algorithm": section,
        "train": train,
        "uploads": dict(uploads or {}),
        "seed": simulated.seed,
        "rounds": rounds,
        "cohort": 2,
    }


def plain(method: Method) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in method.values().items()}


def registered(simulated: Federation, found: Roster) -> Registered:
    """What the coordinator knows of a simulation: its public rows, and no client's."""
    return Registered(
        module=simulated.module, loss=simulated.loss, training=simulated.training, sample=simulated.x[:1],
        seed=simulated.seed, samples=found.samples, names=found.names, here=simulated,
    )  # fmt: skip


def coordinated(
    simulated: Federation, method: Method, pipe: Pipe, rules: Rules | None = None, participate: int | None = None,
    states: States | None = None, run: str = "trial-1", uploads: Mapping[str, Any] | None = None,
) -> Loop:  # fmt: skip
    """A loop over a pipe, whose sites have registered and joined."""
    experiment = told(simulated, method, uploads=uploads)
    present, absent = register(pipe, names(simulated), run, experiment, SOON)
    assert absent == {}
    found = roster(present)
    federation = registered(simulated, found)
    method = resolved(method, federation)
    settled = {"algorithm": {"name": type(method).name(), **plain(method)}}
    remote = Remote(federation, pipe, found, method, run, experiment, settled, rules or Rules(deadline=SOON))
    remote.states = states if states is not None else Memory()
    return Loop(federation, method, remote, participate or len(found), Uploads.create(**(uploads or {})))


def rounds(loop: Loop, count: int) -> Iterator[Round]:
    snapshot = loop.start()
    for _ in range(count):
        played = loop.play(snapshot)
        snapshot = played.snapshot
        yield played


def bits(played: Round) -> tuple[bytes, bytes]:
    """All that the server holds after a round."""
    return played.snapshot.server.encode(), played.snapshot.buffers.encode()
