"""The methods that a federation can agree on, by name; the training of each is in the file of the same name in
`ml.methods`."""

from __future__ import annotations

from ml.specs.base import MethodSpec
from ml.specs.methods.blade_fl import BladeFlSpec
from ml.specs.methods.criticalfl import CriticalFlSpec
from ml.specs.methods.dfedavgm import DFedAvgMSpec
from ml.specs.methods.dfpl import DfplSpec
from ml.specs.methods.dispfl import DisPflSpec
from ml.specs.methods.ditto import DittoSpec
from ml.specs.methods.fedala import FedAlaSpec
from ml.specs.methods.fedavg import FedAvgSpec
from ml.specs.methods.fedavg_p2p import FedAvgP2pSpec
from ml.specs.methods.fedbn import FedBnSpec
from ml.specs.methods.feddbe import FedDbeSpec
from ml.specs.methods.fededs import FedEdsSpec
from ml.specs.methods.fedintr import FedIntRSpec
from ml.specs.methods.fednova import FedNovaSpec
from ml.specs.methods.fedper import FedPerSpec
from ml.specs.methods.fedproto import FedProtoSpec
from ml.specs.methods.fedprox import FedProxSpec
from ml.specs.methods.fedrep import FedRepSpec
from ml.specs.methods.local import LocalSpec
from ml.specs.methods.moon import MoonSpec
from ml.specs.methods.mpfedcl import MpFedClSpec
from ml.specs.methods.scaffold import ScaffoldSpec
from ml.specs.methods.swim import SwimSpec
from ml.specs.methods.uapdfl import UaPdflSpec

METHODS: dict[str, type[MethodSpec]] = {
    "local": LocalSpec,
    "fedavg": FedAvgSpec,
    "dfpl": DfplSpec,
    "blade_fl": BladeFlSpec,
    "moon": MoonSpec,
    "swim": SwimSpec,
    "fedintr": FedIntRSpec,
    "fedprox": FedProxSpec,
    "fednova": FedNovaSpec,
    "scaffold": ScaffoldSpec,
    "fededs": FedEdsSpec,
    "fedproto": FedProtoSpec,
    "mpfedcl": MpFedClSpec,
    "uapdfl": UaPdflSpec,
    "fedper": FedPerSpec,
    "fedrep": FedRepSpec,
    "ditto": DittoSpec,
    "fedbn": FedBnSpec,
    "fedavg_p2p": FedAvgP2pSpec,
    "dfedavgm": DFedAvgMSpec,
    "dispfl": DisPflSpec,
    "criticalfl": CriticalFlSpec,
    "fedala": FedAlaSpec,
    "feddbe": FedDbeSpec,
}
