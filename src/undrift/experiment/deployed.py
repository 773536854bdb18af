"""An experiment whose clients are sites: from its description and who registered to something that can be played.

There is no partition: every site holds what it holds. What the experiment leaves open (a model that suits the data, a
setting that is ``auto``) is settled once, here, and told to the sites.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from undrift.core.algorithm import Method
from undrift.core.errors import InvalidInput
from undrift.core.federation import Holding, Model, Registered, build
from undrift.core.loop import resolved
from undrift.core.stages import Uploads
from undrift.core.training import Training
from undrift.data import data_root
from undrift.data.public import public_rows
from undrift.deploy.coordinator import Roster, Rules
from undrift.experiment.description import Experiment, Plan, label_of, made_method, made_model
from undrift.experiment.evaluate import Evaluator
from undrift.models import Task, default_model, fitted, spec
from undrift.version import version


class Installed:
    """Makes what an experiment names from what is installed here; the same at a site and at the coordinator."""

    def method(self, section: Mapping[str, Any]) -> Method:
        return made_method(section, "the experiment")

    def model(self, experiment: Mapping[str, Any], task: Task) -> Model:
        seed = experiment["seed"]
        factory, loss = fitted(made_model(experiment["model"], "the experiment"), task)
        return Model(
            module=build(factory, seed),
            loss=loss,
            training=Training.create(**experiment["train"]),
            sample=torch.zeros(1, *task.shape),
            seed=seed,
        )


def described(experiment: Experiment, rules: Rules, sites: int) -> dict[str, Any]:
    """What a site is told of an experiment before it says yes: all that its policy and its operator go by."""
    values = experiment.values()
    plan = experiment.plan
    asked = min(plan.participate or sites, sites)
    return {
        "name": experiment.name or type(experiment.algorithm).name(),
        "algorithm": values["algorithm"],
        "model": values.get("model"),
        "train": values["train"],
        "uploads": values.get("uploads", {}),
        "seed": plan.seed,
        "rounds": plan.rounds,
        "sites": sites,
        "cohort": min(rules.quorum or asked, asked),
    }


@dataclass(frozen=True)
class Deployed:
    """An experiment that is ready to be played by sites."""

    method: Method
    federation: Registered
    evaluator: Evaluator
    participate: int
    plan: Plan
    roster: Roster
    settled: dict[str, Any]  # what the experiment left open
    uploads: Uploads

    def facts(self) -> dict[str, Any]:
        start, _ = self.federation.start()
        profile, samples = self.federation.profile, self.roster.samples
        content = "".join(member.data for member in self.roster.members)
        facts: dict[str, Any] = {
            "label": label_of(self.method),
            "data": f"{len(self.roster)} sites",
            "data_fingerprint": hashlib.sha256(content.encode()).hexdigest()[:16],
            "partition_fingerprint": hashlib.sha256(samples.tobytes()).hexdigest()[:16],
            "start_fingerprint": hashlib.sha256(start.numpy().tobytes()).hexdigest()[:16],
            "sites": [member.facts() for member in self.roster.members],
            "parameters": self.federation.layout.size,
            "macs_forward": profile.forward,
            "macs_gradient": profile.gradient,
            "clients": len(self.roster),
            "participate": self.participate,
            "training": self.federation.training.values(),
            "uploads": self.uploads.values(),
            "samples": [int(samples.min()), int(np.median(samples)), int(samples.max())],
            "versions": {
                "undrift": version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        counts = [member.counts for member in self.roster.members]
        if all(told is not None for told in counts):
            facts["histogram"] = [list(told or ()) for told in counts]
        return facts


def public(experiment: Experiment, roster: Roster, root: str | Path | None = None) -> Holding | None:
    """The coordinator's own rows, for a method that needs public data: of the experiment's ``[data]``."""
    method, plan = experiment.algorithm, experiment.plan
    if not method.needs_public:
        return None
    dataset = experiment.data.load(data_root(root))
    if (dataset.shape, dataset.classes) != (roster.task.shape, roster.task.classes):
        raise InvalidInput(
            f"[data]: {dataset.name} has inputs of shape {dataset.shape} and {dataset.classes} classes, "
            f"the sites have {roster.task.shape} and {roster.task.classes}"
        )
    rows, scoring, _ = public_rows(dataset, plan.seed, plan.public, plan.scoring, method.title)
    nobody, begin = np.empty(0, dtype=np.int64), np.zeros(1, dtype=np.int64)
    return Holding(x=dataset.x, y=dataset.y, indices=nobody, offsets=begin, public=rows, scoring=scoring)


def deploy(experiment: Experiment, roster: Roster, told: Mapping[str, Any], here: Holding | None = None) -> Deployed:
    """The experiment with these sites as its clients; ``told`` is what they were told of it.

    ``here``: what the coordinator itself holds.
    """
    method, plan = experiment.algorithm, experiment.plan
    if method.pools_data:
        raise InvalidInput(f"{method.title} pools everybody's data: a federation of sites cannot run it")
    if plan.measures:
        raise InvalidInput(f"metrics {', '.join(plan.measures)}: sites tell accuracy and loss alone")
    if plan.participate and plan.participate > len(roster):
        raise InvalidInput(f"participate = {plan.participate} is more than the {len(roster)} sites there are")
    model = experiment.model or spec(default_model(roster.task))
    settled: dict[str, Any] = {"model": {"name": model.name, **model.values()}}
    shared = Installed().model({**told, **settled}, roster.task)
    federation = Registered(
        module=shared.module,
        loss=shared.loss,
        training=shared.training,
        sample=shared.sample,
        seed=shared.seed,
        samples=roster.samples,
        names=roster.names,
        here=here,
    )
    method = resolved(method, federation)
    settled["algorithm"] = {"name": type(method).name(), **_plain(method.values())}
    participate = plan.participate or len(roster)
    evaluator = Evaluator(federation, roster.task.classes)
    return Deployed(method, federation, evaluator, participate, replace(plan), roster, settled, experiment.uploads)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
