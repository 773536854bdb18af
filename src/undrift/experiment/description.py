"""``Experiment``: the validated description of a run, to and from TOML, JSON and command-line flags.

Everything is named: data, partition, model and method. Users' own modules and tensors go through ``undrift.run``.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from undrift import algorithms
from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput, unknown
from undrift.core.figure import HEADLINE, METRICS, OF_CLASSES, OF_NUMBERS, Figure
from undrift.core.named import short
from undrift.core.plugins import Registry, reference_of, split
from undrift.core.settings import Setting, Settings, at_least, between, finite, positive
from undrift.core.stages import Uploads
from undrift.core.training import Training
from undrift.data import PARTITIONERS, SOURCES, Partitioner, Source, data_root
from undrift.data.bounds import amount, regular
from undrift.data.skew import FeatureSkew
from undrift.experiment.limit import Limit
from undrift.models import MODELS, ModelSpec


class Plan(Settings):
    """How many clients, how long, from which seed, how it is evaluated and where it runs."""

    clients: Annotated[int | None, "number of clients; left out: as many as the data names, or 10", at_least(1)] = None
    participate: Annotated[int | None, "clients per round; left out: all", at_least(1)] = None
    rounds: Annotated[int, "number of rounds", at_least(1)] = 50
    seed: Annotated[int, "the one source of randomness", at_least(0)] = 1
    eval_every: Annotated[int, "evaluate every so many rounds (and after the last)", at_least(1)] = 1
    eval_training: Annotated[bool, "evaluate the global model on all clients' training data too"] = False
    target: Annotated[
        float | None, "target of the headline figure, for the cost to reach it: 0.9 for 90 %", finite()
    ] = None
    validation: Annotated[
        float | None,
        "share of every client's training data that nobody trains on, to choose settings by; 0: none",
        between(0, 1, open_high=True),
    ] = None
    patience: Annotated[
        int | None,
        "stop after so many evaluations without a better headline figure on the validation data",
        at_least(1),
    ] = None
    metrics: Annotated[
        str | None, "figures beside accuracy and loss, with commas: " + ", ".join((*OF_CLASSES, *OF_NUMBERS))
    ] = None
    headline: Annotated[str | None, "the figure that a run is judged by; left out: the accuracy, or the loss"] = None
    limit: Annotated[
        str, "stop before more is used: bytes=2e9, macs=1e12, seconds=60 or time=60 (simulated); several with commas"
    ] = ""
    public: Annotated[float, "share of the training set that the server holds (pFedMo)", between(0, 0.5)] = 0.01
    scoring: Annotated[int, "public inputs that the server only looks at (pFedMo)", at_least(1)] = 64
    others_public: Annotated[
        Literal["shared", "held-out", "client"],
        "the public samples, for methods without server data: ordinary training data, unused, or one more client",
    ] = "shared"
    runtime: Annotated[Literal["auto", "serial", "threads", "processes", "batched", "ray"], "where clients run"] = (
        "auto"
    )
    device: Annotated[str, "where tensors live: cpu, cuda, cuda:1, mps"] = "cpu"
    workers: Annotated[int | None, "threads or worker processes; left out: one per core", at_least(1)] = None
    ray_address: Annotated[
        str | None, "the Ray cluster: auto or HOST:PORT; left out: RAY_ADDRESS, or this machine's cores"
    ] = None
    ray_gpus: Annotated[
        float | None, "GPUs of a Ray task, with device = cuda: 0.25 is four tasks on one", positive()
    ] = None
    ray_sum: Annotated[
        int | None,
        "clients whose uploads a Ray task adds up, so that one travels for all (other rounding); left out: all travel",
        at_least(1),
    ] = None

    def validate(self) -> None:
        if self.ray_sum and self.runtime != "ray":
            raise InvalidInput(f"ray_sum = {self.ray_sum}: only tasks of a cluster add up: set runtime = ray")
        if self.patience and not self.validation:
            raise InvalidInput(
                f"patience = {self.patience}: it goes by validation data, and there are none: set validation = 0.1"
            )
        figure = Figure(metric=self.headline or HEADLINE.metric)
        if self.target is not None and not figure.allows(self.target):
            raise InvalidInput(f"target = {self.target:g}: it must be {figure.range}")
        for name in (*self._listed(), *([self.headline] if self.headline else [])):
            if name not in METRICS:
                raise unknown("metric", name, METRICS)

    def _listed(self) -> list[str]:
        return [part.strip() for part in (self.metrics or "").split(",") if part.strip()]

    @property
    def measures(self) -> tuple[str, ...]:
        """What has to be measured beside accuracy and loss."""
        asked = (*self._listed(), *([self.headline] if self.headline else []))
        return tuple(dict.fromkeys(name for name in asked if name not in ("accuracy", "loss")))


SECTIONS = ("algorithm", "data", "partition", "skew", "model", "train", "uploads")


@dataclass(frozen=True)
class Experiment:
    """One run, described. ``Experiment.load(path)`` reads TOML; ``build`` makes one from plain dictionaries."""

    algorithm: Method
    data: Source
    partition: Partitioner
    model: ModelSpec | None = None  # None: one that suits the data, see `models.default_model`
    skew: FeatureSkew = field(default_factory=FeatureSkew)
    train: Training = field(default_factory=Training)
    uploads: Uploads = field(default_factory=Uploads)
    plan: Plan = field(default_factory=Plan)
    name: str = ""

    @classmethod
    def build(cls, values: Mapping[str, Any], where: str = "experiment") -> Experiment:
        """From plain values: the sections, and the plan's keys beside them."""
        plan_keys = [s.name for s in Plan.settings()]
        for key in values:
            if key not in (*SECTIONS, *plan_keys, "name"):
                raise _at(where, unknown("key", key, [*SECTIONS, *plan_keys, "name"]))
        sections = {name: values.get(name, {}) for name in SECTIONS}
        for name, section in sections.items():
            if isinstance(section, str):
                sections[name] = {"name": section}
            elif not isinstance(section, Mapping):
                more = "; `algorithms` lists those of a comparison" if name == "algorithm" else ""
                raise InvalidInput(f"{where}: [{name}] must be a table or a name, not {section!r}{more}")
        sections["algorithm"], sections["train"] = _own_training(sections["algorithm"], sections["train"], where)
        data = made("data set", SOURCES, sections["data"], "digits", f"{where}: [data]")
        method = made_method(sections["algorithm"], f"{where}: [algorithm]")
        usual = usual_partition(reference_of(type(data), data.name), data.values())
        partition = made("partition", PARTITIONERS, sections["partition"], usual, f"{where}: [partition]")
        model = made_model(sections["model"], f"{where}: [model]") if sections["model"] else None
        skew = _create(FeatureSkew, sections["skew"], f"{where}: [skew]")
        train = _create(Training, sections["train"], f"{where}: [train]")
        uploads = _create(Uploads, sections["uploads"], f"{where}: [uploads]")
        plan = _create(Plan, {k: v for k, v in values.items() if k in plan_keys}, where)
        experiment = cls(method, data, partition, model, skew, train, uploads, plan, str(values.get("name", "")))
        experiment.check(where)
        return experiment

    def check(self, where: str = "experiment") -> None:
        plan = self.plan
        try:
            Limit.parse(plan.limit)
        except InvalidInput as error:
            raise _at(where, error) from None
        if plan.clients and plan.participate and plan.participate > plan.clients:
            raise InvalidInput(
                f"{where}: participate = {plan.participate} is more than the {plan.clients} clients there are"
            )

    @classmethod
    def load(cls, path: str | Path, changes: Mapping[str, Any] | None = None) -> Experiment:
        """From a TOML file, with some values replaced."""
        return cls.build(merge(read_toml(path), changes or {}), str(path))

    def values(self) -> dict[str, Any]:
        """As plain values, complete: what ``build`` takes."""
        found: dict[str, Any] = {"name": self.name} if self.name else {}
        found |= {k: v for k, v in self.plan.values().items() if v is not None}
        for section, part, title in (
            ("algorithm", self.algorithm, reference_of(type(self.algorithm), type(self.algorithm).name())),
            ("data", self.data, reference_of(type(self.data), self.data.name)),
            ("partition", self.partition, reference_of(type(self.partition), self.partition.name)),
            ("skew", self.skew, None),
            ("model", self.model, reference_of(type(self.model), self.model.name) if self.model else None),
            ("train", self.train, None),
            ("uploads", None if self.uploads == Uploads() else self.uploads, None),
        ):
            if part is None:
                continue
            inner: dict[str, Any] = {"name": title} if title else {}
            inner |= {k: list(v) if isinstance(v, tuple) else v for k, v in part.values().items() if v is not None}
            found[section] = inner
        return found

    def to_toml(self) -> str:
        """The experiment as a TOML file that ``load`` reads back."""
        lines, values = [], self.values()
        for key, value in values.items():
            if not isinstance(value, dict):
                lines.append(f"{key} = {_toml(value)}")
        for section, inner in values.items():
            if isinstance(inner, dict):
                lines += ["", f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in inner.items())]
        return "\n".join(lines) + "\n"

    @property
    def label(self) -> str:
        """The method and the settings that differ from its defaults."""
        return label_of(self.algorithm)


