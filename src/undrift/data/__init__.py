"""Data sets, and who holds what of them."""

from undrift.data.dataset import Augmentation, Dataset
from undrift.data.partition import (
    PARTITIONERS,
    Heterogeneity,
    Partition,
    Partitioner,
    heterogeneity,
    partition,
    test_parts,
)
from undrift.data.sources import SOURCES, Source, data_root, load

__all__ = [
    "PARTITIONERS",
    "SOURCES",
    "Augmentation",
    "Dataset",
    "Heterogeneity",
    "Partition",
    "Partitioner",
    "Source",
    "data_root",
    "heterogeneity",
    "load",
    "partition",
    "test_parts",
]
