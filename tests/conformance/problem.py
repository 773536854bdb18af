"""The small problems of the table are those that ``undrift conform`` tries methods on."""

from undrift.studies.problem import CLASSES, HIDDEN, INPUTS, SIZES, TRAINING, Network, federation, loss

__all__ = ["CLASSES", "HIDDEN", "INPUTS", "SIZES", "TRAINING", "Network", "federation", "loss"]
