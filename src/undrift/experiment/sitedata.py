"""What a site holds, from the operator's own description: the file ``site.toml`` in its kit.

    [data]                                  # as in an experiment: any data set by name, with its settings
    name = "csv"
    path = "visits.csv"
    label = "outcome"

    [part]                                  # for rehearsals only: a part of a data set that all sites have
    number = 2
    of = 4
    seed = 1
    partition = { name = "dirichlet", alpha = 0.1 }
    public = 0.01                           # of which the server has a share (pFedMo), and ``scoring`` rows more

With ``[part]`` the site holds what client ``number - 1`` holds in a simulation of as many clients and the same seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from undrift.core.errors import InvalidInput, unknown
from undrift.data import PARTITIONERS, SOURCES, Dataset, data_root
from undrift.data.public import Holder, divide
from undrift.deploy.protocol import Kind
from undrift.deploy.site import Data
from undrift.experiment.description import made


def held(values: Mapping[str, Any], where: str, root: Path | None = None) -> tuple[Data, Dataset]:
    """The data that a site's description names, and the data set that they are, or are a part of."""
    for key in values:
        if key not in ("data", "part"):
            raise InvalidInput(f"{where}: {unknown('section', key, ('data', 'part'))}")
    section = values.get("data")
    if not isinstance(section, Mapping):
        raise InvalidInput(f"{where}: the section [data] is missing: it names what this site holds")
    source = made("data set", SOURCES, section, "digits", f"{where}: [data]")
    dataset = source.load(data_root(root))
    part = values.get("part")
    if part is not None:
        if not isinstance(part, Mapping):
            raise InvalidInput(f"{where}: [part] must be a table")
        dataset = _part(dataset, part, f"{where}: [part]")
    kind = Kind(dataset.shape, dataset.classes, dataset.outputs, tuple(dataset.class_names))
    data = Data(
        dataset.x, dataset.y, dataset.x_test, dataset.y_test, kind, content=dataset.content, augment=dataset.augment
    )
    return data, dataset


def _part(dataset: Dataset, part: Mapping[str, Any], where: str) -> Dataset:
    known = ("number", "of", "seed", "partition", "public", "scoring")
    for key in part:
        if key not in known:
            raise InvalidInput(f"{where}: {unknown('key', key, known)}")
    numbers = {"number": part.get("number"), "of": part.get("of"), "seed": part.get("seed", 1)}
    for key, value in {**numbers, "scoring": part.get("scoring", 64)}.items():
        if type(value) is not int or value < (0 if key == "seed" else 1):
            raise InvalidInput(f"{where}: {key} = {value!r}: a whole number is needed")
    public = part.get("public", 0.0)
    if type(public) not in (int, float) or not 0 <= public < 1:
        raise InvalidInput(f"{where}: public = {public!r}: a share in [0, 1) is needed")
    number, of, seed = (int(part.get(key, 1)) for key in ("number", "of", "seed"))
    if number > of:
        raise InvalidInput(f"{where}: number = {number} is more than of = {of}")
    section = part.get("partition", {})
    partitioner = made("partition", PARTITIONERS, section, "dirichlet", f"{where}: partition")
    holder: Holder = "server" if public else "shared"
    all_parts = divide(dataset, partitioner, of, seed, holder=holder, share=public, scoring=part.get("scoring", 64))
    partition, test = all_parts.partition, all_parts.tests
    rows = partition.indices[partition.offsets[number - 1] : partition.offsets[number]]
    tested = rows[:0] if test is None else test.indices[test.offsets[number - 1] : test.offsets[number]]
    train, held_out = torch.from_numpy(rows), torch.from_numpy(tested)
    return Dataset(
        f"{dataset.name}, part {number} of {of}",
        dataset.x[train], dataset.y[train], dataset.x_test[held_out], dataset.y_test[held_out],
        dataset.classes, augment=dataset.augment, class_names=dataset.class_names,
    )  # fmt: skip
