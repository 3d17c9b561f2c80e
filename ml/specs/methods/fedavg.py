"""FedAvg: the mean of the models, weighted by how many samples each has seen (ALGORITHMS §9).

McMahan et al., *Communication-Efficient Learning of Deep Networks from Decentralized Data*, 2017. A member that misses
the round is left out and the weights are those of the others. The defaults of local work are DFPL's, so that the two
are compared at the same one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ml.specs.sharing import ModelSpec


@dataclass(frozen=True)
class FedAvgSpec(ModelSpec):
    """FedAvg's spec, which exchanges the model alone."""

    name: ClassVar[str] = "fedavg"
    hides_samples: ClassVar[bool] = True
