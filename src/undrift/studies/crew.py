"""The processes that work off a queue of runs. They end with the one that started them, however that ends.

A worker is a fresh interpreter with a pipe to it: JSON lines down (what to run), JSON lines up (rounds, and what is
done). Its input ends when its parent does, be it killed, and then it ends too. Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

from undrift.core.figure import Figure
from undrift.experiment.progress import Progress, Within
from undrift.studies.jobs import Done, Observer, Place, Queued

PATIENCE = 5.0  # seconds that a worker is given to end by itself


class Crew:
    """A few workers. Leaving the context ends them, within seconds and whatever they do."""

    def __init__(self, count: int, place: Place) -> None:
        self._count, self._place = count, place
        self._workers: list[_Worker] = []
        self._heard: SimpleQueue[tuple[_Worker, dict[str, Any] | None]] = SimpleQueue()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.wait()

    def work_off(self, queue: Sequence[Queued], observer: Observer) -> Iterator[Done]:
        """The runs as they are done, in whichever order that is."""
        waiting = deque(queue)
        for _ in range(min(self._count, len(waiting))):
            self._start().give(waiting.popleft())
        busy = len(self._workers)
        while busy:
            worker, message = self._heard.get()
            if message is None:  # its pipe has ended, and it with it
                busy -= 1
                if worker.item is not None:
                    yield Done(worker.item.name, worker.died())
                if waiting:
                    self._start().give(waiting.popleft())
                    busy += 1
            elif "done" in message:
                done = Done(**message["done"])
                if waiting:
                    worker.give(waiting.popleft())
                else:
                    worker.dismiss()
                yield done
            else:
                _pass_on(message, observer)

    def _start(self) -> _Worker:
        worker = _Worker(self._place, self._heard)
        self._workers.append(worker)
        return worker


def _pass_on(message: dict[str, Any], observer: Observer) -> None:
    if "progress" in message and observer.watch is not None:
        told = message["progress"]
        observer.watch(Progress(**{**told, "figure": Figure(**told["figure"])}))
    elif "within" in message and observer.within is not None:
        observer.within(Within(**message["within"]))


class _Worker:
    """One process, as its parent sees it."""

    def __init__(self, place: Place, heard: SimpleQueue[Any]) -> None:
        self.item: Queued | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "undrift.studies.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        self._send({"ledger": str(place.ledger), "root": None if place.root is None else str(place.root)})
        self._listener = Thread(target=self._listen, args=(heard,), daemon=True, name="undrift study")
        self._listener.start()

    def _listen(self, heard: SimpleQueue[Any]) -> None:
        pipe: IO[str] | None = self._process.stdout
        assert pipe is not None
        with pipe, contextlib.suppress(ValueError, OSError):  # a line cut short, or a pipe closed on the way out
            for line in pipe:
                heard.put((self, json.loads(line)))
        heard.put((self, None))

    def give(self, item: Queued) -> None:
        self.item = item
        self._send(asdict(item))

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has died: its end of the other pipe says so
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """There is nothing left to do."""
        self.item = None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def died(self) -> str:
        code = self._process.wait()
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        why = ", perhaps for want of memory" if code == -9 else ""
        return f"its process ended {how}{why}; the same command goes on where it stopped"

    def end(self) -> None:
        """Have it stop, if it is at work; what it has recorded stays."""
        if self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(PATIENCE)
        self.dismiss()


def place_of(message: dict[str, Any]) -> Place:
    """Where a worker is told to work."""
    return Place(Path(message["ledger"]), message["root"])
