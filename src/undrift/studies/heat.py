"""The heat map of a sweep, drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from undrift.core.errors import InvalidInput
from undrift.core.named import short
from undrift.studies.outcome import Outcome, heat


def heat_map(outcome: Outcome, path: str | Path, *, force: bool = False) -> None:
    """A heat map per method: the best value for each pair of the two most varied settings."""
    from undrift.report.plots import drawing

    maps = {m: found for m in outcome.scores if (found := heat(outcome, m)) is not None}
    if not maps:
        raise InvalidInput("there is nothing to draw a heat map of: no setting has two values")
    share = outcome.sweep.measure != "rounds" and all(np.nanmax(m[4], initial=0) > 0 for m in maps.values())
    scale, unit = (100, "accuracy (%)") if share else (-1, "rounds" if outcome.sweep.measure == "rounds" else "loss")
    every = np.concatenate([scale * found[4].reshape(-1) for found in maps.values()])
    low, high = np.nanmin(every), np.nanmax(every)
    rows = max(len(found[3]) for found in maps.values())
    width = sum(1.0 + 0.55 * len(found[2]) for found in maps.values()) + 1.2
    with drawing(path, max(3.4, width), 1.3 + 0.4 * rows, force) as (figure, _):
        ratios = [1 + len(found[2]) for found in maps.values()]
        panels = figure.subplots(1, len(maps), squeeze=False, width_ratios=ratios)[0]
        for axes, (method, (x, y, columns, lines, values)) in zip(panels, maps.items(), strict=True):
            image = axes.imshow(scale * values, vmin=low, vmax=high, cmap="viridis" if share else "viridis_r")
            axes.set(title=method, xlabel=x, ylabel=y, xticks=range(len(columns)), yticks=range(len(lines)))
            axes.set_xticklabels([short(v) for v in columns], rotation=45, ha="right", rotation_mode="anchor")
            axes.set_yticklabels([short(v) for v in lines])
            axes.grid(visible=False)
            for (i, j), value in np.ndenumerate(scale * values):
                if np.isnan(value):
                    axes.text(j, i, "–", ha="center", va="center")
                    continue
                light = sum(image.cmap(image.norm(value))[:3]) > 1.5
                text = f"{value:.1f}" if share else f"{value:.3g}"
                axes.text(j, i, text, ha="center", va="center", fontsize=7, color="black" if light else "white")
        figure.colorbar(image, ax=list(panels), label=unit, shrink=0.8)
