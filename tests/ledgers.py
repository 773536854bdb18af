"""Ledgers with runs whose accuracies are given, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from undrift.core.figure import Figure
from undrift.ledger.history import History
from undrift.ledger.rows import Entry, RoundRow, Run
from undrift.ledger.store import Ledger

TITLES = {"fedavg": "FedAvg", "fedtrip": "FedTrip", "scaffold": "SCAFFOLD"}


def entry(
    at: int,
    accuracy: float | None,
    *,
    up: int = 1000,
    down: int = 1000,
    macs: int = 10_000,
    seconds: float = 0.5,
    rejected: int = 0,
    notes: Mapping[str, float] | None = None,
    clients: Mapping[int, float] | None = None,
) -> Entry:
    """What one round adds; ``accuracy`` None is an evaluation that gave no number."""
    row = RoundRow(
        at, seconds=seconds, client_seconds=seconds, bytes_up=up, bytes_down=down, gradients=10, macs=macs,
        participants=2, rejected=rejected, drift={"distance": 0.1, "cosine": 0.9, "amp": 1.1}, notes=dict(notes or {}),
    )  # fmt: skip
    return Entry(
        row,
        [(Figure(), accuracy), (Figure(metric="loss"), None if accuracy is None else 1 - accuracy)],
        {"global": dict(clients)} if clients else {},
        {"client 1": "too late"} if rejected else {},
    )


def add_run(
    ledger: Ledger,
    method: str,
    seed: int,
    accuracies: Sequence[float | None],
    *,
    label: str | None = None,
    name: str | None = None,
    status: str = "finished",
    message: str = "",
    planned: int | None = None,
    data: str = "toy",
    train: Mapping[str, Any] | None = None,
    **costs: Any,
) -> Run:
    """A run with one evaluated round per accuracy."""
    experiment = {
        "algorithm": {"name": method},
        "data": {"name": data},
        "partition": {"name": "dirichlet", "alpha": 0.5},
        "model": {"name": "mlp"},
        "train": dict(train or {"lr": 0.1}),
        "seed": seed,
        "rounds": planned or len(accuracies),
        "clients": 3,
    }
    facts = {
        "label": label or TITLES.get(method, method),
        "data": data,
        "data_fingerprint": f"fingerprint of {data}",
        "partition_fingerprint": f"partition {data} {seed}",
        "start_fingerprint": f"start {seed}",
        "clients": 3,
        "participate": 2,
        "parameters": 100,
        "histogram": [[5, 0], [0, 7], [3, 4]],
        "chance": 0.05,
        "classes": 2,
        "versions": {"undrift": "0"},
    }
    run = ledger.add(name or f"{method}-{data}-seed{seed}", experiment, facts)
    for at, accuracy in enumerate(accuracies, 1):
        ledger.record(run, entry(at, accuracy, **costs))
    ledger.flush()
    ledger.set_status(run, status, message)
    return ledger.run(run.name)


def histories(ledger: Ledger) -> list[History]:
    return [History.of(ledger, run) for run in ledger.runs()]
