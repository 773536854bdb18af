"""Threads that help the one that asks. PyTorch lets go of the interpreter in its kernels, so they compute side by side.

The asking thread works too. Were it to wait for as many threads as there are cores, these would be woken at the same
time, and often on the same core, where they stay for some rounds.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


class _Dropped(BaseException):
    """Raised inside of a helper whose work nobody wants any more."""


class Crew:
    def __init__(self, size: int) -> None:
        """``size``: threads in all, the asking one included."""
        self.size = size
        self._pool = ThreadPoolExecutor(max(1, size - 1), "undrift helper")
        self._busy: set[int] = set()  # threads that may be told to drop what they do
        self._lock = threading.Lock()

    def each(self, work: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]:
        """The results as they come. The first error ends it; whatever ends it early ends the helpers' work as well."""
        waiting = deque(items)
        found: SimpleQueue[Out | Exception] = SimpleQueue()

        def attempt(item: In) -> Out | Exception:
            try:
                return work(item)
            except Exception as error:
                return error

        def help_out() -> None:
            me = threading.get_ident()
            with self._lock:
                self._busy.add(me)
            try:
                while waiting:
                    try:
                        item = waiting.popleft()
                    except IndexError:  # somebody was faster
                        break
                    found.put(attempt(item))
                with self._lock:
                    self._busy.discard(me)
            except _Dropped:
                pass

        left = len(waiting)
        helpers = [self._pool.submit(help_out) for _ in range(min(self.size, left) - 1)]
        try:
            for _ in range(left):
                try:
                    result = attempt(waiting.popleft()) if found.empty() else found.get()
                except IndexError:
                    result = found.get()
                if isinstance(result, Exception):
                    raise result
                yield result
        except BaseException:
            waiting.clear()
            self._drop()
            raise
        finally:
            wait(helpers)

    def _drop(self) -> None:
        """Have helpers stop within an operation: a client's work may take minutes, and Ctrl-C must not."""
        with self._lock:
            for thread in self._busy:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_Dropped))
            self._busy.clear()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
