"""The rules of tasks: which methods and which settings of training each kind of task allows.

Neither models nor what is sent of them depend on classes, so a method that mixes models trains any task. So does one
that contrasts representations with each other, whatever its loss besides. Prototypes need classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ml.errors import SpecError
from ml.specs.base import MethodSpec
from ml.tasks import CLASSIFICATION, MULTILABEL, REGRESSION

LOSSES: Mapping[str, tuple[str, ...]] = {  # the first is the default
    CLASSIFICATION: ("cross_entropy", "focal"),
    MULTILABEL: ("binary_cross_entropy", "focal"),
    REGRESSION: ("mse", "huber"),
}


def check_task(spec: MethodSpec, methods: Iterable[type[MethodSpec]]) -> None:
    """Raises SpecError if the method, or a setting of it, makes no sense for the kind of the task. `methods` are all
    known methods; the error names those that fit."""
    kind, hyper = spec.task.kind, spec.hyperparameters
    if kind not in spec.tasks:
        others = ", ".join(method.name for method in methods if kind in method.tasks)
        raise SpecError(
            "task", f"{spec.name} trains {' and '.join(spec.tasks)} alone, got {kind}: expected one of {others}"
        )
    if hyper.loss is not None and hyper.loss not in LOSSES[kind]:
        raise SpecError("method.loss", f"expected {' or '.join(LOSSES[kind])} for task {kind}, got {hyper.loss}")
    if kind == REGRESSION and hyper.label_smoothing:
        raise SpecError("method.label_smoothing", f"expected 0 for task {kind}, which has no labels")
    if kind == REGRESSION and hyper.class_weights not in (None, "none"):
        raise SpecError("method.class_weights", f"expected none for task {kind}, which has no classes")
    if kind == MULTILABEL and hyper.class_weights == "agreed":
        raise SpecError("method.class_weights", f"expected none or own for task {kind}, got agreed")
    if kind != CLASSIFICATION and hyper.sampling not in (None, "uniform"):
        raise SpecError("method.sampling", f"expected uniform for task {kind}, got {hyper.sampling}")
