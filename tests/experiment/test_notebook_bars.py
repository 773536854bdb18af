"""Progress in a notebook. `tests/notebooks.py` runs it in a real one."""

from __future__ import annotations

from undrift.core.figure import HEADLINE
from undrift.experiment import bars
from undrift.experiment.progress import Progress


def test_outside_a_notebook_nobody_watches_unless_asked() -> None:
    def given(where: Progress) -> None: ...

    assert bars.watcher() is None
    assert bars.watcher(given) is given


def test_a_bar_says_where_a_run_is() -> None:
    where = Progress("Mine <b>", 3, 5, 20, 0.875, 2.0, 5)
    drawn = bars.html([where, where])
    assert HEADLINE.share
    assert drawn.count('<progress value="5" max="20">') == 2
    for words in ("Mine &lt;b&gt;", "seed 3", "round 5 of 20", "87.5 %", "6 s left"):
        assert words in drawn
    assert "%" not in bars.html([Progress("Mine", 3, 0, 20, None, 0.0, 0)])
