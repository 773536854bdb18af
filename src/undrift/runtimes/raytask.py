"""What a Ray worker does: clients' work, or items of a ``map``. It keeps the last federation and exchange it was given.

It does not import Ray but to fetch what it has not seen yet, and knows nothing of rounds gone by.
"""

from __future__ import annotations

import pickle
import platform
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.algorithm import Method
from undrift.core.client import Work, down_kind, local_for, one_thread, work
from undrift.core.eager import Trainer
from undrift.core.errors import InvalidInput
from undrift.core.federation import Federation, Rows
from undrift.core.records import State
from undrift.core.stages import Stage
from undrift.core.states import Kept
from undrift.core.vector import Buffers
from undrift.core.wire import take_apart
from undrift.runtimes.failure import portable
from undrift.version import version

Arrays = dict[str, NDArray[Any]]
Failed = tuple[int, bytes, str]  # at which place, the error, and where in the work
Places = list[tuple[int, int]]  # in the cohort, and the client there
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
    stages: tuple[Stage, ...]  # that uploads pass where the client is


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
_EXCHANGES: dict[Any, tuple[Exchange, Method, Any, Buffers | None]] = {}


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


def _exchange(exchange: Exchange) -> tuple[Exchange, Method, Any, Buffers | None]:
    method: Method = _loaded(exchange.method, "the method")
    down = down_kind(method, exchange.kind, exchange.given).of(tensors_of(exchange.down, _device(), copy=False))
    buffers = None if exchange.buffers is None else Buffers.of(tensors_of(exchange.buffers, _device(), copy=False))
    return exchange, method, down, buffers


def _device() -> str:
    (federation, _), *_ = _FEDERATIONS.values()
    return str(federation.x.device)


def clients(setup: list[Any], exchange: list[Any], places: Places, *kept: Arrays) -> Results:
    """Work for some clients."""
    done: list[tuple[int, Arrays, dict[str, Any]]] = []
    place, where = places[0][0], "before the work began"
    try:
        _, trainer = _last(_FEDERATIONS, setup[0], _federation)
        about, method, down, buffers = _last(_EXCHANGES, exchange[0], _exchange)
        kind = cast(type[State], method.records()["client"])
        for (place, client), arrays in zip(places, kept, strict=True):
            mine = Kept.of(kind, tensors_of(arrays, _device(), copy=False))
            local = local_for(method, trainer, client, about.round, mine, buffers)
            try:
                with one_thread():
                    reply = work(about.kind, method, down.row(place), mine, local, about.stages)
            except Exception:
                where = f"step {local.drawn} of {local.steps}, {local.n} samples"
                raise
            tensors, header = take_apart(reply)
            done.append((place, arrays_of(tensors), header))
    except Exception as error:
        return [], (place, portable(error), f"{where}\n{traceback.format_exc()}")
    return done, None


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
