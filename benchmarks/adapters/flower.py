"""Flower's simulation (Ray): a ClientApp and a ServerApp with its FedAvg; an actor per core and no evaluation."""

from __future__ import annotations

import os
from typing import Any

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}  # read on import

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from jobs import JOBS, Clock, arguments, data, model, train

JOB, ROUNDS = arguments()
CHOSEN = JOBS[JOB]

client, server = ClientApp(), ServerApp()


@client.train()
def fit(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    net = model(JOB)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    n = int(CHOSEN["samples"])
    begin = int(context.node_config["partition-id"]) * n
    x, y = data(JOB)
    train(net, x[begin : begin + n], y[begin : begin + n], JOB)
    answer = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": n})}
    return Message(content=RecordDict(answer), reply_to=message)


class Timed(FedAvg):
    """FedAvg that says when a round is aggregated, and from how many clients. Failed clients are replies too."""

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        replies = list(replies)
        result = super().aggregate_train(server_round, replies)
        Clock().tick(sum(not reply.has_error() for reply in replies))
        return result


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Timed(
        fraction_train=CHOSEN["participate"] / CHOSEN["clients"],
        fraction_evaluate=0.0,
        min_train_nodes=int(CHOSEN["participate"]),  # the first round may begin while nodes are still registering
        min_available_nodes=int(CHOSEN["clients"]),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model(JOB).state_dict()),
        num_rounds=ROUNDS,
        train_config=ConfigRecord({}),
    )


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=int(CHOSEN["clients"]),
        backend_config={
            "init_args": {"log_to_driver": False, "object_store_memory": 2**28},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
