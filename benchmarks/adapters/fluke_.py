"""fluke's FedAvg, one client after the other, with one or two intra-op threads: its parallel mode wants GPUs."""

from __future__ import annotations

from typing import Any

import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import ClientObserver, FederationObserver
from jobs import JOBS, Clock, arguments, data, mode, model


class Timed(ClientObserver, FederationObserver):
    """Says when a round is over, and how many clients trained in it."""

    def __init__(self) -> None:
        self.clock, self.trained = Clock(), 0

    def end_fit(self, *args: Any, **kwargs: Any) -> None:
        self.trained += 1

    def end_round(self, round: int) -> None:
        self.clock.tick(self.trained)
        self.trained = 0


if __name__ == "__main__":
    job, rounds = arguments()
    torch.set_num_threads(2 if mode() == "2 threads" else 1)
    chosen = JOBS[job]
    clients, batch = int(chosen["clients"]), int(chosen["batch"])
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    x, y = data(job)
    held = [
        FastDataLoader(*pair, num_labels=10, batch_size=batch, shuffle=True)
        for pair in zip(x.chunk(clients), y.chunk(clients), strict=True)
    ]
    federation = FedAVG(
        clients,
        DataSplitter(DummyDataContainer(held, [None] * clients, None, 10)),
        DDict(
            model=model(job),
            client=DDict(
                batch_size=batch,
                local_epochs=1,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=chosen["lr"], momentum=chosen["momentum"]),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
                persistency=False,  # a client starts with the global model and a fresh optimiser
            ),
            server=DDict(weighted=True),
        ),
    )
    federation.set_callbacks(Timed())
    federation.run(rounds, chosen["participate"] / clients)
