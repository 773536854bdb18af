"""pfl's simulated backend: its FederatedAveraging in one process, or over two (gloo), each training half of a cohort.

pfl splits a cohort over the processes that ``PFL_WORKER_ADDRESSES`` names and sums what they learned. The second one
is forked before pfl is imported, so that torch is loaded and the data are made once; a launcher would do both twice.
"""

from __future__ import annotations

import functools
import os
import socket

import torch
import torch.nn.functional as F
from jobs import JOBS, Clock, arguments, data, mode, model
from torch import Tensor, nn

JOB, ROUNDS = arguments()
CHOSEN = JOBS[JOB]


def start() -> None:
    """Become two processes that know each other, with one thread each: each then needs about half of one's CPU time."""
    torch.set_num_threads(1)
    data(JOB)
    if mode() == "1 process":
        os.environ["PFL_WORKER_RANK"] = "0"
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    os.environ["PFL_WORKER_ADDRESSES"] = f"{address},{address}"  # only the first is ever connected to
    os.environ["PFL_WORKER_RANK"] = "0" if os.fork() else "1"
    os.environ["LOCAL_RANK"] = os.environ["PFL_WORKER_RANK"]


if __name__ == "__main__":
    start()
    import numpy as np
    from pfl.aggregate.base import get_num_devices_weight_name
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.common_types import Population
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Net(nn.Module):
        """What pfl asks of a module. Nothing is measured, as pfl would evaluate every client of the first round."""

        def __init__(self) -> None:
            super().__init__()
            self.net = model(JOB)

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(self.net(x), y)

        def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
            return {}

    class Rounds(TrainingProcessCallback):
        """Says when a round is aggregated, and from how many clients."""

        def after_central_iteration(
            self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            if os.environ["PFL_WORKER_RANK"] == "0":
                Clock().tick(int(aggregate_metrics[get_num_devices_weight_name(Population.TRAIN)]))
            return False, Metrics()

    def shuffled(client: int) -> PyTorchTensorDataset:
        """A client's samples, in a new order each time it is asked for; pfl's batches are consecutive rows."""
        n, (x, y) = int(CHOSEN["samples"]), data(JOB)
        rows = client * n + torch.randperm(n)
        return PyTorchTensorDataset((x[rows], y[rows]), user_id=str(client))

    np.random.seed(0)  # noqa: NPY002  pfl draws from it, and the two processes must agree on the cohorts
    net = Net()
    clients = FederatedDataset(shuffled, get_user_sampler("minimize_reuse", range(int(CHOSEN["clients"]))))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS + 1,
            train_cohort_size=int(CHOSEN["participate"]),
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(clients, clients, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            net,
            functools.partial(torch.optim.SGD, momentum=CHOSEN["momentum"]),
            torch.optim.SGD(net.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=CHOSEN["lr"], local_batch_size=int(CHOSEN["batch"])
        ),
        callbacks=[Rounds()],
        send_metrics_to_platform=False,
    )
