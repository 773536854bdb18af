"""What a Ray worker does: clients' work, or items of a ``map``. It keeps the last federation and exchange it was given.

It does not import Ray but to fetch what it has not seen yet, and knows nothing of rounds gone by.
"""

from __future__ import annotations

import pickle
import platform
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.client import Work, down_kind, local_for, one_thread, work
from undrift.core.cohort import Cohort
from undrift.core.eager import Trainer
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation, Rows
from undrift.core.partial import added_up, part
from undrift.core.records import Message, State
from undrift.core.reduce import Partial, Reply
from undrift.core.runtime import Task, expecting
from undrift.core.stages import Carried, Uploads
from undrift.core.states import Kept
from undrift.core.vector import Buffers
from undrift.core.wire import take_apart
from undrift.runtimes.failure import portable
from undrift.version import version

Arrays = dict[str, NDArray[Any]]
Failed = tuple[int, bytes, str]  # at which place, the error, and where in the work
Places = list[tuple[int, int]]  # in the cohort, and the client there
Facts = dict[str, Any]
Results = tuple[list[tuple[int, Arrays, dict[str, Any]]], Failed | None]


WORDS = {"module": "the model", "loss": "the loss", "augment": "the augmentation", "rest": "the settings"}


@dataclass(frozen=True)
class Setup:
    """A federation as it travels, once to each node."""

    key: str
    versions: dict[str, str]
    code: dict[str, bytes]
    rows: Arrays
    device: str


@dataclass(frozen=True)
class Exchange:
    """What the clients of an exchange have in common."""

    method: bytes
    kind: Work
    given: bool
    round: int
    down: Arrays
    buffers: Arrays | None
    cohort: Facts  # what else is known of it: how clients weigh, and the learning rate
    uploads: Uploads
    carried: Carried


def versions() -> dict[str, str]:
    """What has to be the same on all nodes."""
    return {"undrift": version(), "torch": torch.__version__, "Python": platform.python_version()}


def compare(here: Mapping[str, str], there: Mapping[str, str], node: str) -> None:
    """Refuse a node whose versions differ."""
    other = [
        f"{name} {there.get(name, 'missing')} (here {here[name]})" for name in here if here[name] != there.get(name)
    ]
    if other:
        raise InvalidInput(
            f"the node {node} has {', '.join(other)}: install the same versions on all nodes, because results "
            "depend on them"
        )


def arrays_of(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}


