"""The common model that a local phase begins with for everyone, where what is sent goes by the change of it.

It is that of the last aggregate, whatever a client has made of it: one that goes on from its own model, or has taken an
older aggregate since the last was of no use to it, says all the same what differs from what all others have.
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

_MODEL, _HEIGHT = "common", "common_height"  # the kinds it has among a client's arrays


class CommonModel:
    """One client's: of the aggregate at `height`, 0 for the model that a run begins from."""

    def __init__(self, spec: MethodSpec, initial: Model) -> None:
        self._spec = spec
        self._height = 0
        self._is_kept = spec.sends_changes or spec.hyperparameters.update_noise is not None
        self._model = dump_parameters(initial) if self._is_kept else {}

    def __repr__(self) -> str:
        return f"CommonModel(height={self._height}, arrays={len(self._model)})"

    def note(self, height: int, model: Arrays) -> None:
        """The model in the aggregate of a height. Of an older one than is known nothing is noted."""
        if self._is_kept and height >= self._height:
            self._height, self._model = height, {name: np.array(array) for name, array in model.items()}

    def validate(self, height: int) -> None:
        """Raises AggregationError where the aggregate below a height, which it is of, is not known."""
        if self._is_kept and self._height != height - 1:
            raise AggregationError(
                f"height {height}: expected the common model of height {height - 1}, got that of {self._height}"
            )

    def pack(self, payloads: Mapping[str, Arrays], round_: Round) -> dict[str, Arrays]:
        """What payloads of a round are sent as. Raises AggregationError where the aggregate below is not known."""
        hyper, height = self._spec.hyperparameters, round_.height
        self.validate(height)
        hidden = {
            kind: hide_update(hyper, round_, arrays, self._model) if kind == "model" else arrays
            for kind, arrays in payloads.items()
        }
        return {kind: self._spec.pack(kind, arrays, self._model, height) for kind, arrays in hidden.items()}

    def to_arrays(self) -> dict[str, Array]:
        """For `load`; nothing where models are sent whole."""
        if not self._is_kept:
            return {}
        return add_kind(_MODEL, self._model) | add_kind(_HEIGHT, {"height": np.array([self._height], np.int64)})

    def load(self, arrays: Arrays) -> None:
        """Becomes what they were made of; stays as it is where that kept none."""
        height = get_kind(arrays, _HEIGHT)
        if self._is_kept and height is not None:
            self._height, self._model = int(height["height"][0]), get_kind(arrays, _MODEL) or {}
