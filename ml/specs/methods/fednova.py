"""FedNova: FedAvg for clients that make different numbers of steps (ALGORITHMS §9, §11 E6 to E8).

Wang et al., *Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization*, 2020. A member
sends how many steps it made, and its difference from the common model is divided by them: more steps do not count for
more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from ml.aggregation.nova import MAX_NORM, MAX_STEPS, NOVA_NUMBERS, compute_norm
from ml.errors import PayloadError, SpecError
from ml.payload import Arrays, ArraySchema, ArraySpec
from ml.specs.hyperparameters import Hyperparameters, choice
from ml.specs.sharing import ModelHyperparameters, ModelSpec
from ml.specs.task import Task


@dataclass(frozen=True, kw_only=True)
class FedNovaHyperparameters(ModelHyperparameters):
    """Settings of FedNova. `unit`: whether tau counts mini-batch steps, as the reference code does, or local epochs, as
    FedEDS writes. `aggregation` has one value, for the rule is FedNova itself; `weight_cap` bounds both weights and
    tau."""

    aggregation: str = choice("mean")
    unit: str = choice("steps", "epochs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer not in (None, "sgd"):  # ||a||_1 is defined for SGD's steps
            raise SpecError("method.optimizer", f"expected sgd, got {self.optimizer}")
        if self.unit == "epochs" and not self.counts_epochs:
            raise SpecError("method.unit", "expected steps with local_iterations, got 'epochs': set local_epochs")
        check_settings(self, self.fixed_steps)

    @property
    def fixed_steps(self) -> int | None:
        """Every member's tau, if the settings fix it; None if it depends on time, or on the number of samples."""
        if self.budget_s is not None or self.counts_epochs != (self.unit == "epochs"):
            return None
        return self.local_work


@dataclass(frozen=True)
class FedNovaSpec(ModelSpec):
    """FedNova's spec: the model, and with it `local_steps` int64[1], the author's tau, and `norm` float64[1], the
    ||a||_1 that follows from tau and the momentum. The rule reads the norm, and computes it again for a tau that is
    capped.

    tau is checked if it is known. If it depends on time or samples, an author may claim any, as for the number of its
    samples, up to `weight_cap`: a claim of more steps than were made makes the author's own difference shorter, and
    those of all others longer.
    """

    name: ClassVar[str] = "fednova"
    settings: ClassVar[type[Hyperparameters]] = FedNovaHyperparameters

    hyperparameters: FedNovaHyperparameters

    def __post_init__(self) -> None:
        check_names(self.task)

    @cached_property
    def _schemas(self) -> Mapping[str, ArraySchema]:
        return {"model": add_numbers(self._make_schema())}

    def rules(self, height: int) -> Mapping[str, str]:
        return {"model": "nova"}

    def validate_payload(self, kind: str, arrays: Arrays, height: int) -> None:
        super().validate_payload(kind, arrays, height)
        validate_numbers(arrays, self.hyperparameters.fixed_steps, self.hyperparameters.momentum)

    def compute_norm(self, num_steps: int) -> float:
        """Computes ||a||_1 of so many steps at this method's momentum."""
        return compute_norm(num_steps, self.hyperparameters.momentum)

    def make_numbers(self, num_steps: int) -> Arrays:
        """Returns the numbers of a payload besides the model."""
        return make_numbers(num_steps, self.hyperparameters.momentum)


# ---- tau and its norm, in a payload beside the model


def check_settings(hyper: ModelHyperparameters, fixed_steps: int | None) -> None:
    """Raises SpecError for a decay that makes steps differ, more steps than validators would count, or models that are
    sent as changes: one false tau moves the common model so far in a round that no change can move it back."""
    if hyper.model_dtype == "float16":
        raise SpecError("method.model_dtype", "fednova expects float32, got 'float16'")
    if hyper.decay_unit == "step":
        raise SpecError("method.decay_unit", "expected round: all steps of a round count alike here; got 'step'")
    if fixed_steps is not None and fixed_steps > MAX_STEPS:
        key = "local_epochs" if hyper.counts_epochs else "local_iterations"
        raise SpecError(f"method.{key}", f"fednova expects at most {MAX_STEPS}, got {fixed_steps}")


def check_names(task: Task) -> None:
    """Raises SpecError for a model that has an array of its own under one of NOVA_NUMBERS."""
    if taken := [name for name in NOVA_NUMBERS if name in task.model_schema.arrays]:
        raise SpecError("model", f"fednova expects a model without a {taken[0]!r} of its own")


def add_numbers(schema: ArraySchema) -> ArraySchema:
    """Returns a model's schema with NOVA_NUMBERS added."""
    numbers = {
        "local_steps": ArraySpec("int64", (1,), (1, MAX_STEPS)),
        "norm": ArraySpec("float64", (1,), (1.0, float(MAX_NORM))),
    }
    return ArraySchema({**schema.arrays, **numbers})


def make_numbers(num_steps: int, momentum: float) -> Arrays:
    """Returns NOVA_NUMBERS for so many steps."""
    return {"local_steps": np.array([num_steps], np.int64), "norm": np.array([compute_norm(num_steps, momentum)])}


def validate_numbers(arrays: Arrays, fixed_steps: int | None, momentum: float) -> None:
    """Raises PayloadError unless tau is `fixed_steps`, if that is known, and the norm is tau's."""
    steps = int(arrays["local_steps"][0])
    if fixed_steps is not None and steps != fixed_steps:
        raise PayloadError(f"payload 'model': expected local_steps {fixed_steps}, got {steps}")
    expected, got = compute_norm(steps, momentum), arrays["norm"][0]
    if got != expected:
        raise PayloadError(f"payload 'model': expected norm {expected!r} of {steps} steps, got {float(got)!r}")
