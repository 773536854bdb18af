"""A process that performs runs of a study: ``python -m undrift.studies.worker``, started by ``Crew`` alone."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from dataclasses import asdict
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

OFTEN = 0.2  # seconds between two words on the progress of a run


class Told:
    """Lines to the parent."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w")
        self._lock, self._last = Lock(), 0.0

    def say(self, **message: Any) -> None:
        with self._lock:
            self._pipe.write(json.dumps(message) + "\n")
            self._pipe.flush()

    def seldom(self, last: bool, **message: Any) -> None:
        """What may be left out where there is much of it."""
        now = time.monotonic()
        if last or now - self._last >= OFTEN:
            self._last = now
            self.say(**message)


def listen(orders: SimpleQueue[dict[str, Any]]) -> None:
    """Hand on what the parent wants done. Where its pipe ends it has nothing more to say, or is no more."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    os._exit(0)  # at once, whatever is under way: rounds are recorded in transactions


def stopped(signum: int, frame: Any) -> None:
    raise KeyboardInterrupt  # so that the run is recorded as stopped


def main() -> None:
    signal.signal(signal.SIGTERM, stopped)
    told = Told(os.dup(1))
    os.dup2(2, 1)  # whatever else is printed does not go to the parent
    orders: SimpleQueue[dict[str, Any]] = SimpleQueue()
    Thread(target=listen, args=(orders,), daemon=True, name="parent").start()
    try:
        _work(told, orders)
    except KeyboardInterrupt:
        os._exit(130)


def _work(told: Told, orders: SimpleQueue[dict[str, Any]]) -> None:
    import torch

    from undrift.studies.crew import place_of
    from undrift.studies.jobs import Observer, Queued, perform

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)  # they would come once per worker
    place = place_of(orders.get())
    observer = Observer(
        watch=lambda where: told.seldom(where.round >= where.rounds, progress=asdict(where)),
        within=lambda where: told.seldom(False, within=asdict(where)),
    )
    while True:
        done = perform(Queued(**orders.get()), place, observer, workers=1)
        told.say(done=asdict(done))


if __name__ == "__main__":
    main()
