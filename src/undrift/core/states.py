"""``States``: where what clients keep between rounds is kept.

It belongs to the runtime, not to the loop: in memory, in a ledger, in the objects of a cluster, on a site's own disk. A
new state is *held* until its upload has been accepted, and *committed* then; a lost or rejected upload leaves the old
one. Where the state itself is elsewhere, what is kept here is only which round of the client was accepted last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from undrift.core.optimisers import kind_of
from undrift.core.packing import pack, unpack
from undrift.core.records import Nothing, State
from undrift.core.vector import Buffers


@dataclass(frozen=True)
class Kept:
    """What a client keeps between rounds: the method's state, and buffers where the method does not share them."""

    state: State
    buffers: Buffers | None = None
    round: int = 0  # the round of the upload that it was kept with; 0: before the first that counted

    def tensors(self) -> dict[str, Tensor]:
        found = {f"state.{field.name}": value for field, value in self.state.tensors().items()}
        if self.buffers is not None:
            found |= {"buffers.floats": self.buffers.floats, "buffers.counts": self.buffers.counts}
        return found

    def to(self, device: str) -> Kept:
        """The same on a device."""
        return Kept(self.state.to(device), None if self.buffers is None else self.buffers.to(device), self.round)

    def encode(self) -> bytes:
        return pack(self.tensors(), {"round": self.round})

    @classmethod
    def decode(cls, kind: type[State], data: bytes) -> Kept:
        tensors, header = unpack(data)
        return cls.of(kind, tensors, header.get("round", 0))

    @classmethod
    def of(cls, kind: type[State], tensors: Mapping[str, Tensor], round: int = 0) -> Kept:
        """The inverse of ``tensors``."""
        kind = kind_of(kind, [name.removeprefix("state.") for name in tensors])
        state = kind(**{field.name: tensors[f"state.{field.name}"] for field in kind.schema()})
        kept = "buffers.floats" in tensors
        return cls(state, Buffers(tensors["buffers.floats"], tensors["buffers.counts"]) if kept else None, round)


def elsewhere(round: int) -> Kept:
    """What is kept here of a client that keeps its state itself: the round that was accepted last."""
    return Kept(Nothing(), None, round)


class States(ABC):
    """What clients keep, by client. Subclasses say where."""

    def __init__(self) -> None:
        self._held: dict[int, Kept] = {}

    @abstractmethod
    def load(self, client: int) -> Kept | None:
        """What a client keeps since its last upload that counted; None: none has counted so far."""

    @abstractmethod
    def keep(self, kept: Mapping[int, Kept]) -> None:
        """From now on the clients keep this."""

    def hold(self, client: int, kept: Kept) -> None:
        """What a client will keep should its upload count."""
        self._held[client] = kept

    def commit(self, clients: Iterable[int], round: int) -> None:
        """This is the last round of these clients that counted: they keep what they hold of it, and hold no more."""
        held = {client: self._held.pop(client) for client in clients if client in self._held}
        self.keep({client: kept for client, kept in held.items() if kept.round == round})

    def drop(self) -> None:
        """Forget all that is held: the round came to nothing."""
        self._held.clear()

    def accepted(self, client: int) -> int:
        """The last round of a client that counted; 0: none. Whoever keeps its state elsewhere commits by it."""
        found = self.load(client)
        return 0 if found is None else found.round


class Memory(States):
    """In memory, for as long as the process lives."""

    def __init__(self, kept: Mapping[int, Kept] | None = None) -> None:
        super().__init__()
        self.kept: dict[int, Kept] = dict(kept or {})

    def load(self, client: int) -> Kept | None:
        return self.kept.get(client)

    def keep(self, kept: Mapping[int, Kept]) -> None:
        self.kept.update(kept)
