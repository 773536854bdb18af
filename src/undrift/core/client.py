"""What a client can be asked: to ``survey``, to ``update``, to ``evaluate``. One function does each.

``work`` is the one place where a client's half of a method is called, in process or from bytes (``wire``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.eager import EagerLocal, Trainer
from undrift.core.errors import InvalidInput
from undrift.core.optimisers import joined, parted, remembered
from undrift.core.records import Each, Message, Record, Scalar, Upload, Vector
from undrift.core.reduce import Reply
from undrift.core.stages import Stage, passed_one
from undrift.core.states import Kept
from undrift.core.vector import Buffers

Work = Literal["survey", "update", "evaluate"]


class Candidate(Message):
    """A model that clients are to judge, as it is."""

    x: Vector


class Judged(Upload):
    """What a client says of a model on its own test data: nothing per sample."""

    right: Each[Scalar]  # how many it gets right; 0 where there are no classes
    loss: Each[Scalar]  # the sum of the losses
    count: Each[Scalar]

    def doubt(self, samples: int, steps: int) -> str | None:
        right, count = float(self.right), float(self.count)
        return None if 0 <= right <= count else f"it claims {right:g} of {count:g} right"


def down_kind(method: Method, kind: Work, given: bool = False) -> type[Record]:
    """What goes down for a kind of work; ``given``: the model to judge is sent, and not made from a message."""
    if kind == "evaluate" and given:
        return Candidate
    return method.records()["ask" if kind == "survey" else "down"]


def up_kind(method: Method, kind: Work) -> Any:
    """What comes up for a kind of work."""
    return Judged if kind == "evaluate" else method.records()["survey" if kind == "survey" else "up"]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Client training always runs on one intra-op thread, so that its bits do not depend on the machine's cores."""
    threads = torch.get_num_threads()
    state = torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def local_for(
    method: Method, trainer: Trainer, client: int, round: int, kept: Kept, buffers: Buffers | None
) -> EagerLocal:
    """A client as its method sees it, with the statistics that are shared, or with its own."""
    mine = buffers if method.shares_buffers else kept.buffers
    return trainer.local(client, round, trainer.holding.rows(client), mine)


def work(
    kind: Work, method: Method, down: Message, kept: Kept, local: EagerLocal, stages: Sequence[Stage] = ()
) -> Reply:
    """Run a client's half of an exchange; what it uploads passes the stages."""
    began = time.perf_counter()
    state, buffers = None, None
    with torch.no_grad(), _explained(local.client):
        if kind == "update":
            mine, local.moments = parted(kept.state)
            up, after = _pair(method, method.client_update(down, mine, local))
            state, buffers = _as_declared(method, "client_update", after, method.records()["client"]), local.buffers()
            if local.moments is not None:
                state = joined(state, remembered(local.training), local.moments)
        elif kind == "survey":
            up = method.survey(down, kept.state, local)
        else:
            up = _judged(method, down, kept, local)
        asked = "survey" if kind == "survey" else "client_update"
        up, noted = passed_one(stages, _as_declared(method, asked, up, up_kind(method, kind)), down)
    local.spent.seconds = time.perf_counter() - began
    local.spent.bytes_up = bytes_up(up, buffers if method.shares_buffers else None)
    return Reply(local.client, local.round, up, state, local.n, local.steps, local.spent, buffers, local.notes | noted)


def _pair(method: Method, found: Any) -> tuple[Any, Any]:
    if not isinstance(found, tuple) or len(found) != 2:
        raise InvalidInput(f"{_title(method)}: client_update must return an upload and a state, not {_said(found)}")
    return found


def _as_declared(method: Method, function: str, record: Any, kind: type[Record]) -> Any:
    """A record of tensors, or a sentence to the author of a method that returns something else."""
    if type(record) is not kind:
        raise InvalidInput(f"{_title(method)}: {function} must return a {kind.__name__}, not {_said(record)}")
    for spec, value in record.items():
        if not isinstance(value, Tensor | bool | int | float):
            raise InvalidInput(f"{_title(method)}: {function} returns {_said(value)} as {spec.name}, not a tensor")
    return record.tensors()


def _title(method: Method) -> str:
    return method.title or type(method).__name__


def _said(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def bytes_up(up: Record, shared: Buffers | None) -> int:
    """What goes up: the upload, and the statistics where they are shared."""
    return up.nbytes() + (0 if shared is None else shared.nbytes())


def _judged(method: Method, down: Message, kept: Kept, local: EagerLocal) -> Judged:
    """The model that was sent, or the client's own, on the client's own test data."""
    w = down.x if isinstance(down, Candidate) else method.personal(down, kept.state, local.layout)
    if w is None:
        raise InvalidInput(f"{method.title} has no personal models")
    return Judged(*local.judge(w))


@contextlib.contextmanager
def _explained(client: int) -> Iterator[None]:
    """Say in a sentence what PyTorch says of a batch that batch norm cannot take."""
    try:
        yield
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise InvalidInput(
            f"client {client}: its samples end in a batch of one sample, on which batch norm cannot train: "
            "set drop_last, choose another batch_size, or a model with GroupNorm"
        ) from error
