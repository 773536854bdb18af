"""Features of the global model and of a client's model, laid out in the plane by t-SNE, as in the papers' figures.

The client's model is the global one after one more round of plain local training on that client's data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core import rng
from undrift.core.client import one_thread
from undrift.core.errors import InvalidInput, no_features
from undrift.core.vector import Buffers
from undrift.experiment.description import Experiment
from undrift.experiment.prepare import Prepared, prepare_experiment
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger
from undrift.report.plots import drawing


@dataclass(frozen=True)
class Features:
    """Features of the same test samples under two models."""

    round: int
    client: str
    labels: NDArray[np.int64]
    of_global: NDArray[np.float64]
    of_client: NDArray[np.float64]


def features(ledger: Ledger, run: Run, client: int = 0, samples: int = 600, root: str | Path | None = None) -> Features:
    """Work out the features of a run's last recorded model."""
    if run.experiment.get("own"):
        raise InvalidInput(f"run {run.name!r} was started from Python with its own model or data: it cannot be rebuilt")
    setting = prepare_experiment(Experiment.build(run.experiment, f"run {run.name!r}"), root)
    stored = ledger.snapshot(run)
    if stored is None:
        raise InvalidInput(f"run {run.name!r} has no recorded round yet")
    at, server, buffers = stored.round, setting.method.records()["server"].of(stored.server), Buffers.of(stored.buffers)
    models = setting.method.models(server)
    if not models:
        raise InvalidInput(f"{setting.method.title} has no global model to take features of")
    if setting.dataset.labels_test is None or not len(setting.dataset.labels_test):
        raise InvalidInput(f"{setting.dataset.name} has no labelled test samples to take features of")
    if not setting.federation.layout.features:
        raise no_features("t-SNE")
    count = len(setting.federation.offsets) - 1
    if not 0 <= client < count:
        raise InvalidInput(f"client {client}: there are clients 0 to {count - 1}")
    return _both(setting, next(iter(models.values())), buffers, at, client, samples)


def _both(setting: Prepared, w: Tensor, buffers: Buffers, at: int, client: int, samples: int) -> Features:
    federation, labels = setting.federation, setting.dataset.labels_test
    assert labels is not None
    rows = rng.sample(rng.key(federation.seed, "features"), len(labels), min(samples, len(labels)))
    x = setting.dataset.x_test[torch.from_numpy(rows)]
    with one_thread(), torch.no_grad():
        trainer = federation.trainer()
        local = trainer.local(client, at + 1, federation.rows(client), buffers)
        found = [_of(trainer.frozen(w).forward(x)[0])]
        found.append(_of(trainer.frozen(local.descend(local.grad, w).clone()).forward(x)[0]))
    name = federation.population.name(client)
    return Features(at, str(name), labels[rows], *found)


def _of(z: Tensor | None) -> NDArray[np.float64]:
    assert z is not None
    return z.flatten(1).double().numpy()


def tsne(found: Features, path: str | Path, *, seed: int = 0, force: bool = False) -> None:
    """Draw both sets of features side by side, a colour per class."""
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        raise InvalidInput("t-SNE needs scikit-learn: pip install 'undrift[report]'") from None
    panels: Sequence[tuple[str, NDArray[Any]]] = (
        (f"global model, round {found.round}", found.of_global),
        (f"client {found.client}, one round later", found.of_client),
    )
    near = max(2.0, min(30.0, len(found.labels) / 4))
    with drawing(path, 6.6, 3.3, force) as (figure, mpl):
        for axes, (title, values) in zip(figure.subplots(1, 2), panels, strict=True):
            flat = TSNE(perplexity=near, init="pca", random_state=seed).fit_transform(values)
            for place, label in enumerate(np.unique(found.labels)):
                mine = found.labels == label
                axes.scatter(
                    *flat[mine].T, s=6, linewidths=0, color=mpl.colormaps["tab20"](place % 20), label=str(label)
                )
            axes.set(title=title, xticks=[], yticks=[])
        if len(np.unique(found.labels)) <= 20:
            handles, names = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, names, loc="outside right center", frameon=False, markerscale=2, title="class")
