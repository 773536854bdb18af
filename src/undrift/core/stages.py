"""What happens to an upload on its way: a chain of stages where the client is, and a guard where the server is.

A stage works on updates with a row per client, so that a block of clients passes it at once. What it carries from round
to round are a few numbers, which belong to the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import median_low
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from undrift.core.errors import InvalidInput
from undrift.core.named import all_made, all_written, written
from undrift.core.plugins import Registry
from undrift.core.records import Message, Upload
from undrift.core.reduce import REDUCERS, Reducer, WeightedMean
from undrift.core.settings import Settings, at_least, positive
from undrift.core.update import Starts, norms, parts, unsaid

Updates = dict[str, Tensor]  # by field: rows of vectors
Carried = Mapping[str, float]  # by name

SHARE = 0.5  # of the updates that the bound of ``clip = "median"`` is to let through
PACE = 0.2  # how fast the bound follows


class Stage(Settings):
    """One stage, with its numbers for a round. Of somebody else's, ``changed`` is all that has to be written."""

    carries: ClassVar[tuple[str, ...]] = ()  # the names of the numbers that ``learnt`` gives

    def changed(self, updates: Updates, lengths: Tensor) -> tuple[Updates, Tensor, dict[str, Tensor]]:
        """The updates as they go on, which rows are others now, and a number per row for the run's record."""
        raise NotImplementedError

    def at(self, carried: Carried) -> Self | None:
        """The stage in the round after one that left these numbers; None: it does nothing in this one."""
        return self

    def learnt(self, carried: Carried, lengths: Sequence[float], notes: Mapping[str, float]) -> Carried:
        """What it carries on after a round; ``lengths`` are those of the updates that counted, as they arrived."""
        return {}


class Clip(Stage):
    """Updates that are longer than a bound are shortened to it.

    ``median``: the bound follows the median length (Andrew et al., Differentially private learning with adaptive
    clipping, 2021): it grows or shrinks by how many of the last round's updates it let through. The first round is
    not clipped, and gives the first bound.
    """

    BOUND: ClassVar[str] = "clip bound"
    carries: ClassVar[tuple[str, ...]] = (BOUND,)

    bound: Annotated[float | Literal["median"], "the largest length of an update", positive()]

    def at(self, carried: Carried) -> Clip | None:
        if self.bound != "median":
            return self
        return Clip(bound=carried[self.BOUND]) if carried.get(self.BOUND) else None

    def changed(self, updates: Updates, lengths: Tensor) -> tuple[Updates, Tensor, dict[str, Tensor]]:
        assert self.bound != "median"
        long = lengths > self.bound
        notes = {"clipped": long.double()}
        if not bool(long.any()):
            return updates, long, notes
        factors = torch.where(long, self.bound / lengths, 1.0).unsqueeze(1)
        return {name: rows * factors.to(rows) for name, rows in updates.items()}, long, notes

    def learnt(self, carried: Carried, lengths: Sequence[float], notes: Mapping[str, float]) -> Carried:
        if self.bound != "median":
            return {}
        if not carried.get(self.BOUND):
            return {self.BOUND: median_low(lengths)} if lengths else {}
        through = min(max(1 - notes.get("clipped", 1 - SHARE), 0.0), 1.0)  # clients say it, and may say anything
        return {self.BOUND: carried[self.BOUND] * math.exp(-PACE * (through - SHARE))}


STAGES: Registry[Stage] = Registry("stage", Stage, "undrift.stages", {"clip": Clip})


