"""What a notebook shows of a run and of a comparison."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import undrift
from undrift.experiment.notebook import chart


def test_a_result_shows_its_figures_its_costs_and_its_curve() -> None:
    result = undrift.run("fedprox", clients=4, rounds=3, seed=1)
    html = result._repr_html_()
    assert f"{100 * result.accuracy:.1f} %" in html
    assert f"{sum(row.bytes_up for row in result.history.rounds):,}" in html
    points = re.search(r'points="([^"]+)"', html)
    assert points is not None
    assert len(points[1].split()) == 3
    ElementTree.fromstring(f"<div>{html}</div>")  # whole


def test_a_comparison_shows_its_table_its_verdict_and_a_curve_of_each_method() -> None:
    compared = undrift.compare(["fedavg", "fedtrip:mu=0.1"], seeds=1, clients=4, rounds=3, side_by_side=1)
    html = compared._repr_html_()
    assert html.count("<polyline") == 2
    assert "FedTrip (mu=0.1)" in html.split("<figcaption>")[1]
    assert compared.lines()[1][0].split(" ")[0] in html


def test_a_chart_has_a_legend_and_leaves_out_what_is_no_number() -> None:
    drawn = chart({"<one>": ([1, 2, 3], [0.1, math.nan, 0.3]), "none": ([1], [0.5])}, "accuracy", True)
    assert "&lt;one&gt;" in drawn
    assert "<polyline" in drawn
    assert "nan" not in drawn
    assert chart({"none": ([1], [0.5])}, "accuracy", True) == ""
