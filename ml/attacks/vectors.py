"""Attacks on vectors: weights of a model or of its parts, prototypes, auxiliary representations, control variates,
means of embeddings.

Each such attack is one formula. x is what an honest member would send and x_0 what its local phase began from: the
common model, or the member's own where there is none; and 0 for all other vectors, which are made in each round.
Running statistics of batch norm stay true, as the papers' attacks are on gradients.

A lie keeps to the bounds of what is sent: a row of MP-FedCL's pool is cut to unit length.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ml.aggregation.robust import RUNNING_STATISTICS
from ml.attacks.base import Attack, Scene
from ml.payload import Array, Arrays
from ml.specs import MethodSpec
from ml.specs.methods.dispfl import MASK, DisPflSpec, unpack_mask
from ml.specs.methods.feddbe import REPRESENTATION
from ml.specs.methods.mpfedcl import MpFedClSpec
from ml.specs.methods.scaffold import CONTROL

Floats = NDArray[np.float64]

MODELS = frozenset({"model", "g", "h"})
PROTOTYPES = frozenset({"prototypes"})
CHANGES = frozenset({"auxiliary", CONTROL, REPRESENTATION})  # kinds without a common start, around 0


@dataclass(frozen=True, slots=True, eq=False)
class Vector:
    """The vectors that an attack bends, all of one shape: the liar's x and x_0, and the x of each honest member that
    has one. `honest` has at least one: the liar's own, where no other member has any."""

    x: Floats
    start: Floats
    honest: Sequence[Floats]
    rng: Generator

    @property
    def mean(self) -> Floats:
        """The mean of the honest vectors."""
        mean: Floats = np.mean(self.honest, 0)
        return mean

    @property
    def std(self) -> Floats:
        """The population standard deviation of the honest, element by element."""
        std: Floats = np.std(self.honest, 0)
        return std


class VectorAttack(Attack):
    """An attack that bends vectors one by one. In UA-PDFL a colluding liar, which sees the others, also sends the mean
    of their unit representations as its own, so that as many members as possible find it similar."""

    kinds: ClassVar[frozenset[str] | None] = MODELS | PROTOTYPES | CHANGES

    @abstractmethod
    def bend(self, vector: Vector, num_members: int) -> Floats:
        """Returns the vector sent in place of `vector.x`."""

    def applies_to(self, spec: MethodSpec) -> bool:
        # The numbers of two DisPFL members belong to different weights: they have no mean.
        return super().applies_to(spec) and not (self.sees_others and isinstance(spec, DisPflSpec))

    def lie(self, scene: Scene) -> Mapping[str, Arrays]:
        return {kind: self._bend_payload(kind, scene) for kind in sorted(scene.truly)}

    def _bend_payload(self, kind: str, scene: Scene) -> Arrays:
        arrays = scene.truly[kind]
        if kind == "unit" and self.sees_others and "unit" in arrays and scene.honest:
            units = np.array([sent[kind]["unit"] for sent in scene.honest], np.float64)
            return {"unit": _to_float32(units.mean(0))}
        if self.kinds is None or kind not in self.kinds:
            return arrays
        if kind == "prototypes":
            return {**arrays, "prototypes": self._bend_rows(scene)}
        return {
            **arrays,
            **{name: self._bend_array(kind, name, scene) for name in sorted(arrays) if _is_bent(arrays, name)},
        }

    def _bend_array(self, kind: str, name: str, scene: Scene) -> Array:
        x = scene.truly[kind][name]
        start = np.zeros_like(x) if kind in CHANGES else find_start(scene, kind, name)
        honest = [sent[kind][name] for sent in scene.honest]
        return self._bend(scene, x, start, honest)

    def _bend_rows(self, scene: Scene) -> Array:
        """Bends row by row, each with the honest members' rows of its class."""
        truly = scene.truly["prototypes"]
        rows = np.empty_like(truly["prototypes"])
        for i, (class_id, x) in enumerate(zip(truly["classes"], truly["prototypes"], strict=True)):
            of_class = [sent["prototypes"] for sent in scene.honest]
            honest = [row for sent in of_class for row in sent["prototypes"][sent["classes"] == class_id]]
            rows[i] = self._bend(scene, x, np.zeros_like(x), honest)
        return cut_rows(rows, scene.spec)

    def _bend(self, scene: Scene, x: Array, start: Array, honest: Sequence[Array]) -> Array:
        others = [array.astype(np.float64) for array in honest] or [x.astype(np.float64)]
        vector = Vector(x.astype(np.float64), start.astype(np.float64), others, scene.rng)
        return _to_float32(self.bend(vector, scene.num_members))


def find_start(scene: Scene, kind: str, name: str) -> Array:
    """Returns x_0 of one of a model's arrays; x itself where x_0 is not known, which leaves nothing to lie about."""
    x = scene.truly[kind][name]
    if MASK + name in scene.truly[kind]:
        whole = scene.start[name].reshape(-1)
        return whole[unpack_mask(scene.truly[kind][MASK + name], whole.size)]
    return (scene.common or {}).get(f"{kind}/{name}", scene.start.get(name, x))


def cut_rows(rows_ND: Array, spec: MethodSpec) -> Array:
    """Shortens rows to the length that validators accept: MP-FedCL's are those of unit vectors, unless it does not
    normalise."""
    if not isinstance(spec, MpFedClSpec) or not spec.hyperparameters.normalize:
        return rows_ND
    lengths_N1 = np.linalg.norm(rows_ND.astype(np.float64), axis=1, keepdims=True)
    return _to_float32(rows_ND / np.maximum(lengths_N1, 1.0))


def _is_bent(arrays: Arrays, name: str) -> bool:
    return arrays[name].dtype == np.float32 and not name.endswith(RUNNING_STATISTICS)


def _to_float32(values: Array) -> Array:
    with np.errstate(over="ignore"):  # a number that is too large becomes infinite, and is refused
        return values.astype(np.float32)
