"""Data sets, and who holds what of them."""

from undrift.data.dataset import Augmentation, Dataset
from undrift.data.heterogeneity import Heterogeneity, heterogeneity
from undrift.data.partitions import PARTITIONERS, partition
from undrift.data.partitions.base import Partition, Partitioner
from undrift.data.public import test_parts
from undrift.data.skew import FeatureSkew
from undrift.data.sources import SOURCES, SourceRow, data_root, fetch, inventory, load
from undrift.data.sources.base import Source

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
