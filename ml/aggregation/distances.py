"""Integer distances between the authors' vectors, the same on every machine (PROTOCOL §2).

    d_i = int64(rint((float64(x_i) - float64(p)) * 2^20))        element by element

p is a point that all measure from. A sum of floats would depend on its order, and so on the machine; a sum of integers
does not. An author with any |d| above 2^25 - 1, an element more than 32 away from p, is infinitely far from everything:
left out, and never cut to the nearest number that would still count. Squares are added in int64 over runs of 1,024
elements, below 2^62 even between two authors, and the runs as Python's integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ml.payload import Array

SCALE = 1 << 20
MOST = (1 << 25) - 1  # of |d|
RUN = 1024  # elements
INFINITE = 1 << 128  # far above any square: 2^52 times the elements of a model


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Holds one array of the vectors: each author's float32 in author order, and the point's."""

    rows: Sequence[Array]
    origin: Array


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Holds the vectors of m authors and the point p, array by array."""

    num_authors: int
    layers: Sequence[Layer]

    def compute_norms(self, block_elements: int) -> list[int]:
        """Computes the squared distance of each author from p, scaled by 2^40; INFINITE at most."""
        norms = [0] * self.num_authors
        for d_MB, is_far_M in self._walk(block_elements):
            for i in range(self.num_authors):
                norms[i] += INFINITE if is_far_M[i] else _sum_squares(d_MB[i])
        return [min(norm, INFINITE) for norm in norms]

    def compute_distances(self, block_elements: int) -> list[list[int]]:
        """Computes the squared distance of each two authors, scaled by 2^40: a symmetric matrix. All distances of an
        author that is infinitely far from p are INFINITE, that from itself too."""
        m = self.num_authors
        distances = [[0] * m for _ in range(m)]
        has_left = np.zeros(m, bool)
        for d_MB, is_far_M in self._walk(block_elements):
            has_left |= is_far_M
            for i in range(m):
                for j in range(i):
                    distances[i][j] += _sum_squares(d_MB[i] - d_MB[j])
        for i in range(m):
            for j in range(i + 1):
                distances[i][j] = distances[j][i] = INFINITE if has_left[i] or has_left[j] else distances[i][j]
        return distances

    def _walk(self, block_elements: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Yields d of all authors for one block of elements after the other, with zeros for authors that are too far in
        it, and which authors these are."""
        for layer in self.layers:
            flat, origin = [row.reshape(-1) for row in layer.rows], layer.origin.reshape(-1)
            for start in range(0, origin.size, block_elements):
                block = slice(start, start + block_elements)
                p_B = origin[block].astype(np.float64)
                d_MB = np.zeros((self.num_authors, p_B.size), np.int64)
                is_far_M = np.zeros(self.num_authors, bool)
                for i, x in enumerate(flat):
                    steps_B = x[block].astype(np.float64)
                    steps_B -= p_B
                    steps_B *= SCALE
                    np.rint(steps_B, out=steps_B)
                    is_far_M[i] = not max(steps_B.max(), -steps_B.min()) <= MOST
                    if not is_far_M[i]:
                        d_MB[i] = steps_B
                yield d_MB, is_far_M


def _sum_squares(d_B: NDArray[np.int64]) -> int:
    runs = np.add.reduceat(np.square(d_B), np.arange(0, d_B.size, RUN))
    return sum(runs.tolist())