def usual_partition(data: str, options: Mapping[str, Any]) -> str:
    """The partition where none is named: the data's own clients, or a Dirichlet draw."""
    natural = data in SOURCES and SOURCES[data].names_clients(options, data_root())
    return "column" if natural else "dirichlet"


def label_of(method: Method) -> str:
    values = [(s.name, getattr(method, s.name)) for s in method.settings() if getattr(method, s.name) != s.default]
    given = [f"{name}={short(value)}" for name, value in values]
    return type(method).title + (f" ({', '.join(given)})" if given else "")


def tag(section: Mapping[str, Any]) -> str:
    """A method's section as it is written on a command line: the inverse of ``parse_method``."""
    flat = {k: v for k, v in section.items() if k not in ("name", "train")}
    flat |= {f"train.{k}": v for k, v in section.get("train", {}).items()}
    return ":".join([str(section["name"]), *(f"{k}={short(v)}" for k, v in flat.items())])


LONGEST = 1 << 24  # bytes of an experiment file


def read_toml(path: str | Path) -> dict[str, Any]:
    try:
        if not Path(path).exists():
            raise InvalidInput(f"there is no file {path}")
        size = regular(Path(path))
        if size > LONGEST:
            raise InvalidInput(f"{path}: {amount(size)}: no experiment is so long")
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}") from None


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The base with some values replaced, section by section. Another name in a section drops the old settings."""
    merged = {
        key: {"name": value} if key in SECTIONS and isinstance(value, str) else value for key, value in base.items()
    }
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            old = merged[key]
            renamed = "name" in value and value["name"] != old.get("name")
            merged[key] = dict(value) if renamed else {**old, **value}
        else:
            merged[key] = value
    return merged


# What may differ between two descriptions of one experiment: how long it goes on and where, not what it computes.
ASIDE = frozenset(
    {
        "name",
        "rounds",
        "target",
        "headline",
        "patience",
        "runtime",
        "workers",
        "ray_address",
        "ray_gpus",
        "eval_training",
        "limit",
    }
)


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys in which two descriptions are not the same experiment."""
    then, now = json.loads(json.dumps(dict(then))), json.loads(json.dumps(dict(now)))
    return sorted(key for key in {*then, *now} - ASIDE if then.get(key) != now.get(key))


