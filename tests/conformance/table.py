"""The conformance table: one row per method. A new method adds a row to one of the files of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """A method under test."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)  # hyper-parameters that all tests use
    training: dict[str, Any] = field(default_factory=dict)  # changes to the usual training settings
    model: str = "global"  # which of the method's models counts; where it has none, the personal ones do

    # Turned off, what is it then? ``off`` are settings on top of ``settings``.
    off: dict[str, Any] | None = None
    equals: str = "fedavg"
    equals_settings: dict[str, Any] = field(default_factory=dict)
    off_training: dict[str, Any] = field(default_factory=dict)
    off_problem: str = "network"
    off_rounds: int = 4
    off_participate: int = 3
    tolerance: float = 0.0  # 0: bit for bit
    always_on: str = ""  # why it has no such settings

    broadcast_depends_on_cohort: bool = False  # then losing a client is not the same as not asking it
    rounds: int = 8  # until the loss has fallen

    def __str__(self) -> str:
        return self.name
