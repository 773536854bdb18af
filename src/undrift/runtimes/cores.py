"""How many cores there are to work on. Nothing that one system alone has is needed."""

from __future__ import annotations

import os


def cores() -> int:
    """Cores that this process may use; where a system cannot say that, those of the machine."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed is not None else os.cpu_count() or 1
