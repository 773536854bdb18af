"""What all tests share."""

from __future__ import annotations

import os
import signal

import pytest

# Tests press Ctrl-C in processes that they start. Where the tests themselves run as a background job Ctrl-C is ignored,
# and what is ignored is inherited; a handler is not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What is printed must not depend on the terminal that the tests were started from.
os.environ.pop("COLUMNS", None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """``UNDRIFT_FAULTS=10``: of the tests marked ``faults`` every tenth, spread over the files. For continuous runs."""
    share = int(os.environ.get("UNDRIFT_FAULTS", "1"))
    faults = [item for item in items if item.get_closest_marker("faults")]
    left_out = set(faults) - set(faults[:: max(share, 1)])
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
