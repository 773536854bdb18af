"""Pictures for papers: curves, bars, boxes, partitions, features. Draws what histories and partitions hold, no more.

Needs Matplotlib (``pip install 'undrift[report]'``); nothing here opens a window.
"""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.analysis.comparison import comparison
from undrift.analysis.curves import smoothed
from undrift.analysis.groups import Group, grouped
from undrift.core.errors import InvalidInput
from undrift.core.files import written
from undrift.data import Partition
from undrift.ledger.history import History
from undrift.report import words
from undrift.report.clients import class_names, client_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "pdf", "svg")
KINDS = ("curves", "series", "bars", "partition", "box", "tsne")

# Okabe and Ito's colours, told apart by colour-blind readers, then darker and lighter ones for more methods.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C6D31", "#444444", "#B40426",
    "#2A9D8F", "#6A994E", "#A44A3F", "#3D5A80", "#BC6C25", "#8338EC", "#C9184A", "#4D908E", "#577590", "#90A955",
)  # fmt: skip
WIDTH = 5.2  # inches: a column of a paper
LINE = 0.17  # inches of a line of a legend
LETTERS = 68  # of a legend's text that fit into the width, beside the stroke
SHOWN = 100  # clients of a partition: more would be a smear, so evenly spaced ones are drawn, and it is said
_DASHES = ("-", "--", "-.", ":")
AXES = {
    "rounds": "round",
    "bytes": "traffic, up and down",
    "macs": "client compute",
    "seconds": "time",
}


