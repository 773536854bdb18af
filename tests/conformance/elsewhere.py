"""The other process of the separability tests: requests in on stdin, answers out on stdout, nothing else is known."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.problem import federation
from undrift.algorithms import algorithms
from undrift.core.client import Request, answer
from undrift.core.training import Training

KINDS = {"Network": "network", "Linear": "logistic"}


def main() -> None:
    streams = sys.stdin.buffer, sys.stdout.buffer
    while line := streams[0].readline():
        kind, size = json.loads(line)
        data = streams[0].read(size)
        request = Request.decode(data)
        whole = federation(KINDS[kind])
        rows = whole.rows(request.client) if request.method != "central" else torch.from_numpy(whole.indices)
        mine = replace(
            whole,
            x=whole.x[rows],
            y=whole.y[rows],
            indices=np.arange(len(rows)),
            offsets=np.array([0, len(rows)]),
            training=Training.create(**request.training),
            seed=request.seed,
            public=None,
            scoring=None,
        )
        reply = answer(data, algorithms(), mine.trainer(), torch.arange(len(rows)))
        streams[1].write(f"{len(reply)}\n".encode() + reply)
        streams[1].flush()


if __name__ == "__main__":
    main()
