"""``Algorithm``: five short functions over four declared records."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from torch import Tensor

from undrift.core.cohort import Cohort, Population
from undrift.core.errors import InvalidInput, no_features
from undrift.core.formula import evaluate, parse
from undrift.core.local import Local
from undrift.core.records import Mean, Message, Move, Nothing, Point, Record, State, Upload, Vector
from undrift.core.settings import Settings
from undrift.core.training import Training
from undrift.core.vector import Layout

LARGE_STEP = 0.05  # a learning rate that is usual for sgd, and too large where a step has the size of the rate

S = TypeVar("S", bound=State)
C = TypeVar("C", bound=State)
D = TypeVar("D", bound=Message)
U = TypeVar("U", bound=Upload)


@dataclass(frozen=True)
class Cost:
    """What a method claims to cost per client and round on top of FedAvg, once every client has taken part.

    Formulas over ``d`` parameters (``body`` and ``head`` of them), ``n`` samples, ``E`` epochs, ``K`` steps, batches of
    ``M``, ``C`` classes, ``C_i`` of them held by the client, ``f`` features and the method's own settings. Traffic and
    state in numbers (scalars are not counted), passes in samples.
    """

    down: str = "0"
    up: str = "0"
    kept: str = "0"
    gradients: str = "0"
    forwards: str = "0"
    head_gradients: str = "0"  # backward through the last layer alone
    flops: str = "0"  # vector operations; stated, not measured

    def __post_init__(self) -> None:
        for formula in vars(self).values():
            parse(formula)  # what is none is refused where it is written

    def evaluate(self, symbols: Mapping[str, Any]) -> dict[str, float]:
        """The formulas as numbers."""
        return {name: evaluate(formula, symbols) for name, formula in vars(self).items()}


class Algorithm(Settings, Generic[S, C, D, U]):
    """A federated method. Subclasses state their records, their hyper-parameters and five functions.

    Purity rule for ``client_update``, so that many clients can run in one tensor program: no ``.item()``, no ``if`` on
    a tensor's value, no in-place writes, no ``.to()``, ``.backward()`` or ``deepcopy``.
    """

    title: ClassVar[str] = ""  # as its paper spells it
    paper: ClassVar[str] = ""
    cost: ClassVar[Cost] = Cost()
    exchanges: ClassVar[int] = 1  # 2: ``survey`` is asked of the cohort before ``client_update``
    refuses_momentum: ClassVar[str] = ""  # why local momentum cannot be used; empty: it can
    refuses_optimisers: ClassVar[str] = ""  # why local steps are its own, and sgd alone can be set; empty: any can
    assumes_sgd: ClassVar[str] = ""  # what in its formulas counts on sgd steps; empty: nothing
    refuses_buffers: ClassVar[str] = ""  # why a model with batch-norm statistics cannot be used; empty: it can
    needs_public: ClassVar[bool] = False
    shares_buffers: ClassVar[bool] = True  # False: every client keeps its own batch-norm statistics
    pools_data: ClassVar[bool] = False  # True: one client holds everybody's data (the centralised reference line)
    steep: ClassVar[tuple[str, ...]] = ()  # settings that, too large, let a run diverge or stand still
    caution: ClassVar[str] = ""  # where its defaults were measured to end far under FedAvg, and why; empty: nowhere
    controls: ClassVar[tuple[str, ...]] = ()  # methods that a comparison must show beside this one

    weights: Annotated[Literal["samples", "uniform"], "aggregation weights: n_i/n or 1/|S|"] = "samples"

    # -- the five functions -------------------------------------------------------------------------------------------

    def server_init(self, x: Tensor, population: Population) -> S:
        raise NotImplementedError

    def client_init(self, x: Tensor, layout: Layout) -> C:
        return Nothing()  # type: ignore[return-value]

    def broadcast(self, server: S, cohort: Cohort) -> D:
        raise NotImplementedError

    def client_update(self, down: D, me: C, local: Local) -> tuple[U, C]:
        raise NotImplementedError

    def server_update(self, server: S, up: U, cohort: Cohort) -> S:
        raise NotImplementedError

    def skipped(self, server: S, cohort: Cohort) -> S:
        """The server after a round in which nobody's upload counted: all were lost, or none was finite."""
        return server

    # -- the first exchange of methods with two -----------------------------------------------------------------------

    def ask(self, server: S, cohort: Cohort) -> Message:
        """What goes down first."""
        raise NotImplementedError

    def survey(self, down: Any, me: C, local: Local) -> Upload:
        """What the client answers, before any training."""
        raise NotImplementedError

    def surveyed(self, server: S, up: Any, cohort: Cohort) -> S:
        """The server with the survey's result."""
        raise NotImplementedError

    # -- what is evaluated --------------------------------------------------------------------------------------------

    def models(self, server: S) -> dict[str, Tensor]:
        """The models to evaluate on the common test set, ``global`` first; empty if there is none."""
        return {"global": server.x}  # type: ignore[attr-defined]

    def personal(self, down: D, me: C, layout: Layout) -> Tensor | None:
        """The personal model of a client, where the method has one: made of what it receives and what it keeps."""
        return None

    # -- fitness ------------------------------------------------------------------------------------------------------

    def resolved(self, training: Training, layout: Layout, steps: int) -> Self:
        """The method with a number where a setting is derived from the training settings (``auto``)."""
        return self

    def check(self, training: Training, layout: Layout, steps: int) -> None:
        """Refuse or warn about a combination with the training settings; ``steps`` is the largest K of any client."""

    def check_start(self, x: Tensor, population: Population) -> None:
        """Warn about a setting that does not suit the initial model x, or who takes part."""

    def needs_features(self) -> bool:
        """Does it, with these settings, need a model that has features?"""
        return False

    def finished(self, server: S) -> bool:
        """Has the method itself decided to stop (a budget has run out)?"""
        return False

    # -- records ------------------------------------------------------------------------------------------------------

    @classmethod
    def name(cls) -> str:
        """The name on the command line: the class's name in lower case."""
        return cls.__name__.lower()

    @classmethod
    def records(cls) -> dict[str, type[Record]]:
        """The four record types that the class was declared with."""
        found: Any = cls
        return dict(_records(found))

    def claims(self, training: Training, layout: Layout, n: int, classes: int) -> dict[str, float]:
        """The claimed cost, as numbers, for a client with ``n`` samples of so many ``classes``."""
        axes = {axis: layout.extent(axis) for axis in ("d", "body", "head", "C", "f")}
        batch = min(training.per_step or n, n)
        passes = {"n": n, "E": training.epochs, "K": training.steps_for(n), "M": batch, "C_i": classes}
        return self.cost.evaluate(self.values() | axes | passes)

    def fit(self, training: Training, layout: Layout, steps: int) -> None:
        """All that can be refused before the first round."""
        if training.momentum and self.refuses_momentum:
            raise InvalidInput(f"{self.title} does not take local momentum ({self.refuses_momentum}); set momentum = 0")
        self._fit_optimiser(training)
        if layout.buffers and self.refuses_buffers:
            raise InvalidInput(f"{self.title} takes no batch-norm model ({self.refuses_buffers}); use group norm")
        if self.needs_features() and not layout.features:
            raise no_features(self.title)
        if self.needs_features() and not layout.extent("body"):
            warnings.warn(
                f"{self.title} works on features, and the model has no parameters below its last layer: "
                "its features are its inputs, which training does not change",
                stacklevel=2,
            )
        self.resolved(training, layout, steps).check(training, layout, steps)

    def _fit_optimiser(self, training: Training) -> None:
        if training.plain:
            return
        what = "momentum that is kept" if training.optimiser == "sgd" else training.optimiser
        if self.refuses_optimisers:
            raise InvalidInput(
                f"{self.title} takes no {what} ({self.refuses_optimisers}); "
                "set optimiser = sgd and optimiser_state = reset"
            )
        if self.assumes_sgd:
            warnings.warn(
                f"{self.title} assumes sgd steps with a fresh momentum ({self.assumes_sgd}): with {what} its formulas "
                "no longer hold",
                stacklevel=3,
            )
        if training.optimiser in ("adam", "adamw", "rmsprop") and training.lr >= LARGE_STEP:
            warnings.warn(
                f"lr = {training.lr:g}: a step of {training.optimiser} moves every parameter by about lr, whatever the "
                "gradient; 0.001 is usual",
                stacklevel=3,
            )


