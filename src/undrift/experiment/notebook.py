"""How curves are drawn in a notebook: a small chart as SVG, in the page's own colours. Knows nothing of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM = 520, 200, 46, 24
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # told apart by everybody

Curve = tuple[Sequence[int], Sequence[float]]  # rounds, values


def chart(curves: Mapping[str, Curve], what: str, share: bool) -> str:
    """Curves over rounds, with a legend; nothing where there is nothing to draw."""
    points = {name: [(r, v) for r, v in zip(*curve, strict=True) if math.isfinite(v)] for name, curve in curves.items()}
    points = {name: found for name, found in points.items() if len(found) > 1}
    if not points:
        return ""
    values = [v for found in points.values() for _, v in found]
    low, high = (0.0, 1.0) if share else (min(values), max(values))
    last = max(found[-1][0] for found in points.values())
    span = (high - low) or 1.0

    def place(r: float, v: float) -> str:
        return f"{LEFT + (WIDTH - LEFT) * r / last:.1f},{(HEIGHT - BOTTOM) * (1 - (v - low) / span):.1f}"

    lines, legend = [], []
    for number, (name, found) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        dashes = ' stroke-dasharray="5 3"' if number >= len(COLOURS) else ""
        path = " ".join(place(r, v) for r, v in found)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        legend.append(f'<span style="color:{colour}">&#9632;</span> {escape(name)}')
    return (
        f'<figure><svg viewBox="0 -8 {WIDTH} {HEIGHT + 8}" width="{WIDTH}" role="img" aria-label="{escape(what)}" '
        'font-size="11" fill="currentColor">'
        f'<path d="M{LEFT} 0V{HEIGHT - BOTTOM}H{WIDTH}" fill="none" stroke="currentColor" opacity="0.5"/>'
        f'<text x="{LEFT - 4}" y="4" text-anchor="end">{_said(high, share)}</text>'
        f'<text x="{LEFT - 4}" y="{HEIGHT - BOTTOM}" text-anchor="end">{_said(low, share)}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">round 0</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{last}</text>{"".join(lines)}</svg>'
        f"<figcaption>{escape(what)}: {', '.join(legend)}</figcaption></figure>"
    )


def _said(value: float, share: bool) -> str:
    return f"{100 * value:.0f} %" if share else f"{value:.3g}"