class Uploads(Settings):
    """What happens to clients' uploads on their way to the server, in this order, and how they become one."""

    clip: Annotated[
        float | Literal["median"] | None, "shorten updates to this L2 norm, or to their running median", positive()
    ] = None
    guard: Annotated[
        float | None, "reject an update so many times longer than the median of its round; none: never", at_least(1)
    ] = 1000.0
    stages: Annotated[str, "further stages at the client, in their order, with commas: ./round.py:bits=8"] = ""
    reducer: Annotated[str, "how the uploads of a round become one: mean, or a file: ./median.py"] = "mean"

    @classmethod
    def of(cls, *stages: Stage, reducer: Reducer | None = None, **settings: Any) -> Self:
        """From objects of one's own classes: ``Uploads.of(Rounded(bits=8), reducer=Median(), clip=10)``."""
        one = {} if reducer is None else {"reducer": written(reducer, REDUCERS)}
        return cls.create(stages=all_written(stages, STAGES), **one, **settings)

    def validate(self) -> None:
        """Names are found, and written so that they are found again from another folder."""
        stages: tuple[Stage, ...] = all_made(self.stages, STAGES)
        reducers: tuple[Reducer, ...] = all_made(self.reducer, REDUCERS)
        object.__setattr__(self, "stages", all_written(stages, STAGES))
        object.__setattr__(self, "reducer", all_written(reducers, REDUCERS))
        if len(reducers) != 1:
            raise InvalidInput(f"Uploads: reducer = {self.reducer!r}: it must be one")

    @cached_property
    def chain(self) -> tuple[Stage, ...]:
        """What uploads pass, in this order."""
        return (*(() if self.clip is None else (Clip(bound=self.clip),)), *all_made(self.stages, STAGES))

    @cached_property
    def one(self) -> Reducer:
        """What makes one upload of many."""
        return all_made(self.reducer, REDUCERS)[0]

    def at(self, carried: Carried) -> tuple[Stage, ...]:
        """The stages of the next round."""
        return tuple(now for stage in self.chain if (now := stage.at(carried)) is not None)

    def learnt(self, carried: Carried, lengths: Sequence[float], notes: Mapping[str, float]) -> dict[str, float]:
        """What the stages carry on after a round."""
        return {name: v for stage in self.chain for name, v in stage.learnt(carried, lengths, notes).items()}

    def carried(self, notes: Mapping[str, float]) -> Carried:
        """What the stages carried, among the notes of a round."""
        return {name: notes[name] for stage in self.chain for name in stage.carries if name in notes}

    @property
    def _verb(self) -> str:
        return "change" if self.stages else "clip"

    def fit(self, method: Any) -> None:
        """Refuse uploads that do not say what they are, and stages that they give nothing to work on."""
        records = method.records()
        for up, down in (("survey", "ask"), ("up", "down")):
            sent = {field.name for field in records[down].schema()} if up in records else set()
            for field in parts(records[up]) if up in records else ():
                if field.meaning == "point" and field.name not in sent:
                    raise InvalidInput(f"{method.title}: {field.name} is a point, but no such thing is sent down")
        kind = records["up"]
        if not isinstance(self.one, WeightedMean) and not any(field.travel == "mean" for field in kind.schema()):
            raise InvalidInput(f"{method.title} uploads no mean: there is nothing for the reducer to combine")
        if not self.chain or not kind.schema():
            return
        if unsaid(kind):
            raise InvalidInput(
                f"{method.title}: the upload does not say whether {unsaid(kind)[0]} is a point or a displacement: "
                "write Point[...] or Move[...] around its type"
            )
        if not parts(kind):
            raise InvalidInput(f"{method.title} uploads no update of a model: there is nothing to {self._verb}")


def passed(stages: Sequence[Stage], ups: Any, down: Message, places: Any) -> tuple[Any, dict[str, Tensor]]:
    """Uploads with a row per client after these stages, and what they note. A row that no stage changes stays as it is.

    ``places``: where the clients are in the cohort that ``down`` was made for, as a slice or an index.
    """
    if not stages or not parts(type(ups)):
        return ups, {}
    starts = Starts(type(ups), down)
    updates = starts.updates(ups, places)
    touched = torch.zeros(len(next(iter(updates.values()))), dtype=torch.bool)
    noted: dict[str, Tensor] = {}
    for stage in stages:
        updates, rows, notes = stage.changed(updates, norms(updates))
        touched, noted = touched | rows, noted | notes
    return (_rebuilt(ups, updates, touched, starts, places) if bool(touched.any()) else ups), noted


def passed_one(stages: Sequence[Stage], up: Upload, down: Message) -> tuple[Any, dict[str, float]]:
    """The same for one client, with the message that it received."""
    if not stages or not parts(type(up)):
        return up, {}
    one = up.map(lambda field, value: value.unsqueeze(0))
    sent = down.map(lambda field, value: value.unsqueeze(0) if field.travel == "each" else value)
    done, notes = passed(stages, one, sent, slice(0, 1))
    numbers = {name: float(values[0]) for name, values in notes.items()}
    return (up if done is one else done.map(lambda field, value: value[0])), numbers


def _rebuilt(ups: Any, updates: Updates, touched: Tensor, starts: Starts, places: Any) -> Any:
    """The uploads with these updates in the rows that were touched, and all that follows from them."""
    changed = {}
    for name, rows in updates.items():
        old: Tensor = getattr(ups, name)
        start = starts.at(name, places)
        changed[name] = (rows if start is None else start + rows).to(old).view_as(old)
    new = ups.map(lambda field, value: changed.get(field.name, value)).derived()

    def chosen(field: Any, value: Tensor) -> Tensor:
        mask = touched.to(value.device).view(-1, *[1] * (value.ndim - 1))
        return torch.where(mask, getattr(new, field.name), value)

    return ups.map(chosen)
