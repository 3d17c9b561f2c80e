"""The task a method is set: the model, what it sees, and what its outputs are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ml.aggregation import MAX_WEIGHT
from ml.errors import SpecError
from ml.payload import ArraySchema
from ml.specs.architectures import Layout, get_layout, initial_schema, model_schema, num_parameters
from ml.tasks import CLASSIFICATION, MULTILABEL, TargetScale

USUAL_MAX_WEIGHT = 1_000_000  # as a genesis has it that nobody has set it in
MAX_ABS = 1e6  # of a payload's floats, unless genesis sets another limit: far above what trains, far below an overflow


@dataclass(frozen=True)
class Task:
    """The task of a federation: the model, the (channels, height, width) it sees, and the number of classes; or by
    `kind` that of labels or of targets, which `scale` has the mean and deviation of.

    `max_weight` is genesis' limit on weights, and on every other number that is used as one. `rounds` is how many are
    planned, 0 if there is no end to them. `num_members` is n, 0 where nothing will be aggregated. `max_abs` is how far
    from 0 a float of a payload may be; of an aggregate it may be farther.
    """

    model: Mapping[str, Any]
    input_shape: tuple[int, ...]
    num_classes: int
    max_weight: int = MAX_WEIGHT
    rounds: int = 0
    num_members: int = 0
    max_abs: float = MAX_ABS
    kind: str = CLASSIFICATION
    scale: TargetScale = field(default_factory=TargetScale)

    def __post_init__(self) -> None:
        least = 2 if self.kind == CLASSIFICATION else 1
        if type(self.num_classes) is not int or not least <= self.num_classes <= 1 << 16:
            raise SpecError("classes", f"expected {least} to {1 << 16} {self.noun}, got {self.num_classes!r}")
        if type(self.max_weight) is not int or not 1 <= self.max_weight <= MAX_WEIGHT:
            raise SpecError("limits.max_weight", f"expected 1 to {MAX_WEIGHT}, got {self.max_weight!r}")
        if not 0 < self.max_abs < math.inf:
            raise SpecError("limits.max_abs", f"expected a finite number above 0, got {self.max_abs!r}")
        self.layout  # noqa: B018 - raises for a model that cannot be

    @property
    def noun(self) -> str:
        """What the model's outputs are."""
        return {CLASSIFICATION: "classes", MULTILABEL: "labels"}.get(self.kind, "targets")

    @cached_property
    def layout(self) -> Layout:
        """All there is to know of the model before it is built."""
        return get_layout(self.model, self.input_shape, self.num_classes)

    @cached_property
    def model_schema(self) -> ArraySchema:
        """The schema of a model that travels whole: parameters and buffers."""
        return model_schema(self.model, self.input_shape, self.num_classes)

    @cached_property
    def parameter_schema(self) -> ArraySchema:
        """The parameters alone, without the running statistics of batch norm."""
        return model_schema(self.model, self.input_shape, self.num_classes, buffers=False)

    @cached_property
    def initial_schema(self) -> ArraySchema:
        """Block 0's "model/": what travels, and a frozen encoder."""
        return initial_schema(self.model, self.input_shape, self.num_classes)

    @cached_property
    def num_parameters(self) -> int:
        return num_parameters(self.model, self.input_shape, self.num_classes)

    @property
    def embedding_dim(self) -> int:
        return self.layout.layers[-1]

    @property
    def slot_dim(self) -> int:
        """The width of what the last Linear takes: the embedding's, unless the classifier has more layers than one."""
        return self.layout.slot_dim

    @property
    def layer_dims(self) -> tuple[int, ...]:
        """The width of each intermediate representation, the embedding's last."""
        return self.layout.layers

    @property
    def classifier_names(self) -> tuple[str, ...]:
        """The parameters of h; all others are g's."""
        return self.layout.classifier
