"""What a site keeps of one run, on its own disk: states, and the replies that they belong to.

``ROUND.kept`` is what the client will keep if its upload of that round counts, ``ROUND.reply`` the reply itself; both
are whole and on the disk before the reply is sent. A task that comes again is answered from here, without work. A task
says which round was accepted last: what is newer never was, and of what is older a few are left, for a coordinator that
was restored from an older copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from undrift.core.records import State
from undrift.core.states import Kept, States
from undrift.deploy.policy import write

LEFT = 4  # states and replies that are left


class Vault(States):
    """The states of the one client of a site. ``latest`` is the highest serial number that a reply was stored for."""

    def __init__(self, folder: Path, kind: type[State]) -> None:
        super().__init__()
        self.folder, self._kind = folder, kind
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unfinished in folder.glob("*.new"):
            unfinished.unlink()
        self._accepted = 0

    def load(self, client: int) -> Kept | None:
        path = self._path(self._accepted, "kept")
        return Kept.decode(self._kind, path.read_bytes()) if self._accepted and path.exists() else None

    def keep(self, kept: Mapping[int, Kept]) -> None:
        for value in kept.values():
            self.hold(0, value)

    def hold(self, client: int, kept: Kept) -> None:
        write(self._path(kept.round, "kept"), kept.encode())

    def commit(self, clients: Iterable[int], round: int) -> None:
        self._accepted = round
        for suffix in ("kept", "reply"):
            held = self._rounds(suffix)
            for old in [r for r in held if r > round] + [r for r in held if r <= round][:-LEFT]:
                self._path(old, suffix).unlink()

    def drop(self) -> None:
        pass  # the next task says what counted

    def store(self, round: int, identity: str, place: tuple[int, int], reply: bytes) -> None:
        """Keep the reply to a task; ``place`` is the task's session and serial number."""
        write(self._path(round, "reply"), f"{identity} {place[0]} {place[1]}\n".encode() + reply)

    def stored(self, round: int, identity: str) -> bytes | None:
        """The reply to the same task, if it was done already."""
        path = self._path(round, "reply")
        if not path.exists():
            return None
        head, _, reply = path.read_bytes().partition(b"\n")
        return reply if head.split()[0] == identity.encode() else None

    def latest(self) -> tuple[int, int]:
        """The session and serial number of the last task whose reply is stored."""
        found = [(0, 0)]
        for round in self._rounds("reply"):
            with self._path(round, "reply").open("rb") as file:
                _, session, serial = file.readline().split()
                found.append((int(session), int(serial)))
        return max(found)

    def held(self) -> list[int]:
        """The rounds of which a state is here."""
        return self._rounds("kept")

    def _rounds(self, suffix: str) -> list[int]:
        return sorted(int(path.stem) for path in self.folder.glob(f"*.{suffix}") if path.stem.isdigit())

    def _path(self, round: int, suffix: str) -> Path:
        return self.folder / f"{round}.{suffix}"
