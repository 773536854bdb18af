"""Rounds as they happen, to TensorBoard or MLflow. Both are optional; the ledger stays the record of a run.

A tracker is called with the ledger's entry of each round and closed with the run's status. It decides nothing. A run
that is resumed goes on there too.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from undrift.core.errors import InvalidInput, unknown
from undrift.ledger.rows import Entry, Run

KINDS = ("tensorboard", "mlflow")


class Tracker(Protocol):
    """Who wants to hear of every round."""

    def __call__(self, entry: Entry) -> None: ...

    def close(self, status: str = "finished") -> None: ...


def tracker(kind: str, run: Run, where: str | Path | None = None) -> Tracker:
    """A tracker of one run. ``where``: TensorBoard's log folder, or MLflow's tracking address (or a folder for it)."""
    if kind == "tensorboard":
        return TensorBoard(run, Path(where or "runs/tensorboard"))
    if kind == "mlflow":
        return MLflow(run, _address(where))
    raise unknown("tracker", kind, KINDS)


def available(kind: str) -> None:
    """Refuse a tracker that is not there."""
    if kind not in KINDS:
        raise unknown("tracker", kind, KINDS)
    if find_spec(kind) is None:
        raise _missing(kind)


def _missing(kind: str) -> InvalidInput:
    return InvalidInput(f"tracking with {kind} needs a package that is not installed: pip install 'undrift[{kind}]'")


def _address(where: str | Path | None) -> str | None:
    """What MLflow calls a tracking URI; None leaves it to MLflow's own environment variable."""
    if where is None and "MLFLOW_TRACKING_URI" in os.environ:
        return None
    if "://" in str(where):
        return str(where)
    folder = Path(where or "runs").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder}/mlflow.db"


def scalars(entry: Entry) -> Iterator[tuple[str, float]]:
    """The numbers of a round by name; what is not a number is left out."""
    found: list[tuple[str, Any]] = [
        (f"{figure.metric}/{figure.model} model on {figure.data}", value) for figure, value in entry.metrics
    ]
    for column, value in entry.row.plain().items():
        if isinstance(value, Mapping):
            found += [(f"{column}/{name}", v) for name, v in value.items()]
        elif column != "round":
            found.append((f"cost/{column}", value))
    for name, value in found:
        if isinstance(value, int | float) and math.isfinite(value):
            yield name, float(value)


def _settings(run: Run) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in run.experiment.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": str(v) for inner, v in value.items()}
        else:
            flat[key] = str(value)
    return flat


class TensorBoard:
    """One event file per run, in a folder of its name."""

    def __init__(self, run: Run, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise _missing("tensorboard") from None
        # Rounds beyond the last one recorded, from a process that was killed, are dropped in favour of what comes now.
        self._writer: Any = SummaryWriter(str(folder / _safe(run.name)), purge_step=run.rounds + 1)
        lines = "\n".join(f"    {key} = {value}" for key, value in _settings(run).items())
        self._writer.add_text("settings", lines, 0)

    def __call__(self, entry: Entry) -> None:
        for name, value in scalars(entry):
            self._writer.add_scalar(name, value, entry.round)

    def close(self, status: str = "finished") -> None:
        self._writer.close()


class MLflow:
    """One MLflow run per run, found again by its name when the run goes on."""

    def __init__(self, run: Run, address: str | None) -> None:
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise _missing("mlflow") from None
        self._metric, self._client = Metric, MlflowClient(address)
        found = self._client.get_experiment_by_name("undrift")
        experiment = found.experiment_id if found else self._client.create_experiment("undrift")
        wanted = f"{run.name} {run.created:.3f}"  # the same run of the same ledger, not one that is called the same
        known = self._client.search_runs([experiment], filter_string=f"tags.`undrift.run` = '{_quoted(wanted)}'")
        if known:
            self._run = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {"mlflow.runName": run.name, "undrift.run": _quoted(wanted)}
        self._run = self._client.create_run(experiment, tags=tags).info.run_id
        for key, value in _settings(run).items():
            self._client.log_param(self._run, _safe(key), value[:500])

    def __call__(self, entry: Entry) -> None:
        now = int(time.time() * 1000)
        metrics = [self._metric(_safe(name), value, now, entry.round) for name, value in scalars(entry)]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, status: str = "finished") -> None:
        self._client.set_terminated(self._run, "FINISHED" if status == "finished" else "FAILED")


def _safe(name: str) -> str:
    """A name that folders and MLflow allow."""
    return re.sub(r"[^\w\-. /:=]", "", name).replace("..", ".").strip("/ ") or "run"


def _quoted(text: str) -> str:
    return text.replace("'", "").replace("`", "")
