"""FedLab: a server and two processes with half of the clients each, or all in one, with one or two intra-op threads."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from jobs import JOBS, Clock, arguments, data, mode, model
from torch import Tensor

for absent in ("torchvision", "torchvision.transforms"):  # FedLab's own data sets import it; none of them is used here
    sys.modules[absent] = ModuleType(absent)
sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]

from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer  # noqa: E402
from fedlab.contrib.algorithm.basic_server import SyncServerHandler  # noqa: E402
from fedlab.core.client.manager import PassiveClientManager  # noqa: E402
from fedlab.core.network import DistNetwork  # noqa: E402
from fedlab.core.server.manager import SynchronousServerManager  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402

JOB, ROUNDS = arguments()
CHOSEN = JOBS[JOB]
WORKERS = 2


class Clients:
    """What FedLab asks of a federated data set."""

    def __init__(self) -> None:
        self.x, self.y = data(JOB)

    def get_dataloader(self, client: int, batch_size: int, *rest: Any) -> Iterator[tuple[Tensor, Tensor]]:
        n = int(CHOSEN["samples"])
        for rows in (client * n + torch.randperm(n)).split(batch_size):
            yield self.x[rows], self.y[rows]


class Trainer(SGDSerialClientTrainer):
    """FedLab's trainer with momentum, which no client inherits from the one before."""

    def train(self, model_parameters: Tensor, train_loader: Any) -> Any:
        self.optimizer = torch.optim.SGD(self._model.parameters(), CHOSEN["lr"], momentum=CHOSEN["momentum"])
        return super().train(model_parameters, train_loader)


class Timed(SyncServerHandler):
    """The handler that says when a round is aggregated, and from how many clients."""

    def global_update(self, buffer: list[Any]) -> None:
        super().global_update(buffer)
        Clock().tick(len(buffer))


class Pipeline(StandalonePipeline):
    """FedLab's loop in one process, without an evaluation."""

    def evaluate(self) -> None:
        pass


def prepared(clients: Clients, number: int) -> Trainer:
    """A trainer for so many of the clients."""
    trainer = Trainer(model(JOB), number)
    trainer.setup_dataset(clients)
    trainer.setup_optim(1, int(CHOSEN["batch"]), CHOSEN["lr"])
    return trainer


def across_processes(handler: Timed, clients: Clients) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = ("127.0.0.1", str(free.getsockname()[1]))
    processes = [
        PassiveClientManager(
            DistNetwork(address, WORKERS + 1, rank), prepared(clients, int(CHOSEN["clients"]) // WORKERS)
        )
        for rank in range(1, WORKERS + 1)
    ]
    for process in processes:
        process.start()
    SynchronousServerManager(DistNetwork(address, WORKERS + 1, 0), handler, mode="GLOBAL").run()
    for process in processes:
        process.join()


if __name__ == "__main__":
    logging.disable(logging.INFO)
    torch.set_num_threads(2 if mode() == "1 process, 2 threads" else 1)
    clients = Clients()
    handler = Timed(model(JOB), ROUNDS, CHOSEN["participate"] / CHOSEN["clients"])
    if mode() == "2 processes":
        across_processes(handler, clients)
    else:
        Pipeline(handler, prepared(clients, int(CHOSEN["clients"]))).main()
