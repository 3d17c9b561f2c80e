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

USUAL_MAX_WEIGHT = 1_000_000  # the limit of a genesis that sets none
MAX_ABS = 1e6  # limit of a payload's floats unless genesis sets one: far above what trains, far below an overflow


@dataclass(frozen=True)
class Task:
    """Describes what a federation trains: the model, the (channels, height, width) of its input, and the number of
    classes, or for other values of `kind` that of labels or of targets. `scale` has the mean and deviation of targets.

    `max_weight` is genesis' limit on weights, and on every other number that is used as one. `rounds` is how many are
    planned, 0 if there is no end to them. `num_members` is n, 0 if nothing will be aggregated. `max_abs` limits the
    absolute value of a float in a payload; those of an aggregate may be larger.
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
        """The word for the model's outputs."""
        return {CLASSIFICATION: "classes", MULTILABEL: "labels"}.get(self.kind, "targets")

    @cached_property
    def layout(self) -> Layout:
        """The layout of the model, from its description alone."""
        return get_layout(self.model, self.input_shape, self.num_classes)

    @cached_property
    def model_schema(self) -> ArraySchema:
        """The schema of a model that is sent whole: parameters and buffers."""
        return model_schema(self.model, self.input_shape, self.num_classes)

    @cached_property
    def parameter_schema(self) -> ArraySchema:
        """The schema of the parameters alone, without the running statistics of batch norm."""
        return model_schema(self.model, self.input_shape, self.num_classes, buffers=False)

    @cached_property
    def initial_schema(self) -> ArraySchema:
        """The schema of block 0's "model/": the arrays that are sent in rounds, and a frozen encoder."""
        return initial_schema(self.model, self.input_shape, self.num_classes)

    @cached_property
    def num_parameters(self) -> int:
        return num_parameters(self.model, self.input_shape, self.num_classes)

    @property
    def embedding_dim(self) -> int:
        return self.layout.layers[-1]

    @property
    def slot_dim(self) -> int:
        """The width of the last Linear layer's input: the embedding's, unless the classifier has more layers than
        one."""
        return self.layout.slot_dim

    @property
    def layer_dims(self) -> tuple[int, ...]:
        """The width of each intermediate representation, the embedding's last."""
        return self.layout.layers

    @property
    def classifier_names(self) -> tuple[str, ...]:
        """The names of the parameters of h; all others are g's."""
        return self.layout.classifier
