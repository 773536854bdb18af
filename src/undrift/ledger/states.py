"""What clients keep, in the ledger: read when asked for, written in the transaction of the round that it belongs to."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from undrift.core.records import State
from undrift.core.states import Kept, States
from undrift.ledger.rows import Run
from undrift.ledger.store import Ledger

LIMIT = 256 << 20  # bytes of states that stay in memory


class LedgerStates(States):
    """The most recent states also stay in memory, up to a limit; one that is not yet committed always does."""

    def __init__(self, ledger: Ledger, run: Run, kind: type[State], device: str = "cpu", rounds: bool = False) -> None:
        """``rounds``: clients keep their states themselves; what is kept here is which round was accepted last."""
        super().__init__()
        self._ledger, self._run, self._kind, self._device, self._rounds = ledger, run, kind, device, rounds
        self._recent: dict[int, tuple[Kept, int]] = {}  # with its size; the one kept last stands last
        self._new: dict[int, Kept] = {}  # what the ledger has not been given yet
        self._bytes = 0
        self._lock = threading.Lock()  # clients work in threads, and share one connection

    def load(self, client: int) -> Kept | None:
        found = self._recent.get(client)
        if found is not None:
            return found[0]
        with self._lock:
            kept = self._ledger.kept(self._run, client)
        if kept is None:
            return None
        tensors, header = kept
        return Kept.of(self._kind, tensors, header.get("round", 0)).to(self._device)

    def keep(self, kept: Mapping[int, Kept]) -> None:
        for client, value in kept.items():
            size = sum(t.nbytes for t in value.tensors().values())
            if not (size or self._rounds):
                continue  # a method whose clients keep nothing
            self._new[client] = value
            self._bytes += size - self._recent.pop(client, (value, 0))[1]
            self._recent[client] = (value, size)
        self._evict()

    def unwritten(self) -> dict[int, Kept]:
        """What has been committed since the last time, for the transaction of the round."""
        new, self._new = self._new, {}
        return new

    def _evict(self) -> None:
        """Make room. What the file does not hold yet, because its transaction is under way or to come, stays."""
        written = self._ledger.committed(self._run)
        while self._bytes > LIMIT and self._recent:
            client, (kept, size) = next(iter(self._recent.items()))
            if kept.round > written:
                return
            del self._recent[client]
            self._bytes -= size
