"""The names that plugins build on, gathered in one place (docs: Your own code).

    from fednode.plugin import ModelSpec, ModelHyperparameters, number     # in the module of the spec: numpy alone
    from fednode.plugin import SharesModel, Batch, Prepared                # in the module that trains: loads torch

Each name is imported on its first use, so that a module of specs never loads torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ml.data.part import Part, Parts
    from ml.data.source import ALL, DataSource
    from ml.errors import DataError, PayloadError, SpecError
    from ml.methods.base import ClientData, Method, Round, State
    from ml.methods.common.mixing import AveragesParts
    from ml.methods.common.sharing import RemembersModel, SharesModel, SharesPrototypes
    from ml.methods.own_loop import LightningLoop, LoopData, LoopRound
    from ml.models.base import Model
    from ml.payload import ArraySchema, ArraySpec
    from ml.specs.base import MethodSpec
    from ml.specs.hyperparameters import Hyperparameters, choice, count, flag, number
    from ml.specs.peers import PeerHyperparameters, PeerSpec
    from ml.specs.sharing import ModelHyperparameters, ModelSpec, PrototypeHyperparameters, PrototypeSpec
    from ml.specs.task import Task
    from ml.training.loop import Batch, Prepared, Schedule, Tensors, compute_cross_entropy

__all__ = [
    "ALL",
    "DataSource",
    "Part",
    "Parts",
    "DataError",
    "PayloadError",
    "SpecError",
    "ArraySchema",
    "ArraySpec",
    "Hyperparameters",
    "MethodSpec",
    "Task",
    "choice",
    "count",
    "flag",
    "number",
    "ModelHyperparameters",
    "ModelSpec",
    "PeerHyperparameters",
    "PeerSpec",
    "PrototypeHyperparameters",
    "PrototypeSpec",
    "ClientData",
    "Method",
    "Round",
    "State",
    "AveragesParts",
    "RemembersModel",
    "SharesModel",
    "SharesPrototypes",
    "LightningLoop",
    "LoopData",
    "LoopRound",
    "Model",
    "Batch",
    "Prepared",
    "Schedule",
    "Tensors",
    "compute_cross_entropy",
]

_PLACES = {
    "ml.data.part": ("Part", "Parts"),
    "ml.data.source": ("ALL", "DataSource"),
    "ml.errors": ("DataError", "PayloadError", "SpecError"),
    "ml.payload": ("ArraySchema", "ArraySpec"),
    "ml.specs.base": ("MethodSpec",),
    "ml.specs.hyperparameters": ("Hyperparameters", "choice", "count", "flag", "number"),
    "ml.specs.peers": ("PeerHyperparameters", "PeerSpec"),
    "ml.specs.sharing": ("ModelHyperparameters", "ModelSpec", "PrototypeHyperparameters", "PrototypeSpec"),
    "ml.specs.task": ("Task",),
    "ml.methods.base": ("ClientData", "Method", "Round", "State"),
    "ml.methods.common.mixing": ("AveragesParts",),
    "ml.methods.common.sharing": ("RemembersModel", "SharesModel", "SharesPrototypes"),
    "ml.methods.own_loop": ("LightningLoop", "LoopData", "LoopRound"),
    "ml.models.base": ("Model",),
    "ml.training.loop": ("Batch", "Prepared", "Schedule", "Tensors", "compute_cross_entropy"),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imports the object of this name on its first use, and keeps it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from fednode._names import claim_names

        claim_names()
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
