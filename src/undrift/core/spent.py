"""What clients spent in rounds: counted where they work, never claimed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Spent:
    """What clients spent: passes in samples, time in seconds, traffic in bytes."""

    gradients: int = 0  # samples that went forward and backward
    forwards: int = 0  # samples that went forward only
    head_gradients: int = 0  # samples that went forward, and backward through the head alone
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0

    def __iadd__(self, other: Spent) -> Spent:
        self.gradients += other.gradients  # spelt out: a round may add thousands
        self.forwards += other.forwards
        self.head_gradients += other.head_gradients
        self.seconds += other.seconds
        self.bytes_up += other.bytes_up
        self.bytes_down += other.bytes_down
        return self