Method = Algorithm[Any, Any, Any, Any]


@cache
def _records(cls: Any) -> Mapping[str, type[Record]]:
    found = dict(zip(("server", "client", "down", "up"), _declared(cls), strict=True))
    if cls.exchanges == 2:
        found["ask"] = get_type_hints(cls.ask)["return"]
        found["survey"] = get_type_hints(cls.survey)["return"]
    return found


def _declared(cls: type) -> tuple[Any, ...]:
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base) or base
        if origin is Algorithm:
            return get_args(base)
        if isinstance(origin, type) and issubclass(origin, Algorithm):
            inner, args = _declared(origin), iter(get_args(base))
            return tuple(next(args) if isinstance(a, TypeVar) else a for a in inner)
    return _declared(cls.__bases__[0])


class Global(State):
    x: Vector


class Broadcast(Message):
    x: Vector


class Trained(Upload):
    x: Mean[Point[Vector]]


class Displaced(Upload):
    d: Mean[Move[Vector]]  # w - w_i: points along the gradient, in every method


class Averaging(Algorithm[Global, C, Broadcast, Trained]):
    """FedAvg's messages and server half: the model goes down, the clients' models come up and are averaged."""

    def server_init(self, x: Tensor, population: Population) -> Global:
        return Global(x)

    def broadcast(self, server: Global, cohort: Cohort) -> Broadcast:
        return Broadcast(server.x)

    def server_update(self, server: Global, up: Trained, cohort: Cohort) -> Global:
        return Global(up.x)
