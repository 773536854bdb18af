"""A worker process: it holds the model's code, sees the data in shared memory, and does what it is told.

It knows nothing of other workers, of the server or of rounds gone by. It ends when its parent ends, in whatever way.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import traceback
from multiprocessing import connection, parent_process
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, cast

import torch
from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.client import down_kind, local_for, work
from undrift.core.federation import Federation, Rows
from undrift.core.records import State
from undrift.core.states import Kept
from undrift.core.vector import Buffers
from undrift.core.wire import take_apart
from undrift.runtimes.failure import portable
from undrift.runtimes.memory import Segment, keep_freed_memory, room, signature_of

Delivery = tuple[int, dict[str, Tensor], dict[str, Any]]  # number of the item, tensors, header


def main(conn: Any, number: int) -> None:
    """Serve until the parent hangs up."""
    # Ctrl-C is the parent's to handle. The mask that a worker starts with is not enough: Python's resource tracker,
    # when it is started on the way, unblocks the signal again.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    torch.set_num_threads(1)
    keep_freed_memory()
    with contextlib.suppress(EOFError, ConnectionError):
        Worker(conn, number).serve()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Worker:
    def __init__(self, conn: Any, number: int) -> None:
        self.conn, self.number = conn, number
        self.segments: dict[str, Segment] = {}
        self.outboxes: list[Segment | None] = [None, None]  # written in turn: the parent may still read the other
        self.turn = 0
        self.federation: Federation
        self.exchange: dict[str, Any] = {}

    def serve(self) -> None:
        while True:
            kind, *rest = self.conn.recv()
            getattr(self, f"on_{kind}")(*rest)

    def on_segment(self, name: str, size: int) -> None:
        self.segments[name] = Segment(size, recv_handle(self.conn))

    def on_setup(self, payload: bytes, data: Any) -> None:
        values = pickle.loads(payload)
        layout = values.pop("layout")
        tensors = self.segments["data"].read(0, data)
        for name in ("indices", "offsets", "public", "scoring"):
            values[name] = tensors[name].numpy() if name in tensors else None
        if "test.x" in tensors:
            indices, offsets = (tensors[f"test.{name}"].numpy() for name in ("indices", "offsets"))
            values["test"] = Rows(tensors["test.x"], tensors["test.y"], indices, offsets)
        self.federation = Federation(x=tensors["x"], y=tensors["y"], **values)
        self.federation.__dict__["layout"] = layout  # the parent has looked at the model already
        self.trainer = self.federation.trainer()
        self.board = self.segments["board"].read(0, (("board", "int64", (self.number + 1,)),))["board"].numpy()
        self.conn.send(("ready",))

    def on_exchange(self, header: dict[str, Any]) -> None:
        """What the items of this exchange have in common."""
        self.exchange = header
        method: Method = pickle.loads(header["method"])
        kinds = method.records()
        inbox = self.segments["inbox"]
        self.method, self.kind = method, cast(type[State], kinds["client"])
        self.down: Any = down_kind(method, header["kind"], header["given"]).of(inbox.read(*header["down"]))
        self.buffers = Buffers.of(inbox.read(*header["buffers"])) if header["buffers"] else None

    def on_clients(self, items: list[tuple[int, int, int, int]]) -> None:
        """Work for some clients: each as place in the cohort, client, and where what it keeps lies."""
        header = self.exchange
        done: list[Delivery] = []
        for place, client, offset, signature in items:
            self.board[self.number] = place
            kept = Kept.of(self.kind, self.segments["inbox"].read(offset, header["signatures"][signature]))
            local = local_for(self.method, self.trainer, client, header["round"], kept, self.buffers)
            try:
                reply = work(header["kind"], self.method, self.down.row(place), kept, local, header["stages"])
            except Exception as error:
                where = f"step {local.drawn} of {local.steps}, {local.n} samples"
                self.conn.send(("error", place, portable(error), f"{where}\n{traceback.format_exc()}"))
                return
            done.append((place, *take_apart(reply)))
        self.send(done)

    def on_map(self, function: bytes, shared: Any, items: list[tuple[int, Any]]) -> None:
        """A function of the federation, shared tensors and an item, for some items."""
        call = pickle.loads(function)
        tensors: dict[str, Tensor] = {}
        for name, offset, signature in shared:
            tensors |= self.segments[name].read(offset, signature)
        done: list[Delivery] = []
        for place, item in items:
            self.board[self.number] = place
            try:
                with torch.no_grad():
                    done.append((place, call(self.federation, tensors, item), {}))
            except Exception as error:
                self.conn.send(("error", place, portable(error), traceback.format_exc()))
                return
        self.send(done)

    def send(self, done: list[Delivery]) -> None:
        """Put tensors into the outbox whose turn it is, and say where they are."""
        signatures = [signature_of(tensors) for _, tensors, _ in done]
        needed = sum(map(room, signatures))
        box = self.outboxes[self.turn]
        if box is None or box.size < needed:
            box = self.outboxes[self.turn] = Segment(needed)
            self.conn.send(("outbox", self.turn, box.size))
            send_handle(self.conn, box.fd, os.getppid())
        offset, where = 0, []
        for (place, tensors, header), signature in zip(done, signatures, strict=True):
            box.write(offset, tensors)
            where.append((place, offset, signature, header))
            offset += room(signature)
        self.conn.send(("done", self.turn, where))
        self.turn = 1 - self.turn
