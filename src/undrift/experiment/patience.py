"""When a run has stopped getting better: so many evaluations without a better figure on the validation data.

It takes figures and counts. What was evaluated before a run was stopped counts too, so that a run that goes on ends
where it would have ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from undrift.core.figure import Figure
from undrift.ledger.history import History


@dataclass
class Patience:
    """``most`` evaluations without a better one are waited for; None: however many."""

    most: int | None = None
    best: float = math.nan
    since: int = 0  # evaluations since the best

    @classmethod
    def of(cls, most: int | None, history: History) -> Patience:
        """After what a run has evaluated so far."""
        found, figure = cls(most), history.chosen_by
        for value in history.curve(figure)[1] if figure else ():
            found.see((figure, value))  # type: ignore[arg-type]
        return found

    @property
    def left(self) -> bool:
        return self.most is None or self.since < self.most

    def see(self, found: tuple[Figure, float] | None) -> bool:
        """One more evaluation: is it the best so far?"""
        if found is None:
            return False
        figure, value = found
        if not math.isnan(value) and (math.isnan(self.best) or figure.improves(value, self.best)):
            self.best, self.since = value, 0
            return True
        self.since += 1
        return False
