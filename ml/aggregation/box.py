"""The box around the last aggregate, to which a mean that cannot be judged by its parts is clipped.

    out = float32( min(max(x, c - r), c + r) )        element by element

c is the last aggregate, and 0 where that has nothing yet; r is `radius`. Running statistics of batch norm have other
units than weights and a radius of their own, `buffer_radius`; a variance is never below 0. So nobody moves an element
by more than r in a round, whatever it sends and at whatever weight. Leaving something out does not get around the box:
a class that had a prototype keeps it if nobody holds the class any more.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ml.aggregation.contributed import Box, check_parent
from ml.aggregation.robust import RUNNING_STATISTICS
from ml.errors import AggregationError
from ml.payload import Array, Arrays

_VARIANCE = ".running_var"  # how the names of batch norm's variances end


def clip_arrays(mean: Arrays, parent: Arrays | None, box: Box) -> tuple[dict[str, Array], int]:
    """Returns whole arrays clipped to their box, and how many of their elements were outside. Raises
    AggregationError."""
    clipped, num_clipped = dict[str, Array](), 0
    for name, array in mean.items():
        center = (parent or {}).get(name)
        if center is None:
            center = np.zeros_like(array)
        check_parent(center, array, name)
        low = 0.0 if name.endswith(_VARIANCE) else -np.inf
        clipped[name], num = _clip(array, center, _get_radius(name, box), low)
        num_clipped += num
    return clipped, num_clipped


def clip_classes(mean: Arrays, parent: Arrays | None, box: Box) -> tuple[dict[str, Array], int]:
    """Returns prototypes clipped to their box, class by class, and how many of their elements were outside. Classes
    that only the parent has keep its prototypes. Raises AggregationError."""
    rows, before = _get_rows(mean), _get_rows(parent or {})
    held, num_clipped = dict(before), 0
    for class_id, row in rows.items():
        center = before.get(class_id, np.zeros_like(row))
        check_parent(center, row, "prototypes")
        held[class_id], num = _clip(row, center, box.radius, -np.inf)
        num_clipped += num
    classes = sorted(held)
    stacked = np.stack([held[class_id] for class_id in classes]) if classes else mean["prototypes"]
    return {"classes": np.array(classes, np.int64), "prototypes": stacked}, num_clipped


def _get_radius(name: str, box: Box) -> float:
    if not name.endswith(RUNNING_STATISTICS):
        return box.radius
    if box.buffer_radius is None:
        raise AggregationError(f"array {name!r}: expected a radius of running statistics, got none")
    return box.buffer_radius


def _get_rows(arrays: Mapping[str, Array]) -> dict[int, Array]:
    """Returns the prototypes by class."""
    if "classes" not in arrays:
        return {}
    return dict(zip(arrays["classes"].tolist(), arrays["prototypes"], strict=True))


def _clip(x: Array, center: Array, radius: float, low: float) -> tuple[Array, int]:
    """Returns `x` clipped to the box of this radius, no side of which is below `low`, and how many elements were
    outside."""
    middle, wide = center.astype(np.float64), x.astype(np.float64)
    lowest, highest = np.maximum(middle - radius, low), np.maximum(middle + radius, low)
    is_out = (wide < lowest) | (wide > highest)
    inside: Array = np.minimum(np.maximum(wide, lowest), highest).astype(np.float32)
    return inside, int(np.count_nonzero(is_out))