def tensors_of(arrays: Arrays, device: str, copy: bool = True) -> dict[str, Tensor]:
    """Tensors of arrays; without ``copy`` they lie where Ray has the arrays, and nobody may write to them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        found = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return {name: (tensor.clone() if copy else tensor).to(device) for name, tensor in found.items()}


_FEDERATIONS: dict[Any, tuple[Federation, Trainer]] = {}  # one at a time
_EXCHANGES: dict[Any, Task] = {}


def _last(cache: dict[Any, Any], ref: Any, make: Callable[[Any], Any]) -> Any:
    """What belongs to a reference, made once; only the last is kept."""
    if ref not in cache:
        import ray

        value = make(ray.get(ref))
        cache.clear()
        cache[ref] = value
    return cache[ref]


def _federation(setup: Setup) -> tuple[Federation, Trainer]:
    compare(setup.versions, versions(), platform.node())
    torch.set_num_threads(1)
    values = {name: _loaded(data, WORDS[name]) for name, data in setup.code.items()}
    values |= values.pop("rest")
    layout = values.pop("layout")
    rows = tensors_of(setup.rows, setup.device, copy=False)
    for name in ("indices", "offsets", "public", "scoring"):
        values[name] = rows[name].cpu().numpy() if name in rows else None
    if "test.x" in rows:
        indices, offsets = (rows[f"test.{name}"].cpu().numpy() for name in ("indices", "offsets"))
        values["test"] = Rows(rows["test.x"], rows["test.y"], indices, offsets)
    federation = Federation(x=rows["x"], y=rows["y"], **values)
    federation.__dict__["layout"] = layout  # the driver has looked at the model already
    return federation, federation.trainer()


def _exchange(exchange: Exchange) -> Task:
    method: Method = _loaded(exchange.method, "the method")
    down = down_kind(method, exchange.kind, exchange.given).of(tensors_of(exchange.down, _device(), copy=False))
    buffers = None if exchange.buffers is None else Buffers.of(tensors_of(exchange.buffers, _device(), copy=False))
    (federation, _), *_ = _FEDERATIONS.values()
    cohort = Cohort(round=exchange.round, population=federation.population, seed=federation.seed, **exchange.cohort)
    return Task(
        method, cast(Message, down), cohort, buffers, exchange.kind, uploads=exchange.uploads, carried=exchange.carried
    )


def _device() -> str:
    (federation, _), *_ = _FEDERATIONS.values()
    return str(federation.x.device)


class _Failure(Exception):
    """The work for a client went wrong: at which place, and where in the work."""

    def told(self) -> Failed:
        place, where = self.args
        assert isinstance(self.__cause__, Exception)
        return place, portable(self.__cause__), f"{where}\n{''.join(traceback.format_exception(self.__cause__))}"


def _answers(task: Task, trainer: Trainer, places: Places, kept: Sequence[Arrays]) -> Iterator[tuple[int, Reply]]:
    """What the clients at these places answer, one by one."""
    kind = cast(type[State], task.method.records()["client"])
    for (place, client), arrays in zip(places, kept, strict=True):
        mine = Kept.of(kind, tensors_of(arrays, _device(), copy=False))
        local = local_for(task.method, trainer, client, task.cohort.round, mine, task.buffers)
        try:
            with one_thread():
                reply = work(task.kind, task.method, task.down.row(place), mine, local, task.stages)
        except Exception as error:
            raise _Failure(place, f"step {local.drawn} of {local.steps}, {local.n} samples") from error
        yield place, reply


def _given(setup: list[Any], exchange: list[Any], place: int) -> tuple[Federation, Trainer, Task]:
    try:
        federation, trainer = _last(_FEDERATIONS, setup[0], _federation)
        return federation, trainer, _last(_EXCHANGES, exchange[0], _exchange)
    except Exception as error:
        raise _Failure(place, "before the work began") from error


def clients(setup: list[Any], exchange: list[Any], places: Places, *kept: Arrays) -> Results:
    """Work for some clients."""
    done: list[tuple[int, Arrays, dict[str, Any]]] = []
    try:
        _, trainer, task = _given(setup, exchange, places[0][0])
        for place, reply in _answers(task, trainer, places, kept):
            tensors, header = take_apart(reply)
            done.append((place, arrays_of(tensors), header))
    except _Failure as failure:
        return [], failure.told()
    return done, None


def summed(setup: list[Any], exchange: list[Any], places: Places, *kept: Arrays) -> Results:
    """Work for clients that follow each other in the cohort, and add up what they upload."""
    try:
        federation, trainer, task = _given(setup, exchange, places[0][0])
        some = part(task, range(places[0][0], places[-1][0] + 1))
        expected = expecting(some, federation.fresh(task.method))
        replies = (reply for _, reply in _answers(task, trainer, places, kept))
        found = added_up(some, places[0][0], replies, expected)
    except _Failure as failure:
        return [], failure.told()
    return [(places[0][0], *take_apart_sum(found))], None


def take_apart_sum(found: Partial) -> tuple[Arrays, dict[str, Any]]:
    """A sum as arrays, which are read in place, and all the rest."""
    tensors = {} if found.up is None else {f"up.{field.name}": value for field, value in found.up.items()}
    if found.buffers is not None:
        tensors |= {f"buffers.{field.name}": value for field, value in found.buffers.items()}
    if found.drift is not None:
        tensors |= {"drift.total": found.drift.total, "drift.units": found.drift.units}
    for client, mine in found.kept.items():
        tensors |= {f"{client}.{name}": value for name, value in mine.tensors().items()}
    singles = [(place, *take_apart(reply)) for place, reply in found.waiting.items()]
    spread = found.drift and (found.drift.count, found.drift.lengths, found.drift.squares)
    bare = replace(found, up=None, buffers=None, drift=spread, kept={}, waiting={})
    waiting = [(place, arrays_of(parts), header) for place, parts, header in singles]
    return arrays_of(tensors), {"found": bare, "waiting": waiting}


def client(setup: list[Any], exchange: list[Any], places: Places, kept: Arrays) -> tuple[Results, Arrays]:
    """Work for one client. What it will keep comes apart, so that it can stay where it is."""
    done, failed = clients(setup, exchange, places, kept)
    state: Arrays = {}
    for _, arrays, _ in done:
        state = {name: arrays.pop(name) for name in list(arrays) if not name.startswith("up.")}
    return (done, failed), state


def items(setup: list[Any], code: list[Any], shared: dict[str, list[Any]], bundle: list[tuple[int, Any]]) -> Results:
    """A function of the federation, shared tensors and an item, for some items."""
    done: list[tuple[int, Arrays, dict[str, Any]]] = []
    place = bundle[0][0]
    try:
        federation, _ = _last(_FEDERATIONS, setup[0], _federation)
        tensors = {name: _shared(ref, str(federation.x.device)) for name, (ref,) in shared.items()}
        import ray

        call = _loaded(ray.get(code[0]), "the function")
        for place, item in bundle:
            with torch.no_grad(), one_thread():
                done.append((place, arrays_of(call(federation, tensors, item)), {}))
    except Exception as error:
        return [], (place, portable(error), traceback.format_exc())
    return done, None


def _shared(ref: Any, device: str) -> Tensor:
    import ray

    return tensors_of(ray.get(ref), device, copy=False)[""]


def _loaded(data: bytes, what: str) -> Any:
    try:
        return pickle.loads(data)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(
            f"{what} cannot be imported on the node {platform.node()} ({error}): install the package that defines it "
            "on all nodes, or define it in the script itself"
        ) from error
