"""undrift: federated learning that holds course when the clients' data differ.

Names are imported when they are first used: an engine's process at a site imports ``undrift.deploy`` without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from undrift.core import plugins as plugins  # workers find code from outside by it

if TYPE_CHECKING:
    from undrift import algorithms, data, models
    from undrift.core.algorithm import Algorithm, Averaging, Broadcast, Cost, Displaced, Global, Trained
    from undrift.core.cohort import Cohort, Population
    from undrift.core.errors import InvalidInput
    from undrift.core.local import Batch, Local
    from undrift.core.records import (
        Body,
        Each,
        Had,
        Head,
        Mean,
        Message,
        Move,
        Nothing,
        PerClass,
        Point,
        Scalar,
        State,
        Sum,
        Table,
        Upload,
        Vector,
    )
    from undrift.core.reduce import Reducer
    from undrift.core.settings import at_least, between, nonnegative, positive
    from undrift.core.stages import Stage, Uploads
    from undrift.core.training import Training
    from undrift.core.vector import Layout
    from undrift.data import Dataset
    from undrift.experiment.description import Experiment
    from undrift.experiment.execute import Result
    from undrift.experiment.start import run
    from undrift.ledger.history import History
    from undrift.ledger.store import Ledger
    from undrift.studies.advise import advise
    from undrift.studies.compare import compare
    from undrift.studies.sweep import sweep
    from undrift.version import __version__

# The module that a name comes from; the same names as above, for those who are not type checkers.
_HOME = {
    "algorithms": "",
    "data": "",
    "models": "",
    "Algorithm": "core.algorithm",
    "Averaging": "core.algorithm",
    "Batch": "core.local",
    "Body": "core.records",
    "Broadcast": "core.algorithm",
    "Cohort": "core.cohort",
    "Cost": "core.algorithm",
    "Dataset": "data",
    "Displaced": "core.algorithm",
    "Each": "core.records",
    "Experiment": "experiment.description",
    "Global": "core.algorithm",
    "Had": "core.records",
    "Head": "core.records",
    "History": "ledger.history",
    "InvalidInput": "core.errors",
    "Layout": "core.vector",
    "Ledger": "ledger.store",
    "Local": "core.local",
    "Mean": "core.records",
    "Message": "core.records",
    "Move": "core.records",
    "Nothing": "core.records",
    "PerClass": "core.records",
    "Point": "core.records",
    "Population": "core.cohort",
    "Reducer": "core.reduce",
    "Result": "experiment.execute",
    "Scalar": "core.records",
    "Stage": "core.stages",
    "State": "core.records",
    "Sum": "core.records",
    "Table": "core.records",
    "Trained": "core.algorithm",
    "Training": "core.training",
    "Upload": "core.records",
    "Uploads": "core.stages",
    "Vector": "core.records",
    "__version__": "version",
    "advise": "studies.advise",
    "at_least": "core.settings",
    "between": "core.settings",
    "compare": "studies.compare",
    "nonnegative": "core.settings",
    "positive": "core.settings",
    "run": "experiment.start",
    "sweep": "studies.sweep",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME[name]
    found = getattr(import_module(f"{__name__}.{home}"), name) if home else import_module(f"{__name__}.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


__all__ = [
    "Algorithm",
    "Averaging",
    "Batch",
    "Body",
    "Broadcast",
    "Cohort",
    "Cost",
    "Dataset",
    "Displaced",
    "Each",
    "Experiment",
    "Global",
    "Had",
    "Head",
    "History",
    "InvalidInput",
    "Layout",
    "Ledger",
    "Local",
    "Mean",
    "Message",
    "Move",
    "Nothing",
    "PerClass",
    "Point",
    "Population",
    "Reducer",
    "Result",
    "Scalar",
    "Stage",
    "State",
    "Sum",
    "Table",
    "Trained",
    "Training",
    "Upload",
    "Uploads",
    "Vector",
    "__version__",
    "advise",
    "algorithms",
    "at_least",
    "between",
    "compare",
    "data",
    "models",
    "nonnegative",
    "positive",
    "run",
    "sweep",
]
