"""FLGo's FedAvg: one client after the other, with one or two intra-op threads, or two clients in threads of their own.

Its processes are slower, as the server with all clients goes to them with every task; its Ray modes want a GPU. FLGo
takes modules: this one is the benchmark with its core, the algorithm and the model at once.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flgo
import torch
from flgo.algorithm import fedbase
from flgo.benchmark.toolkits.cv.classification import FromDatasetGenerator, FromDatasetPipe, GeneralCalculator
from flgo.benchmark.toolkits.partition import BasicPartitioner
from flgo.experiment.logger import BasicLogger
from flgo.utils.fmodule import FModule
from jobs import JOBS, Clock, arguments, data, mode, model
from torch import Tensor
from torch.utils.data import TensorDataset

JOB, ROUNDS = arguments()
MODE = mode()
del sys.argv[1:]  # FLGo reads them too
CHOSEN = JOBS[JOB]
TRAIN = TensorDataset(*data(JOB))


class Held(TensorDataset):
    """A client's part. FLGo's own class for it does not work with this torch."""

    def __init__(self, whole: TensorDataset, rows: list[int], *rest: Any) -> None:
        super().__init__(*whole[rows[0] : rows[-1] + 1])


class Stretches(BasicPartitioner):
    """Client i holds the i-th stretch."""

    def __call__(self, whole: TensorDataset) -> list[list[int]]:
        n = int(CHOSEN["samples"])
        return [list(range(begin, begin + n)) for begin in range(0, len(whole), n)]


class TaskGenerator(FromDatasetGenerator):
    __module__ = f"{__name__}.core"  # FLGo derives the benchmark's name from it

    def __init__(self) -> None:
        super().__init__(__name__, TRAIN)


class TaskPipe(FromDatasetPipe):
    TaskDataset = Held

    def __init__(self, path: str) -> None:
        super().__init__(path, TRAIN)


class TaskCalculator(GeneralCalculator):
    """FLGo's calculator for images, with minibatches cut from the tensors at once instead of sample by sample."""

    def get_dataloader(self, held: Held, batch_size: float, **rest: Any) -> Iterator[tuple[Tensor, ...]]:
        for rows in torch.randperm(len(held)).split(int(batch_size)):
            yield held[rows]


class Net(FModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = model(JOB)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Client(fedbase.BasicClient):
    pass


class Server(fedbase.BasicServer):
    """FedAvg's server, which says when a round is aggregated, and from how many clients."""

    def aggregate(self, models: list[FModule], *args: Any, **kwargs: Any) -> FModule:
        result = super().aggregate(models, *args, **kwargs)
        Clock().tick(len(models))
        return result


def init_global_module(party: Any) -> None:
    if isinstance(party, Server):
        party.model = Net()


if __name__ == "__main__":
    here = sys.modules[__name__]
    sys.modules[f"{__name__}.core"] = here
    with tempfile.TemporaryDirectory() as folder:
        task = str(Path(folder) / "task")
        flgo.gen_task_by_(here, Stretches(), task)
        option = {
            "num_rounds": ROUNDS,
            "proportion": CHOSEN["participate"] / CHOSEN["clients"],
            "num_epochs": 1,
            "learning_rate": CHOSEN["lr"],
            "momentum": CHOSEN["momentum"],
            "batch_size": int(CHOSEN["batch"]),
            "train_holdout": 0.0,
            "eval_interval": -1,
            "log_level": "ERROR",
            "no_tqdm": True,
            "torch_num_threads": 2 if MODE == "2 threads" else 1,
            "num_parallels": 2 if MODE == "2 clients at once" else 1,
            "parallel_type": "t",
        }
        flgo.init(task, here, option, model=here, Logger=BasicLogger).run()
