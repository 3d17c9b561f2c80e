"""The common model with which a local phase begins for everyone, for runs that send changes of it.

It is the model of the last aggregate, whatever model the client itself trains from. A client that goes on from its own
model, or that could not use the last aggregate, still sends its difference from the model that all others have.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ml.clients.privacy import hide_update
from ml.errors import AggregationError
from ml.methods.base import Round
from ml.models.base import Model, dump_parameters
from ml.payload import Array, Arrays
from ml.specs import MethodSpec, add_kind, get_kind

_MODEL, _HEIGHT = "common", "common_height"  # the kinds under which a client's state has them


class CommonModel:
    """Stores the common model of one client: that of the aggregate at `height`, or, at 0, the run's initial model."""

    def __init__(self, spec: MethodSpec, initial: Model) -> None:
        self._spec = spec
        self._height = 0
        self._is_kept = spec.sends_changes or spec.hyperparameters.update_noise is not None
        self._model = dump_parameters(initial) if self._is_kept else {}

    def __repr__(self) -> str:
        return f"CommonModel(height={self._height}, arrays={len(self._model)})"

    def note(self, height: int, model: Arrays) -> None:
        """Stores the model in the aggregate of a height. Does nothing if a newer one is stored."""
        if self._is_kept and height >= self._height:
            self._height, self._model = height, {name: np.array(array) for name, array in model.items()}

    def validate(self, height: int) -> None:
        """Raises AggregationError if the run needs the common model, and the stored one is not that of the height
        before."""
        if self._is_kept and self._height != height - 1:
            raise AggregationError(
                f"height {height}: expected the common model of height {height - 1}, got that of {self._height}"
            )

    def pack(self, payloads: Mapping[str, Arrays], round_: Round) -> dict[str, Arrays]:
        """Returns the payloads of a round as they are sent. Raises AggregationError if the model of the height before
        is not stored."""
        hyper, height = self._spec.hyperparameters, round_.height
        self.validate(height)
        hidden = {
            kind: hide_update(hyper, round_, arrays, self._model) if kind == "model" else arrays
            for kind, arrays in payloads.items()
        }
        return {kind: self._spec.pack(kind, arrays, self._model, height) for kind, arrays in hidden.items()}

    def to_arrays(self) -> dict[str, Array]:
        """Returns the stored model and its height, for `load`; nothing if models are sent whole."""
        if not self._is_kept:
            return {}
        return add_kind(_MODEL, self._model) | add_kind(_HEIGHT, {"height": np.array([self._height], np.int64)})

    def load(self, arrays: Arrays) -> None:
        """Restores what `to_arrays` returned. Does nothing if the arrays have no common model."""
        height = get_kind(arrays, _HEIGHT)
        if self._is_kept and height is not None:
            self._height, self._model = int(height["height"][0]), get_kind(arrays, _MODEL) or {}
