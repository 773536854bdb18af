"""What all runs of a study have in common: data, partition, model, training and plan, by name or as own objects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from undrift import algorithms
from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput
from undrift.core.training import Training
from undrift.data import Dataset, Partitioner
from undrift.experiment.description import Experiment
from undrift.studies.jobs import Own

DEFAULT_ROUNDS = Experiment.build({}).plan.rounds
VALIDATION = 0.1  # of every client's training data, where something is chosen and nothing else is said
ASSUMED = (
    "The validation data are a tenth of every client's training data, as nothing else was said: --validation 0 trains "
    "on all and chooses by the test set."
)
MOST = 10_000  # seeds of a study: more is a slip of the hand


@dataclass(frozen=True)
class Scene:
    """The description without method, seed and name, and the user's own objects where there are any."""

    values: dict[str, Any]
    own: Own = field(default_factory=Own)


def scene(
    data: Dataset | str | Mapping[str, Any],
    partition: Partitioner | str | Mapping[str, Any],
    model: Any,
    loss: Any,
    training: Training | None,
    plan: Mapping[str, Any],
    methods: Iterable[Any] = (),
) -> Scene:
    """What was given in Python, as a scene."""
    values: dict[str, Any] = {"rounds": DEFAULT_ROUNDS, **plan, "partition": _section(partition)}
    own_data = own_model = None
    if isinstance(data, Dataset):
        own_data = data
    elif isinstance(data, str | Mapping):
        values["data"] = data
    else:
        raise InvalidInput("data must be a name or a Dataset; arrays become one by undrift.Dataset.from_arrays(x, y)")
    if isinstance(model, str | Mapping):
        values["model"] = model
    else:
        own_model = model
    if training is not None:
        if not isinstance(training, Training):
            raise InvalidInput(
                f"training must be an undrift.Training(lr=..., epochs=...), not {type(training).__name__}"
            )
        values["train"] = training.values()
    return Scene(values, Own(own_data, own_model, loss, own_methods(methods)))


def to_choose_by(values: Mapping[str, Any]) -> dict[str, Any]:
    """The description with validation data, where it does not say how many: 0 is none."""
    return {**values, **({"validation": VALIDATION} if assumes_validation(values) else {})}


def assumes_validation(values: Mapping[str, Any]) -> bool:
    return values.get("validation") is None


def own_methods(methods: Any) -> dict[str, type[Method]]:
    """The classes of methods that the package does not know, by name."""
    known = algorithms.algorithms()
    objects = [m for m in methods if not isinstance(m, str | Mapping | type) and hasattr(m, "client_update")]
    return {type(m).name(): type(m) for m in objects if known.get(type(m).name()) is not type(m)}


def _section(part: Any) -> Any:
    if isinstance(part, Partitioner):
        return {"name": part.name, **{k: v for k, v in part.values().items() if v is not None}}
    if isinstance(part, str | Mapping):
        return part
    raise InvalidInput(f"partition must be a name or a partitioner's object, not {type(part).__name__}")


def seeds_of(seeds: Any) -> tuple[int, ...]:
    """``5``, ``"1..5"``, ``"1,3,7"`` or numbers; each once."""
    given = [seeds] if isinstance(seeds, str | int) else seeds
    if not isinstance(given, Iterable):
        raise InvalidInput(f"seeds {seeds!r}: write 1..5 or 1,2,3")
    found = [seed for part in given for seed in _seeds(part)]
    if not found:
        raise InvalidInput("a study needs at least one seed")
    return tuple(dict.fromkeys(found))


def _seeds(given: Any) -> list[int]:
    if isinstance(given, int) and not isinstance(given, bool):
        return [given]
    found: list[int] = []
    for part in str(given).split(","):
        match = re.fullmatch(r"\s*(\d{1,20})(?:\.\.(\d{1,20}))?\s*", part)
        if not match:
            raise InvalidInput(f"seeds {given}: write 1..5 or 1,2,3")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise InvalidInput(f"seeds {given}: {first} comes after {last}")
        if last - first >= MOST:
            raise InvalidInput(f"seeds {given}: at most {MOST:,} seeds can be asked for")
        found += range(first, last + 1)
    return found
