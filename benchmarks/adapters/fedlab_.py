"""FedLab's standalone simulation: a serial trainer, with torch's own threads."""

from __future__ import annotations

from typing import Any

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from jobs import JOBS, Clock, arguments, data, model
from torch.utils.data import DataLoader, TensorDataset

JOB, ROUNDS = arguments()
CHOSEN = JOBS[JOB]


class Clients:
    """What FedLab asks of a federated data set."""

    def __init__(self) -> None:
        self.x, self.y = data(JOB)

    def get_dataloader(self, client: int, batch_size: int, *rest: Any) -> DataLoader[Any]:
        n = int(CHOSEN["samples"])
        held = slice(client * n, (client + 1) * n)
        return DataLoader(TensorDataset(self.x[held], self.y[held]), batch_size=batch_size, shuffle=True)


if __name__ == "__main__":
    net = model(JOB)
    handler = SyncServerHandler(
        net, global_round=ROUNDS, num_clients=int(CHOSEN["clients"]),
        sample_ratio=CHOSEN["participate"] / CHOSEN["clients"], cuda=False,
    )  # fmt: skip
    trainer = SGDSerialClientTrainer(net, int(CHOSEN["clients"]), cuda=False)
    trainer.setup_dataset(Clients())
    trainer.setup_optim(1, int(CHOSEN["batch"]), CHOSEN["lr"])
    trainer.optimizer = torch.optim.SGD(trainer._model.parameters(), CHOSEN["lr"], momentum=CHOSEN["momentum"])
    clock = Clock()
    for _ in range(ROUNDS):
        chosen = handler.sample_clients()
        trainer.local_process(handler.downlink_package, chosen)
        packages = trainer.uplink_package
        for package in packages:
            handler.load(package)
        clock.tick(len(packages))