def parse_method(text: str) -> dict[str, Any]:
    """``fedtrip`` or ``fedtrip:mu=0.4:first=init`` as a section; a list is written ``fedadm:budget=[10,20]``.

    ``slowmo:train.momentum=0`` is a training setting of this method alone.
    """
    name, pairs = split(text)
    section: dict[str, Any] = {"name": name}
    found = algorithms.algorithms()
    if name not in found:
        number = re.fullmatch(r"[-+.\d][-+.\de]*\]?", name)
        more = "; a list in a setting is written in brackets, such as budget=[10,20]" if number else ""
        raise InvalidInput(f"{unknown('algorithm', name, found)}{more}")
    settings = {s.name: s for s in found[name].settings()}
    training = {f"train.{s.name}": s for s in Training.settings()}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.replace("-", "_")
        if not equals:
            raise InvalidInput(f"{text!r}: settings are written name:key=value")
        if key in training:
            section.setdefault("train", {})[key.removeprefix("train.")] = training[key].parse(value)
        elif key in settings:
            section[key] = settings[key].parse(value)
        else:
            raise unknown(f"setting of {name}", key, training if key.startswith("train.") else settings)
    return section


def _own_training(
    method: Mapping[str, Any], shared: Mapping[str, Any], where: str
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """A method's section without its own training settings, and those on top of what all methods share."""
    if "train" not in method:
        return method, shared
    own = method["train"]
    if not isinstance(own, Mapping):
        raise InvalidInput(f"{where}: a method's train must be a table, not {own!r}")
    return {k: v for k, v in method.items() if k != "train"}, {**shared, **own}


def registries() -> dict[str, Registry[Any]]:
    """Where the components of each section are found by name or reference."""
    return {"algorithm": algorithms.algorithms(), "data": SOURCES, "partition": PARTITIONERS, "model": MODELS}


def components() -> dict[str, dict[str, tuple[Setting, ...]]]:
    """Every settable thing: section -> component name -> its settings."""
    return {
        **{section: {k: v.settings() for k, v in known.items()} for section, known in registries().items()},
        "skew": {"": FeatureSkew.settings()},
        "train": {"": Training.settings()},
        "uploads": {"": Uploads.settings()},
        "plan": {"": Plan.settings()},
    }


def made_method(section: Mapping[str, Any], where: str) -> Method:
    """The method that a section names."""
    values = dict(section)
    name = values.pop("name", "fedavg")
    if name not in algorithms.algorithms():
        raise _at(where, unknown("algorithm", str(name), algorithms.algorithms()))
    created: Method = _create(algorithms.algorithms()[name], values, where)
    return created


def made_model(section: Mapping[str, Any], where: str) -> ModelSpec:
    """The model that a section names."""
    chosen: ModelSpec = made("model", MODELS, section, "mlp", where)
    return chosen


def made(kind: str, known: Mapping[str, type[Any]], section: Any, default: str, where: str) -> Any:
    """What a section names: a table with a name and settings, or the name alone."""
    if not isinstance(section, Mapping | str):
        raise InvalidInput(f"{where}: must be a table or a name, not {section!r}")
    values = {"name": section} if isinstance(section, str) else dict(section)
    name = values.pop("name", default)
    if name not in known:
        raise _at(where, unknown(kind, str(name), known))
    return _create(known[name], values, where)


def _create(kind: type[Any], values: Mapping[str, Any], where: str) -> Any:
    try:
        return kind.create(**values)
    except InvalidInput as error:
        raise _at(where, error) from None


def _at(where: str, error: InvalidInput) -> InvalidInput:
    return InvalidInput(f"{where}: {error}")


def _toml(value: Any) -> str:
    return json.dumps(value)  # numbers, booleans, strings and lists are written alike in JSON and TOML
