"""Attacks that a liar computes from its own numbers alone. Notation as in `ml.attacks.vectors`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ml.attacks.vectors import PROTOTYPES, Floats, Vector, VectorAttack
from ml.specs.hyperparameters import number


@dataclass(frozen=True, kw_only=True)
class SignFlip(VectorAttack):
    """Sends x_0 - scale * (x - x_0): away from what was learned; for prototypes -scale * p.

    Li, Xu, Chen, Giannakis, Ling, *RSA: Byzantine-Robust Stochastic Aggregation Methods for Distributed Learning from
    Heterogeneous Datasets*, 2019: "sign-flipping", which flips what is sent and makes it larger.
    """

    name: ClassVar[str] = "sign_flip"

    scale: float = number(1.0, "(0, inf)")

    def bend(self, vector: Vector, num_members: int) -> Floats:
        return vector.start - self.scale * (vector.x - vector.start)


@dataclass(frozen=True, kw_only=True)
class ScaledUpdate(VectorAttack):
    """Sends x_0 + scale * (x - x_0): what was learned, many times over, so that it replaces that of all others; for
    prototypes scale * p.

    Bagdasaryan, Veit, Hua, Estrin, Shmatikov, *How To Backdoor Federated Learning*, 2020, Eq. (3), with an honest model
    for X: a member that sends n times its change of the common model alone decides the result of an unweighted mean of
    n.
    """

    name: ClassVar[str] = "scaled_update"

    scale: float = number(10.0, "(0, inf)")

    def bend(self, vector: Vector, num_members: int) -> Floats:
        return vector.start + self.scale * (vector.x - vector.start)


@dataclass(frozen=True, kw_only=True)
class Noise(VectorAttack):
    """Sends x_0 + N(0, sigma^2), drawn for each element separately.

    Blanchard, El Mhamdi, Guerraoui, Stainer, *Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent*,
    2017: "Gaussian", a draw around 0 in place of a gradient. Its deviation is 200, where weights are hardly above 1.
    """

    name: ClassVar[str] = "noise"

    sigma: float = number(1.0, "(0, inf)")

    def bend(self, vector: Vector, num_members: int) -> Floats:
        return vector.start + vector.rng.normal(0.0, self.sigma, vector.x.shape)


@dataclass(frozen=True, kw_only=True)
class Huge(VectorAttack):
    """Sends `value` everywhere: finite, in form, and absurd. By default it is a tenth of the limit that genesis has."""

    name: ClassVar[str] = "huge"

    value: float = number(1e5, "(-inf, inf)")

    def bend(self, vector: Vector, num_members: int) -> Floats:
        return np.full_like(vector.x, self.value)


@dataclass(frozen=True, kw_only=True)
class ShiftedPrototypes(VectorAttack):
    """Sends p + shift in every element: all classes look alike as far as the shift outweighs their differences."""

    name: ClassVar[str] = "shifted_prototypes"
    kinds: ClassVar[frozenset[str] | None] = PROTOTYPES

    shift: float = number(10.0, "(-inf, inf)")

    def bend(self, vector: Vector, num_members: int) -> Floats:
        return vector.x + self.shift
