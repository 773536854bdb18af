"""undrift: federated learning that holds course when the clients' data differ."""

from undrift import algorithms, data, models
from undrift.core.algorithm import Algorithm, Averaging, Cost
from undrift.core.cohort import Cohort
from undrift.core.errors import InvalidInput
from undrift.core.local import Batch, Local
from undrift.core.records import Each, Had, Mean, Message, Scalar, State, Sum, Upload, Vector
from undrift.core.training import Training
from undrift.data import Dataset
from undrift.experiment.description import Experiment
from undrift.experiment.execute import Result
from undrift.experiment.start import run
from undrift.ledger.history import History
from undrift.ledger.store import Ledger

__all__ = [
    "Algorithm",
    "Averaging",
    "Batch",
    "Cohort",
    "Cost",
    "Dataset",
    "Each",
    "Experiment",
    "Had",
    "History",
    "InvalidInput",
    "Ledger",
    "Local",
    "Mean",
    "Message",
    "Result",
    "Scalar",
    "State",
    "Sum",
    "Training",
    "Upload",
    "Vector",
    "algorithms",
    "data",
    "models",
    "run",
]
