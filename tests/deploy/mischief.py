"""A pipe that is unkind by a seed: what it does to which message depends on nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from together import site_of

from undrift.core.federation import Federation
from undrift.deploy.pipe import Failure
from undrift.deploy.site import Site

KINDS = ("lost before", "lost after", "twice", "late", "killed before", "killed after")


class Mischief:
    """Carries messages to sites in this process, and loses, doubles, delays or reorders some of them.

    A site that is "killed" is made anew from its folder, as after a ``kill -9``: what was in memory alone is gone.
    """

    def __init__(self, folder: Path, simulated: Federation, seed: int, share: float = 0.2) -> None:
        self.folder, self.simulated, self.share = folder, simulated, share
        self.dice = random.Random(seed)
        self.sites: dict[str, Site] = {}
        self.late: list[tuple[str, bytes]] = []
        self.done: list[str] = []
        for client in range(simulated.population.size):
            self._start(client)

    def _start(self, client: int) -> None:
        site = site_of(self.folder, self.simulated, client)
        self.sites[site.name] = site

    def restart(self, name: str) -> None:
        self.sites.pop(name).close()
        self._start(int(name.removeprefix("site")))

    def call(self, messages: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, bytes | Failure]]:
        order = list(messages)
        self.dice.shuffle(order)
        for name in order:
            if self.late and self.dice.random() < 0.5:  # what was delayed arrives now, out of its order
                site, message = self.late.pop(self.dice.randrange(len(self.late)))
                self.sites[site].answer(message)
            yield name, self._carried(name, messages[name])

    def _carried(self, name: str, message: bytes) -> bytes | Failure:
        if self.dice.random() >= self.share:
            return self.sites[name].answer(message)
        kind = self.dice.choice(KINDS)
        self.done.append(kind)
        match kind:
            case "lost before":
                pass
            case "lost after":
                self.sites[name].answer(message)
            case "twice":
                first = self.sites[name].answer(message)
                assert self.sites[name].answer(message)
                return first
            case "late":
                self.late.append((name, message))
            case "killed before":
                self.restart(name)
            case "killed after":
                self.sites[name].answer(message)
                self.restart(name)
        return Failure("was hit")

    def close(self) -> None:
        for site in self.sites.values():
            site.close()


Trial = Callable[[int], None]
