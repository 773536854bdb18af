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
from undrift.data.skew import FeatureSkew
from undrift.data.source import Source
from undrift.data.sources import SOURCES, SourceRow, data_root, fetch, inventory, load

__all__ = [
    "PARTITIONERS",
    "SOURCES",
    "Augmentation",
    "Dataset",
    "FeatureSkew",
    "Heterogeneity",
    "Partition",
    "Partitioner",
    "Source",
    "SourceRow",
    "data_root",
    "fetch",
    "heterogeneity",
    "inventory",
    "load",
    "partition",
    "test_parts",
]
