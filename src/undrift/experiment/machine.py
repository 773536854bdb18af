"""What the bits of a run depend on besides its description: the versions of what computes, the kind of processor."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch

from undrift.version import version

DECIDING = {"undrift": "undrift", "torch": "torch", "cpu": "a processor of the kind"}  # with their names in a sentence


@cache
def versions() -> dict[str, str]:
    """What computes here."""
    return {
        "undrift": version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "cpu": f"{_processor()} ({torch.backends.cpu.get_cpu_capability()})",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What has changed of that which decides the bits, in words. What was not recorded is not compared."""
    return [
        f"{name} {then[key]} then, {now[key]} now"
        for key, name in DECIDING.items()
        if key in then and then[key] != now[key]
    ]
