"""Write the table of docs/methods.md from what the methods declare. A test sees that it is fresh.

python docs/catalogue.py
"""

from __future__ import annotations

from pathlib import Path

from undrift import InvalidInput, Uploads, algorithms
from undrift.core.algorithm import Algorithm
from undrift.core.plugins import is_reference

PAGE = Path(__file__).parent / "methods.md"
BEGIN, END = "<!-- methods -->\n", "<!-- /methods -->"
HEAD = (
    "| method | kept by a client | more down | more up | more compute | personal models | clipping | local momentum |"
)


def formula(*terms: str) -> str:
    """What is on top of FedAvg, in code; a dash where nothing is."""
    found = [f"`{term}`" for term in terms if term != "0"]
    return " + ".join(found) or "–"


def clips(method: type[algorithms.Method]) -> bool:
    """Do its uploads say what their update is, so that stages can work on it?"""
    try:
        Uploads(clip=1.0).fit(method)
    except InvalidInput:
        return False
    return True


def row(name: str, method: type[algorithms.Method]) -> str:
    cost = method.cost
    cells = [
        f"[{method.title}](algorithms/{name}.md)",
        formula(cost.kept),
        formula(cost.down),
        formula(cost.up),
        formula(cost.gradients, cost.forwards, cost.head_gradients),
        "yes" if method.personal is not Algorithm.personal else "–",
        "yes" if clips(method) else "–",
        "–" if method.refuses_momentum else "yes",
    ]
    return f"| {' | '.join(cells)} |"


def filled(text: str) -> str:
    """The page with its table made anew."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    rows = [row(name, method) for name, method in algorithms.algorithms().items() if not is_reference(name)]
    return "\n".join([before + BEGIN, HEAD, "|---" * HEAD.count(" | ") + "|---|", *rows, "\n" + END + after])


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
