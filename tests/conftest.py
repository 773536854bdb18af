"""What all tests share."""

from __future__ import annotations

import os
import signal

# Tests press Ctrl-C in processes that they start. Where the tests themselves run as a background job Ctrl-C is ignored,
# and what is ignored is inherited; a handler is not.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What is printed must not depend on the terminal that the tests were started from.
os.environ.pop("COLUMNS", None)
