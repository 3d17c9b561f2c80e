"""SWIM: MOON's contrast with a sliding window of older representations, some of which attract (ALGORITHMS §9).

Zhang, Chen, Wen, Bian, *SWIM: Sliding-Window Model Contrast for Federated Learning*, 2025. What is exchanged is
FedAvg's. The weight of the contrast falls to 0 in the last round, so the number of rounds must be set.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ml.errors import SpecError
from ml.specs.hyperparameters import Hyperparameters, number
from ml.specs.sharing import ModelHyperparameters, ModelSpec


@dataclass(frozen=True, kw_only=True)
class SwimHyperparameters(ModelHyperparameters):
    """Settings of SWIM. `tau` is the temperature, `window` the size of the sliding window as a fraction of local work,
    the code's `kr`."""

    tau: float = number(0.5, "(0, inf)")
    window: float = number(0.4, "(0, 1]")


@dataclass(frozen=True)
class SwimSpec(ModelSpec):
    """SWIM's spec, which exchanges the model alone."""

    name: ClassVar[str] = "swim"
    settings: ClassVar[type[Hyperparameters]] = SwimHyperparameters

    hyperparameters: SwimHyperparameters

    def __post_init__(self) -> None:
        if not self.task.rounds:
            raise SpecError("rounds", "swim expects a number of rounds, over which its contrast fades out, got 0")

    @property
    def window_size(self) -> int:
        """C = ceil(window * E), with E in the unit of the local work; no larger than the number of rounds before the
        last."""
        size = math.ceil(round(self.hyperparameters.window * self.hyperparameters.local_work, 9))
        return max(1, min(size, self.task.rounds - 1))

    def compute_mu(self, height: int) -> float:
        """Computes mu_r = 0.5 - r / (2R), the contrast's weight in round `height`."""
        return max(0.0, 0.5 - height / (2 * self.task.rounds))
