"""An error of a client's work on its way back from a worker, in another process or on another machine."""

from __future__ import annotations

import pickle


def portable(error: Exception) -> bytes:
    """The error itself where it can travel, else one that says the same."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
        return data
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
