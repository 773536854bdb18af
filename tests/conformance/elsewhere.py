"""The other process of the separability tests: requests in on stdin, answers out on stdout, nothing else is known.

It plays the sites: of every client it has the model's code, that client's rows, and what that client keeps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.problem import federation
from undrift.algorithms import algorithms
from undrift.core.eager import Trainer
from undrift.core.federation import Holding, Model
from undrift.core.packing import pack
from undrift.core.states import Memory
from undrift.core.training import Training
from undrift.core.wire import Request, answer, take_apart

KINDS = {"Network": "network", "Linear": "logistic"}


class Site:
    """One client of one run."""

    def __init__(self, about: dict[str, Any], client: int) -> None:
        whole = federation(KINDS[about["model"]])
        rows = whole.rows(client) if about["method"] != "central" else torch.from_numpy(whole.indices)
        self.method = algorithms()[about["method"]].create(**about["settings"])
        training = Training.create(**about["training"])
        model = Model(module=whole.module, loss=whole.loss, training=training, sample=whole.x[:1], seed=about["seed"])
        self.trainer = Trainer(model, Holding.of(client, whole.x[rows], whole.y[rows]))
        self.states, self.fresh = Memory(), model.fresh(self.method)
        self.first: Any = None

    def __call__(self, data: bytes) -> bytes:
        request = Request.decode(self.method, data, self.first)
        self.first = request.down if request.kind == "survey" else None
        reply = answer(request, self.method, self.trainer, self.states, self.fresh)
        return pack(*take_apart(reply))


def main() -> None:
    streams, sites, run = (sys.stdin.buffer, sys.stdout.buffer), {}, None
    while line := streams[0].readline():
        about, size = json.loads(line)
        data = streams[0].read(size)
        if about["run"] != run:
            sites, run = {}, about["run"]
        client = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["undrift"]
        number = json.loads(client)["client"]
        if number not in sites:
            sites[number] = Site(about, number)
        reply = sites[number](data)
        streams[1].write(f"{len(reply)}\n".encode() + reply)
        streams[1].flush()


if __name__ == "__main__":
    main()
