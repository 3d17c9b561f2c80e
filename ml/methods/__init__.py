"""The training of each method, by name. Nothing is imported before it is asked for: methods need torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ml.errors import SpecError, suggest

if TYPE_CHECKING:
    from ml.methods.base import Method
    from ml.specs import MethodSpec

METHODS = {
    "local": "ml.methods.local:Local",
    "fedavg": "ml.methods.fedavg:FedAvg",
    "dfpl": "ml.methods.dfpl:Dfpl",
    "blade_fl": "ml.methods.blade_fl:BladeFl",
    "moon": "ml.methods.moon:Moon",
    "swim": "ml.methods.swim:Swim",
    "fedintr": "ml.methods.fedintr:FedIntR",
    "fedprox": "ml.methods.fedprox:FedProx",
    "fednova": "ml.methods.fednova:FedNova",
    "scaffold": "ml.methods.scaffold:Scaffold",
    "fededs": "ml.methods.fededs:FedEds",
    "fedproto": "ml.methods.fedproto:FedProto",
    "mpfedcl": "ml.methods.mpfedcl:MpFedCl",
    "uapdfl": "ml.methods.uapdfl:UaPdfl",
    "fedper": "ml.methods.fedper:FedPer",
    "fedrep": "ml.methods.fedrep:FedRep",
    "ditto": "ml.methods.ditto:Ditto",
    "fedbn": "ml.methods.fedbn:FedBn",
    "fedavg_p2p": "ml.methods.fedavg_p2p:FedAvgP2p",
    "dfedavgm": "ml.methods.dfedavgm:DFedAvgM",
    "dispfl": "ml.methods.dispfl:DisPfl",
    "criticalfl": "ml.methods.criticalfl:CriticalFl",
}
_OWN = METHODS | {"evaluation": "ml.methods.evaluation:Evaluation"}  # also what trains nothing


def make_method(spec: MethodSpec) -> Method:
    """The method of this spec. Raises SpecError for one that has no training here."""
    place = spec.training or _OWN.get(spec.name)
    if place is None:
        raise SpecError("method.name", f"unknown method {spec.name!r}: {suggest(spec.name, METHODS)}")
    module, _, name = place.partition(":")
    try:
        method: Method = getattr(import_module(module), name)(spec)
    except (ImportError, AttributeError) as error:
        if not spec.training:
            raise
        raise SpecError("method.name", f"importing {place}: {type(error).__name__}: {error}") from error
    return method
