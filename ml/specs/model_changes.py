"""Models that are sent as their training's changes, in half precision: half the bytes of a round.

    change = float16(clip((float64(model) - float64(parent)) * 2^10, -65504, 65504))
    model' = float32(clip(float64(parent) + float64(change) / 2^10, -max_abs, max_abs))        element by element

The parent is the common model with which the round began, and which everyone has. So model' is the same bits
everywhere, and the rules of `ml.aggregation` see whole models as always. Half precision has 11 bits, so a change is off
by a 2,048th of itself at most; a weight in half precision would be off by as much of the weight. The factor keeps
changes down to 6e-8 at full precision. Changes of 64 and more are cut; their rest is part of the next round's change.
Running statistics, and arrays that the parent does not have, are sent as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ml.errors import AggregationError
from ml.payload import Array, Arrays, ArraySchema, ArraySpec

SCALE = 1024.0
MOST = 65504.0  # the largest float16


def make_change_schema(schema: ArraySchema, parameters: Mapping[str, object]) -> ArraySchema:
    """Returns the schema of a model whose trained `parameters` are sent as changes."""
    arrays = {
        name: ArraySpec("float16", array.shape) if name in parameters and array.dtype == "float32" else array
        for name, array in schema.arrays.items()
    }
    return ArraySchema(arrays, schema.bounds)


def compute_changes(model: Arrays, parent: Arrays, schema: ArraySchema) -> dict[str, Array]:
    """Computes what is sent in place of `model`. Raises AggregationError if the parent is another model."""
    return {
        name: _compute_change(array, _get_parent(parent, name, array)) if _is_change(schema, name) else array
        for name, array in model.items()
    }


def add_changes(sent: Arrays, parent: Arrays | None, schema: ArraySchema, max_abs: float) -> dict[str, Array]:
    """Returns the model that was sent as changes of the parent. Raises AggregationError if the parent is another
    model."""
    return {
        name: _add_change(array, _get_parent(parent or {}, name, array), max_abs) if _is_change(schema, name) else array
        for name, array in sent.items()
    }


def _is_change(schema: ArraySchema, name: str) -> bool:
    return name in schema.arrays and schema.arrays[name].dtype == "float16"


def _get_parent(parent: Arrays, name: str, like: Array) -> Array:
    found = parent.get(name)
    if found is None or found.shape != like.shape or found.dtype != np.float32:
        got = "none" if found is None else f"{found.dtype} {list(found.shape)}"
        raise AggregationError(f"array {name!r}: expected float32 {list(like.shape)} in the parent's model, got {got}")
    return found


def _compute_change(model: Array, parent: Array) -> Array:
    change = model.astype(np.float64)
    change -= parent
    change *= SCALE
    return np.clip(change, -MOST, MOST, out=change).astype(np.float16)


def _add_change(change: Array, parent: Array, max_abs: float) -> Array:
    model = change.astype(np.float64)
    model /= SCALE
    model += parent
    return np.clip(model, -max_abs, max_abs, out=model).astype(np.float32)