def style(place: int) -> tuple[str, str]:
    """Colour and line style of the method in this place of a legend."""
    return COLOURS[place % len(COLOURS)], _DASHES[place // len(COLOURS) % len(_DASHES)]


def check_format(path: str | Path) -> str:
    """The format that the ending of a file asks for."""
    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in FORMATS:
        raise InvalidInput(f"{path}: pictures are written as {', '.join('.' + f for f in FORMATS)}")
    return kind


@contextlib.contextmanager
def drawing(path: str | Path, width: float, height: float, force: bool) -> Iterator[tuple[Figure, Any]]:
    """A figure in the papers' sizes (inches), written to ``path`` when the block ends well."""
    kind = check_format(path)
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidInput("pictures need Matplotlib: pip install 'undrift[report]'") from None
    settings: Any = {
        "font.size": 9,
        "axes.titlesize": 9,
        "axes.labelsize": 9,
        "legend.fontsize": 8,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.5,
        "lines.linewidth": 1.4,
        "pdf.fonttype": 42,  # text stays text in PDF and SVG
        "svg.fonttype": "none",
        "svg.hashsalt": "undrift",
        "text.parse_math": False,  # a $ in a name is a $
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, mpl
        metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
        with written(path, force=force) as temporary:
            figure.savefig(temporary, format=kind, dpi=200, metadata=metadata)


# --- partitions -------------------------------------------------------------------------------------------------------


def partition_picture(
    partition: Partition,
    labels: NDArray[np.int64],
    classes: int,
    path: str | Path,
    style: str = "bubbles",
    *,
    force: bool = False,
) -> None:
    """Who holds what, as in the papers: a bubble per client and class, or a stacked bar per client."""
    counts = partition.histogram(np.asarray(labels).astype(np.int64), classes)
    clients = None if partition.names is None else [str(name) for name in partition.names]
    histogram_picture(counts, path, style, clients=clients, force=force)


def histogram_picture(
    histogram: NDArray[np.int64],
    path: str | Path,
    style: str = "bubbles",
    *,
    clients: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    force: bool = False,
) -> None:
    """The picture of a table of counts, one row per client, one column per class, with their names where known."""
    if style not in ("bubbles", "bars"):
        raise InvalidInput(f"partition picture {style!r}: one of bubbles, bars")
    chosen = np.unique(np.linspace(0, len(histogram) - 1, min(len(histogram), SHOWN)).round().astype(np.int64))
    shown, kinds = histogram[chosen], classes or [str(k) for k in range(histogram.shape[1])]
    width = min(10.0, max(3.4, 1.2 + 0.16 * len(shown)))
    height = min(8.0, max(2.4, 1.1 + 0.2 * len(kinds))) if style == "bubbles" else 2.8
    with drawing(path, width, height + (0.6 if clients else 0), force) as (figure, mpl):
        axes = figure.subplots()
        if style == "bubbles":
            _bubbles(axes, shown, kinds, 72 * min((width - 1) / len(shown), (height - 0.9) / len(kinds)))
        else:
            _stacked(figure, axes, mpl, shown, kinds)
        _client_axis(axes, mpl, chosen, len(histogram), clients)


def _bubbles(axes: Axes, shown: NDArray[np.int64], classes: Sequence[str], room: float) -> None:
    client, label = np.nonzero(shown)
    counts = shown[client, label]
    axes.scatter(client, label, s=(1.25 * room) ** 2 * counts / max(1, shown.max()), c=COLOURS[0], linewidths=0)
    axes.set(ylabel="class", ylim=(-0.7, len(classes) - 0.3), xlim=(-0.7, len(shown) - 0.3))
    ticks = range(0, len(classes), max(1, len(classes) // 20))
    axes.set_yticks(ticks, [classes[k] for k in ticks])
    axes.set_title(f"largest bubble: {int(shown.max())} samples")
    axes.set_axisbelow(True)


def _stacked(figure: Figure, axes: Axes, mpl: Any, shown: NDArray[np.int64], classes: Sequence[str]) -> None:
    bottom = np.zeros(len(shown))
    for k, name in enumerate(classes):
        colour = mpl.colormaps["tab20"](k % 20)
        axes.bar(np.arange(len(shown)), shown[:, k], bottom=bottom, width=0.9, color=colour, label=name)
        bottom = bottom + shown[:, k]
    axes.set(ylabel="samples", xlim=(-0.7, len(shown) - 0.3))
    axes.grid(axis="x", visible=False)
    if len(classes) <= 20:
        figure.legend(title="class", loc="outside right center", frameon=False, reverse=True)


def _client_axis(axes: Axes, mpl: Any, chosen: NDArray[np.int64], clients: int, names: Sequence[str] | None) -> None:
    """The clients along the bottom: their names where they have some, else their numbers."""
    few = len(chosen) < clients
    axes.set_xlabel("client" + (f" ({len(chosen)} of {clients})" if few else ""))
    if names:
        ticks = range(0, len(chosen), max(1, len(chosen) // 25))
        shown = [textwrap.shorten(names[chosen[i]], 20, placeholder="…") for i in ticks]
        axes.set_xticks(ticks, shown, rotation=40, ha="right", rotation_mode="anchor")
    elif few:
        axes.set_xticks([0, len(chosen) - 1], ["0", str(clients - 1)])
    else:
        axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(integer=True))


# --- curves -----------------------------------------------------------------------------------------------------------


def horizontal(group: Group, axis: str) -> NDArray[np.float64]:
    """Mean cumulative cost at the rounds of a group's mean curve."""
    if axis == "bytes":
        return np.asarray((group.costs("bytes_up") + group.costs("bytes_down")).mean(axis=0))
    return np.asarray(group.costs(axis).mean(axis=0))


def curves(
    histories: Sequence[History],
    path: str | Path,
    *,
    axis: str = "rounds",
    smooth: float = 0.0,
    target: float | None = None,
    force: bool = False,
) -> None:
    """The headline figure against rounds, bytes, operations or seconds: mean over seeds, band of one s.d."""
    if axis not in AXES:
        raise InvalidInput(f"axis {axis!r}: one of {', '.join(AXES)}")
    if not 0 <= smooth < 1:
        raise InvalidInput(f"smooth = {smooth:g}: it must be a number in [0, 1)")
    groups = _groups(histories)
    columns, rows = legend_shape([group.label for group in groups])
    with drawing(path, WIDTH, 3.2 + LINE * rows, force) as (figure, mpl):
        axes = figure.subplots()
        share = groups[0].figure.share
        for place, group in enumerate(groups):
            colour, dash = style(place)
            x, scale = horizontal(group, axis), 100 if share else 1
            y = smoothed(group.values.mean(axis=0), smooth) * scale
            axes.plot(
                x, y, color=colour, linestyle=dash, label=folded(group.label), marker="." if len(x) < 15 else None
            )
            if len(group.runs) > 1:
                spread = smoothed(group.values.std(axis=0, ddof=1), smooth) * scale
                axes.fill_between(x, y - spread, y + spread, color=colour, alpha=0.15, linewidth=0)
        if target is not None:
            axes.axhline((100 if share else 1) * target, color="0.4", linewidth=0.8, linestyle=(0, (4, 3)))
        unit = " (%)" if share else ""
        axes.set(
            ylabel=f"{_metric(groups)}{unit}, {groups[0].figure.model} model, {groups[0].figure.place}",
            xlabel=AXES[axis] + (f"; smoothed, factor {smooth:g}" if smooth else ""),
        )
        if axis != "rounds":
            column = {"bytes": "bytes_up"}.get(axis, axis)
            axes.xaxis.set_major_formatter(mpl.ticker.FuncFormatter(lambda v, _: words.cost(column, v)))
            axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
        figure.legend(loc="outside lower center", ncols=columns, frameon=False)


def folded(label: str) -> str:
    """A label on as many lines as the width of a picture asks for."""
    return "\n".join(textwrap.wrap(label, LETTERS)) or label


def legend_shape(labels: Sequence[str]) -> tuple[int, int]:
    """Columns of a legend that fit beside each other, and the lines of text that it has."""
    longest = max(len(line) for label in labels for line in folded(label).splitlines())
    columns = max(1, min(3, len(labels), int(LETTERS // (longest + 6))))
    tallest = max(folded(label).count("\n") + 1 for label in labels)
    return columns, math.ceil(len(labels) / columns) * tallest


def bars(histories: Sequence[History], path: str | Path, *, target: float | None = None, force: bool = False) -> None:
    """Rounds to the target, one bar per method, fewest first; what was not reached is said, not drawn."""
    found = comparison(histories, target)
    if found.target is None:
        raise InvalidInput("rounds-to-target bars need a target: give --target, or runs with an accuracy")

    def order(row: Any) -> float:
        value = row.costs["rounds"].value if row.costs else None
        return math.inf if value is None else value

    rows = sorted(found.rows, key=order, reverse=True)
    places = {row.label: i for i, row in enumerate(found.rows)}
    with drawing(path, 5.2, 0.9 + 0.3 * len(rows), force) as (figure, _):
        axes = figure.subplots()
        for y, row in enumerate(rows):
            cost = row.costs.get("rounds")
            if cost is None or cost.value is None:
                axes.annotate(f"not reached in {row.group.rounds}", (0, y), (4, 0), textcoords="offset points",
                              va="center", fontsize=8, color="0.35")  # fmt: skip
                continue
            axes.barh(y, cost.value, color=style(places[row.label])[0], height=0.7)
            ratio = f" ({words.times(cost.ratio.value)})" if cost.ratio is not None else ""
            axes.annotate(f"{words.rounds(cost.value)}{ratio}", (cost.value, y), (3, 0), textcoords="offset points",
                          va="center", fontsize=8)  # fmt: skip
            own = [v for v in cost.per_seed if v is not None]
            if len(own) > 1:
                axes.plot(own, [y] * len(own), "|", color="0.15", markersize=5)
        axes.set_yticks(range(len(rows)), [textwrap.fill(row.label, 28) for row in rows])
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.18)
        axes.set(
            xlabel=f"rounds to {words.target_words(found.target, found.figure)} (mean curve; ticks: each seed)",
            xlim=(0, None),
            ylim=(-0.6, len(rows) - 0.4),
        )


def box(histories: Sequence[History], path: str | Path, *, last: int = 10, force: bool = False) -> None:
    """The spread of the headline figure over the last rounds, all seeds together."""
    groups = _groups(histories)
    share = groups[0].figure.share
    with drawing(path, max(3.4, 1.2 + 0.45 * len(groups)), 3.2, force) as (figure, _):
        axes = figure.subplots()
        values = [(100 if share else 1) * group.values[:, -last:].reshape(-1) for group in groups]
        boxes = axes.boxplot(
            [v[~np.isnan(v)] for v in values],
            tick_labels=[textwrap.fill(g.label, 24) for g in groups],
            patch_artist=True,
            widths=0.6,
        )
        for place, patch in enumerate(boxes["boxes"]):
            patch.set(facecolor=style(place)[0], alpha=0.55)
        for line in boxes["medians"]:
            line.set_color("black")
        for label in axes.get_xticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor")
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(f"{_metric(groups)}{' (%)' if share else ''}, last {last} evaluations")


def partition(histories: Sequence[History], path: str | Path, *, style: str = "bubbles", force: bool = False) -> None:
    """Who holds what in the first of the runs."""
    first = histories[0]
    counts = first.facts.get("histogram")
    if counts is None:
        raise InvalidInput(
            f"run {first.name!r} has no class counts: its data have no classes, or there are more than 500 clients"
        )
    histogram = np.array(counts, np.int64)
    clients = client_names(first.facts, range(len(histogram))) if first.facts.get("client_names") else None
    classes = class_names(first.facts, histogram.shape[1])
    histogram_picture(histogram, path, style, clients=clients, classes=classes, force=force)


def _metric(groups: Sequence[Group]) -> str:
    return words.metric(groups[0].figure, groups[0].runs[0].facts)


def _groups(histories: Sequence[History]) -> list[Group]:
    groups, _ = grouped(histories)
    if not groups:
        raise InvalidInput("there is nothing to draw: none of the runs has an evaluated round")
    metrics = {group.figure.share for group in groups}
    if len(metrics) > 1:
        raise InvalidInput("some of the runs have an accuracy and some only a loss: draw them apart")
    return groups
