"""Who holds what. One family of partitions, one file; a file in this folder is found by itself."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from undrift.core.errors import unknown
from undrift.core.plugins import Registry
from undrift.data.dataset import Dataset
from undrift.data.partitions.base import Partition, Partitioner
from undrift.data.registry import found

PARTITIONERS = Registry("partition", Partitioner, "undrift.partitions", found(__name__, __path__, Partitioner))


def partition(name: str, data: Dataset | NDArray[Any], clients: int | None, seed: int, **settings: Any) -> Partition:
    """``partition("dirichlet", dataset, 50, seed=1, alpha=0.1)``."""
    if name not in PARTITIONERS:
        raise unknown("partition", name, PARTITIONERS)
    return PARTITIONERS[name].create(**settings).split(data, clients, seed)
