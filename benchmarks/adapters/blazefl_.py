"""BlazeFL's thread pool: two threads that each train a client, and the server of its FedAvg.

Its process pool (shared memory or files) was tried on a busy machine: it starts new processes each round, was slower on
the logistic job (by a fifth at its best) and not clearly different on LeNet. Its threads are meant for a Python without
the GIL, on which they may be faster still; that was not tried.
"""

from __future__ import annotations

import queue
import threading

import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgDownlinkPackage, FedAvgUplinkPackage
from blazefl.core import ThreadPoolClientTrainer, deserialize_model, serialize_model
from jobs import JOBS, Clock, arguments, data, model, train
from torch import nn

JOB, ROUNDS = arguments()
CHOSEN = JOBS[JOB]


class Models:
    """What BlazeFL asks of a choice of models."""

    def select_model(self, model_name: str) -> nn.Module:
        return model(model_name)


class Trainer(ThreadPoolClientTrainer[FedAvgUplinkPackage, FedAvgDownlinkPackage]):
    """Trains clients by the hand-written loop: BlazeFL's own trainer has no momentum, and reads samples one by one."""

    def __init__(self, threads: int) -> None:
        self.num_parallels, self.device, self.device_count = threads, "cpu", 0
        self.cache: list[FedAvgUplinkPackage] = []
        self.stop_event = threading.Event()
        self.idle: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()  # a model per thread, instead of one per client
        for _ in range(threads):
            self.idle.put(model(JOB))

    def worker(
        self, cid: int, device: str, payload: FedAvgDownlinkPackage, stop_event: threading.Event
    ) -> FedAvgUplinkPackage:
        torch.set_num_threads(1)  # it is a setting of the calling thread
        n, (x, y) = int(CHOSEN["samples"]), data(JOB)
        held = slice(cid * n, (cid + 1) * n)
        net = self.idle.get()
        deserialize_model(net, payload.model_parameters)
        train(net, x[held], y[held], JOB)
        package = FedAvgUplinkPackage(cid, serialize_model(net), n)
        self.idle.put(net)
        return package

    def uplink_package(self) -> list[FedAvgUplinkPackage]:
        packages, self.cache = self.cache, []
        return packages


if __name__ == "__main__":
    torch.set_num_threads(1)
    data(JOB)  # before the threads, which would both make it
    server = FedAvgBaseServerHandler(
        model_selector=Models(),
        model_name=JOB,
        dataset=None,  # only for evaluation
        global_round=ROUNDS,
        num_clients=int(CHOSEN["clients"]),
        sample_ratio=CHOSEN["participate"] / CHOSEN["clients"],
        device="cpu",
        batch_size=int(CHOSEN["batch"]),
        seed=0,
    )
    trainer, clock = Trainer(threads=2), Clock()
    while not server.if_stop():
        trainer.local_process(server.downlink_package(), server.sample_clients())
        packages = trainer.uplink_package()
        aggregated = [server.load(package) for package in packages]
        clock.tick(len(packages) if aggregated[-1] else 0)
