"""Your own method: FedAvg with a leash, in one class. It runs in every runtime, and a comparison says whether it helps.

As a file of its own it is on the command line too: undrift run --algorithm ./own_method.py --radius 0.5
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import undrift
from undrift import Averaging, Broadcast, Local, Nothing, Trained, positive


class FedLeash(Averaging[Nothing]):
    """A client may not move further than `radius` from the model that it received."""

    title: ClassVar[str] = "FedLeash"
    paper: ClassVar[str] = "an example"

    radius: Annotated[float, "largest move of a client per round", positive()] = 1.0

    def client_update(self, down: Broadcast, me: Nothing, local: Local) -> tuple[Trained, Nothing]:
        x = local.descend(local.grad, down.x)
        move = x - down.x
        return Trained(down.x + move * (self.radius / move.norm()).clamp(max=1)), me


if __name__ == "__main__":
    print(
        undrift.compare(
            ["fedavg", FedLeash(radius=0.5), FedLeash(radius=2)], seeds="1..3", clients=20, participate=5, rounds=20,
            partition={"name": "dirichlet", "alpha": 0.1}, target=0.8,
        )
    )  # fmt: skip
