"""Vectors of masked sums: a member's model or prototypes as whole numbers that can be summed, and the mean computed
from the sum.

A sum that no members' numbers can have, as random bytes make it, has no mean.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

import numpy as np

from ml.aggregation.box import clip_arrays, clip_classes
from ml.aggregation.contributed import Box
from ml.aggregation.fixed_point import Integers, from_fixed, is_in_range, to_fixed
from ml.payload import Array, Arrays, ArraySchema
from ml.specs.base import MethodSpec


class Coding:
    """Encodes payloads of one kind as vectors of integers, and decodes a sum of these to their mean."""

    kind: str
    size: int
    names: Collection[str]  # names of the arrays

    def is_held(self, aggregate: Arrays | None) -> bool:
        """Says whether an aggregate has a mean, and not only the model with which a run begins."""
        return all(f"{self.kind}/{name}" in (aggregate or {}) for name in self.names)

    def encode(self, arrays: Arrays, weight: int, bits: int) -> Integers:
        """Returns a member's vector, int64[size]."""
        raise NotImplementedError

    def decode(
        self, total: Integers, weight: int, bits: int, num_authors: int, max_abs: float
    ) -> dict[str, Array] | None:
        """Returns the mean of the payloads of so many authors, of this weight together; None if no payloads can have
        this sum."""
        raise NotImplementedError

    def clip(self, mean: Arrays, before: Arrays, box: Box) -> tuple[dict[str, Array], int]:
        """Returns the mean clipped to its box around `before`, and how many of its numbers were outside. Raises
        AggregationError."""
        raise NotImplementedError


class ModelCoding(Coding):
    """Encodes whole float32 arrays, one after the other by name."""

    def __init__(self, kind: str, schema: ArraySchema) -> None:
        self.kind = kind
        self._shapes = {name: tuple(map(int, schema.arrays[name].shape)) for name in sorted(schema.arrays)}
        self.names = self._shapes.keys()
        self.size = sum(map(prod, self._shapes.values()))

    def encode(self, arrays: Arrays, weight: int, bits: int) -> Integers:
        return np.concatenate([to_fixed(arrays[name].reshape(-1), weight, bits) for name in self._shapes])

    def decode(
        self, total: Integers, weight: int, bits: int, num_authors: int, max_abs: float
    ) -> dict[str, Array] | None:
        if not is_in_range(total, weight, bits, max_abs, num_authors):
            return None
        mean = from_fixed(total, weight, bits)
        arrays, start = {}, 0
        for name, shape in self._shapes.items():
            arrays[name] = mean[start : start + prod(shape)].reshape(shape)
            start += prod(shape)
        return arrays

    def clip(self, mean: Arrays, before: Arrays, box: Box) -> tuple[dict[str, Array], int]:
        return clip_arrays(mean, before, box)


class PrototypeCoding(Coding):
    """Encodes prototypes float32[C, D] of all classes, 0 for those that a member does not hold, followed by how much
    each class counts, so that nobody learns who holds which class."""

    kind = "prototypes"
    names = ("classes", "prototypes")

    def __init__(self, spec: MethodSpec) -> None:
        self._num_classes, self._dim = spec.task.num_classes, spec.task.embedding_dim
        self._max_count = spec.task.max_weight if "counts" in spec.schemas(1)[self.kind].arrays else 1
        self.size = self._num_classes * (self._dim + 1)

    def encode(self, arrays: Arrays, weight: int, bits: int) -> Integers:
        vector = np.zeros(self.size, np.int64)
        sums, counts = self._split(vector)
        held = arrays["counts"] if "counts" in arrays else np.ones(len(arrays["classes"]), np.int64)
        for class_id, row, count in zip(arrays["classes"].tolist(), arrays["prototypes"], held.tolist(), strict=True):
            sums[class_id], counts[class_id] = to_fixed(row, count, bits), count
        return vector

    def decode(
        self, total: Integers, weight: int, bits: int, num_authors: int, max_abs: float
    ) -> dict[str, Array] | None:
        sums, counts = self._split(total)
        for row, count in zip(sums, counts.tolist(), strict=True):
            if not 0 <= count <= num_authors * self._max_count:
                return None
            if not is_in_range(row, count, bits, max_abs, num_authors):
                return None
        held = np.flatnonzero(counts)
        rows = [from_fixed(sums[class_id], int(counts[class_id]), bits) for class_id in held]
        stacked = np.stack(rows) if rows else np.empty((0, self._dim), np.float32)
        return {"classes": held.astype(np.int64), "prototypes": stacked}

    def clip(self, mean: Arrays, before: Arrays, box: Box) -> tuple[dict[str, Array], int]:
        return clip_classes(mean, before, box)

    def _split(self, vector: Integers) -> tuple[Integers, Integers]:
        at = self._num_classes * self._dim
        return vector[:at].reshape(self._num_classes, self._dim), vector[at:]
