"""Attacks made from the honest members' messages, which the liars see before they answer. Notation as in
`ml.attacks.vectors`; mu is the mean of the honest x."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

from ml.attacks.vectors import Floats, Vector, VectorAttack
from ml.specs.hyperparameters import number

LEAST_Z = 1.0


@dataclass(frozen=True, kw_only=True)
class Little(VectorAttack):
    """Sends mu + z * sigma, sigma the standard deviation of the honest x: a little off in every element, and nearer to
    the middle than many honest members.

    Baruch, Baruch, Goldberg, *A Little Is Enough: Circumventing Defenses For Distributed Learning*, 2019, algorithm 3,
    with the moments of all honest members in place of those that it has corrupted. `z` is by default z_max, but at
    least `LEAST_Z`: for three liars in ten z_max is 0.18, and for one in four it is below 0.
    """

    name: ClassVar[str] = "little"
    sees_others: ClassVar[bool] = True

    z: float | None = number(None, "(-inf, inf)")

    def bend(self, vector: Vector, num_members: int) -> Floats:
        z = max(LEAST_Z, compute_z_max(num_members, self.liars)) if self.z is None else self.z
        return vector.mean + z * vector.std


def compute_z_max(num_members: int, num_liars: int) -> float:
    """Computes the largest z for which Phi(z) < (n - m - s) / (n - m): s = floor(n / 2 + 1) - m of the honest, one at
    least, have to be farther from mu than the m liars. Returns minus infinity where that leaves no honest member
    nearer."""
    num_honest = num_members - num_liars
    supporters = max(1, num_members // 2 + 1 - num_liars)
    nearer = num_honest - supporters
    return NormalDist().inv_cdf(nearer / num_honest) if nearer > 0 else -math.inf


@dataclass(frozen=True, kw_only=True)
class InnerProduct(VectorAttack):
    """Sends x_0 - epsilon * (mu - x_0): against the direction of the honest members, and no longer than theirs; for
    prototypes -epsilon * mu.

    Xie, Koyejo, Gupta, *Fall of Empires: Breaking Byzantine-Tolerant SGD by Inner Product Manipulation*, 2019: u =
    -epsilon times the mean of the honest gradients, so that an aggregate which includes it moves the other way.
    """

    name: ClassVar[str] = "inner_product"
    sees_others: ClassVar[bool] = True

    epsilon: float = number(0.5, "(0, inf)")

    def bend(self, vector: Vector, num_members: int) -> Floats:
        return vector.start - self.epsilon * (vector.mean - vector.start)
